"""From pydantic's findings to problems in the user's words, each at its place in the file."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pytest_sglang_perf.suite._problems import KeyPath, Problems, did_you_mean, one_of, show
from pytest_sglang_perf.suite.models import SuiteModel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from pytest_sglang_perf.suite._yaml import Document

__all__ = ["validate"]

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above"),
    "greater_than_equal": ("ge", "a number of at least"),
    "less_than": ("lt", "a number below"),
    "less_than_equal": ("le", "a number of at most"),
}


def validate(document: Document, problems: Problems) -> SuiteModel | None:
    """Check the data of a document against the schema; problems are added, not raised."""
    data = document.data
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"is {show(data)}"
        problems.add(f"the file {what}; expected a mapping with nodes, servers and workloads", place=document.place(()))
        return None
    try:
        return SuiteModel.model_validate(data)
    except ValidationError as error:
        # Branches of a plain union report one error each; they are one mistake, told once.
        groups: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            missing = detail["loc"][-1:] if detail["type"] == "missing" else ()
            groups.setdefault((*_written(detail["loc"], data), *missing), []).append(detail)
        for path, details in groups.items():
            # A union of a number and a mapping complains about the mapping as a whole, too.
            inner = any(other[: len(path)] == path != other for other in groups)
            if not (inner and all(detail["type"] in _EXPECTED for detail in details)):
                _report(path, details, document, problems)
        return None


def _written(loc: tuple[str | int, ...], data: Any) -> KeyPath:
    """The part of pydantic's location that is in the file; tags of unions are not."""
    path: list[str | int] = []
    for part in loc:
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path.append(part)
            data = data[part]
    return tuple(path)


def _report(path: KeyPath, details: list[ErrorDetails], document: Document, problems: Problems) -> None:
    kind = details[0]["type"]
    if kind == "missing":
        message, path = _missing(path, document), path[:-1]
    elif kind == "extra_forbidden":
        options = sorted(_fields_at(details[0]["loc"][:-1]))
        word = str(path[-1])
        message = f"unknown key {word!r}{did_you_mean(word, options) or f'; expected {one_of(options)}'}"
    else:
        message = _wrong_value(path, details)
        if kind == "union_tag_invalid":
            path = (*path, "kind")
    at_key = kind in ("missing", "extra_forbidden")
    place = document.place(path) if at_key else document.values.get(path) or document.place(path)
    problems.add(message, place=place, path=path)


def _missing(path: KeyPath, document: Document) -> str:
    data: Any = document.data
    for part in path[:-1]:
        data = data[part]
    near = [key for key in data if did_you_mean(key, [str(path[-1])])] if isinstance(data, dict) else []
    # A misspelt key is both unknown and missing; say that they belong together.
    return f"the key {path[-1]!r} is missing{f' ({near[0]!r} is not it)' if near else ''}"


def _wrong_value(path: KeyPath, details: list[ErrorDetails]) -> str:
    first = details[0]
    kind, ctx = first["type"], first.get("ctx", {})
    found = show(first["input"], path)
    if kind == "expected":  # our own words
        return first["msg"] if found.startswith("a ") else f"{first['msg']} (found {found})"
    if kind in ("literal_error", "union_tag_invalid"):
        return _choice(first, ctx, found)
    if kind == "union_tag_not_found":
        return f"the key 'kind' is missing; expected kind: {one_of(_tags_at(first['loc']))}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        hint = " (a fraction: 0.03 is 3 %)" if path[:1] == ("margins",) else ""
        return f"found {found}, expected {words} {ctx[name]:g}{hint}"
    if kind == "string_too_short":
        return f"found {found}, expected some text"
    if kind in ("too_short", "too_long"):
        words, bound = ("at least", "min_length") if kind == "too_short" else ("at most", "max_length")
        return f"found {found}, expected {words} {ctx[bound]}"
    if kind == "string_pattern_mismatch":
        return f"found {found}, expected a URL such as http://10.0.0.7:30000"
    wanted = list(dict.fromkeys(_EXPECTED.get(detail["type"], detail["msg"]) for detail in details))
    return f"found {found}, expected {one_of(wanted)}"


def _choice(detail: ErrorDetails, ctx: dict[str, Any], found: str) -> str:
    raw = str(ctx.get("expected") or ctx.get("expected_tags"))
    options = [part.strip(" '") for part in raw.replace(" or ", ",").split(",")]
    word = str(ctx.get("tag", detail["input"]))
    shown = repr(word) if "tag" in ctx else found
    return f"found {shown}, expected {one_of(options)}{did_you_mean(word, options)}"


def _branches(annotation: Any) -> list[Any]:
    """The types that ``annotation`` may stand for, with Annotated and unions taken apart."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _branches(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [branch for option in get_args(annotation) for branch in _branches(option)]
    return [annotation]


def _tag(model: Any) -> tuple[str, ...]:
    kind = model.model_fields.get("kind") if isinstance(model, type) and issubclass(model, BaseModel) else None
    return () if kind is None else tuple(get_args(kind.annotation))


def _types_at(loc: tuple[str | int, ...]) -> list[Any]:
    """The types that the schema has at pydantic's location ``loc``."""
    here: list[Any] = [SuiteModel]
    for part in loc:
        tagged = [branch for branch in here if part in _tag(branch)]
        if tagged:
            here = tagged
            continue
        following: list[Any] = []
        for branch in here:
            if isinstance(branch, type) and issubclass(branch, BaseModel):
                if part in branch.model_fields:
                    following += _branches(branch.model_fields[str(part)].annotation)
            elif get_origin(branch) in (dict, list):
                following += _branches(get_args(branch)[-1])
        here = following or here
    return here


def _fields_at(loc: tuple[str | int, ...]) -> list[str]:
    return [
        name
        for model in _types_at(loc)
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name in model.model_fields
    ]


def _tags_at(loc: tuple[str | int, ...]) -> list[str]:
    return [tag for model in _types_at(loc) for tag in _tag(model)]
