"""YAML, read strictly: what looks like one value to people is never another value here.

YAML 1.1, which most readers still speak, turns ``on`` into true, ``012`` into ten, ``1:30`` into ninety and
takes the last of two equal keys. Each of these silently measures another configuration than the one on the
screen. Here plain ``true`` and ``false`` are the only booleans, numbers are decimal, and what is ambiguous is
an error that says how to write what was meant. Every value keeps its position for later errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from pytest_sglang_perf.suite._problems import KeyPath, Place, Problems, is_secret

__all__ = ["Document", "read_yaml"]

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z|[-+]?[0-9]+[eE][-+]?[0-9]+\Z")
_NULL = ("", "~", "null")
_BOOLEANS = {"true": True, "false": False}
_FALSE_FRIENDS = {
    "yes": "true",
    "on": "true",
    "true": "true",
    "no": "false",
    "off": "false",
    "false": "false",
}
_OCTAL = re.compile(r"[-+]?0[0-9_]+\Z|[-+]?0o[0-7]+\Z")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?\Z")
_GROUPED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?\Z")
_BASED = re.compile(r"[-+]?0[xXbB][0-9a-fA-F_]+\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_MOST_VALUES = 100_000  # more is not a suite but an alias bomb


@dataclass
class Document:
    """Plain data of one file with the position of every value and key."""

    file: str
    data: Any = None
    values: dict[KeyPath, Place] = field(default_factory=dict)
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    written: dict[KeyPath, str] = field(default_factory=dict)  # plain scalars as they stand in the file

    def place(self, path: KeyPath) -> Place | None:
        """Where ``path`` is written: its key, else its value, else the nearest thing around it."""
        while path:
            found = self.keys.get(path) or self.values.get(path)
            if found is not None:
                return found
            path = path[:-1]
        return self.values.get(())


class _Loader(yaml.BaseLoader):
    """PyYAML's parser and composer; every scalar stays text, and tags are refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the tag {tag!r} is not supported; write the plain value",
                problem_mark=event.start_mark,
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def read_yaml(text: str, file: str) -> Document:
    """Read one document.

    Args:
        text: the file's content.
        file: how errors name the file.

    Raises:
        SuiteError: with every doubtful value and doubled key, or the first fault of the syntax.
    """
    problems = Problems(file)
    loader: Any = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        reader = _Reader(Document(file), problems)
        reader.document.data = reader.read(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        _syntax(error, problems)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.add(f"the character U+{int(error.character):04X} is not allowed in YAML", place=Place(line, 1))
    except RecursionError:
        problems.add("nested too deeply")
    except _TooLarge:
        problems.add(f"more than {_MOST_VALUES} values; an alias (*) inside aliases multiplies them")
    finally:
        if loader is not None:
            loader.dispose()
    problems.raise_if_any()
    return reader.document


class _TooLarge(Exception):
    pass


class _Reader:
    """From nodes to plain data, noting positions and problems on the way."""

    def __init__(self, document: Document, problems: Problems) -> None:
        self.document = document
        self.problems = problems
        self.open: set[int] = set()  # mappings and lists being read, to notice one that contains itself
        self.count = 0

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > _MOST_VALUES:
            raise _TooLarge
        self.document.values[path] = place = _place(node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, place)
        if id(node) in self.open:
            self.problems.add("contains itself through an alias", place=place, path=path)
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = _place(key_node.start_mark)
            key = self._key(key_node, path, place)
            if key is None:
                continue
            if key in result:
                first = self.document.keys[(*path, key)]
                self.problems.add(
                    f"the key {key!r} is written twice, first in line {first.line}; keep one",
                    place=place,
                    path=(*path, key),
                )
                continue
            self.document.keys[(*path, key)] = place
            result[key] = self.read(value_node, (*path, key))
        return result

    def _key(self, node: yaml.Node, path: KeyPath, place: Place) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self.problems.add("a key must be a plain word, not a list or mapping", place=place, path=path)
            return None
        if node.style is None and node.value == "<<":
            self.problems.add(
                "merge keys (<<) are not supported; a server inherits with 'extends'", place=place, path=path
            )
            return None
        value = self._scalar(node, (*path, node.value), place, advise_quotes=True)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(node.value)  # levels are natural keys: requests: {1: 16, 1024: 4096}
        if not isinstance(value, str):
            if isinstance(value, bool) or node.value in _NULL:
                self.problems.add(f"the key {node.value!r} is not a word; put it in quotes", place=place, path=path)
            return None
        return value

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, place: Place, *, advise_quotes: bool = False) -> Any:
        text = node.value
        if node.style is not None:  # quoted, or a block: text, whatever it looks like
            return text
        if not advise_quotes:
            self.document.written[path] = text
        if text in _NULL:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.match(text):
            return _decimal(text, int)
        if _FLOAT.match(text):
            return float(text)
        advice = _doubtful(text)
        if advice:
            message = f"found {text!r}: {advice}"
            if any(is_secret(part) for part in path if isinstance(part, str)):
                message = "found a value (not shown) that readers take differently; put it in quotes"
            self.problems.add(message, place=place, path=path)
            return None
        return text


