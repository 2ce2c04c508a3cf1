"""Words that a line must contain for a pattern to have a chance.

Two hundred regular expressions on a line cost a hundred microseconds; looking for a fixed word costs a twentieth
of one. Only what can be read off safely is used: text outside of groups, classes and optional parts.
"""

from __future__ import annotations

__all__ = ["required_words"]

_SHORTEST = 3


def required_words(pattern: str) -> tuple[str, ...] | None:
    """Words of which any match of ``pattern`` contains at least one; None when none can be named."""
    words: list[str] = []
    for alternative in _alternatives(pattern):
        some = _words_of(alternative)
        if some is None:
            return None
        words += some
    return tuple(words)


def _words_of(pattern: str) -> tuple[str, ...] | None:
    """The same for a pattern without alternatives outside of groups: the best of its literal runs and groups."""
    candidates: list[tuple[str, ...]] = []
    run, position = "", 0
    while position < len(pattern):
        char, literal, group = pattern[position], "", None
        if char == "\\":
            position += 1
            literal = "" if pattern[position].isalnum() else pattern[position]
        elif char == "[":
            position = _class_end(pattern, position)
        elif char == "(":
            end = _group_end(pattern, position)
            group, position = pattern[position + 1 : end], end
        elif char == "{":
            position = pattern.index("}", position)
        elif char not in ".^$*+?":
            literal = char
        optional = pattern[position + 1 : position + 2] in {"?", "*", "{"}
        if literal and not optional:
            run += literal
        else:
            candidates.append((run,))
            run = ""
        if group is not None and not optional:
            candidates.append(_words_of_group(group))
        position += 1
    best = max([*candidates, (run,)], key=lambda words: min(map(len, words), default=0))
    return best if best and min(map(len, best)) >= _SHORTEST else None


def _words_of_group(group: str) -> tuple[str, ...]:
    for opening in ("?:", "?P<detail>"):
        if group.startswith(opening):
            return required_words(group.removeprefix(opening)) or ()
    return () if group.startswith("?") else required_words(group) or ()  # look-arounds promise nothing


def _alternatives(pattern: str) -> list[str]:
    found, start, position = [], 0, 0
    while position < len(pattern):
        if pattern[position] == "|":
            found.append(pattern[start:position])
            start = position + 1
        position = _token_end(pattern, position) + 1
    return [*found, pattern[start:]]


def _token_end(pattern: str, position: int) -> int:
    """The last index of what begins here: an escape, a class, a group, or one character."""
    if pattern[position] == "\\":
        return position + 1
    if pattern[position] == "[":
        return _class_end(pattern, position)
    return _group_end(pattern, position) if pattern[position] == "(" else position


def _group_end(pattern: str, start: int) -> int:
    position = start + 1
    while pattern[position] != ")":
        position = _token_end(pattern, position) + 1
    return position


def _class_end(pattern: str, start: int) -> int:
    position = start + 1
    if pattern[position] == "^":
        position += 1
    if pattern[position] == "]":
        position += 1
    while pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position