def _decimal(text: str, kind: type[int]) -> int | str:
    try:
        return kind(text)
    except ValueError:  # longer than Python converts; no setting is
        return text


def _doubtful(text: str) -> str:
    """Why a plain scalar must not be guessed at, with what to write instead; empty where it is plain text."""
    meant = _FALSE_FRIENDS.get(text.lower())
    if meant is not None:
        return (
            f'only true and false are booleans here. Write {meant} for the boolean, or "{text}" in quotes for the word'
        )
    if _OCTAL.match(text):
        plain = text.lstrip("+-").lower().removeprefix("0o").lstrip("0_") or "0"
        return (
            f"a number with a leading zero is octal to some readers. Write {plain} for the decimal number, "
            f'or "{text}" in quotes for the text'
        )
    if _SEXAGESIMAL.match(text):
        return f'some readers take this for a number in base 60. Write "{text}" in quotes for the text'
    if _GROUPED.match(text):
        return f'write {text.replace("_", "")} for the number, or "{text}" in quotes for the text'
    if _BASED.match(text):
        decimal = int(text.replace("_", ""), 0)
        return f'numbers are decimal here. Write {decimal}, or "{text}" in quotes for the text'
    if _NOT_FINITE.match(text):
        return f'infinite and undefined numbers mean nothing here. Write "{text}" in quotes for the text'
    return ""


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


_ADVICE = (
    ("found character '\\t'", "a tab indents here; use spaces"),
    ("mapping values are not allowed here", "a ': ' where none can be; put the text in quotes"),
    ("could not find expected ':'", "a key without ': ' behind it"),
    ("expected a single document", "a second document begins here ('---'); a suite file has one"),
    ("found undefined alias", "this alias (*name) has no anchor (&name) before it"),
    ("found duplicate anchor", "this anchor (&name) is used twice"),
    ("found unexpected end of stream", "the file ends inside a quoted text"),
    ("did not find expected", "the brackets or the indentation do not fit"),
    ("but found '<stream end>'", "the file ends before a bracket is closed"),
    ("expected <block end>", "the indentation does not fit the lines above"),
    ("expected ',' or", "a comma or the closing bracket is missing"),
)


def _syntax(error: yaml.MarkedYAMLError, problems: Problems) -> None:
    mark = error.problem_mark or error.context_mark
    said = " ".join(part for part in (error.context, error.problem) if part)
    advice = next((advice for fragment, advice in _ADVICE if fragment in said), error.problem or "not YAML")
    place = None if mark is None else _place(mark)
    if error.context_mark is not None and error.context_mark.line != getattr(mark, "line", None):
        advice += f" (what is not closed begins in line {error.context_mark.line + 1})"
    problems.add(advice, place=place)
