"""What is wrong with a suite file, gathered so that one run tells all of it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["KeyPath", "Place", "Problem", "Problems", "did_you_mean", "is_secret", "key_path", "show"]

KeyPath = tuple[str | int, ...]

_SECRET = re.compile(
    r"(?:^|[-_])(?:token|secret|password|passwd|api[-_]?key|access[-_]key|secret[-_]key)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct: where, and in the user's words what."""

    place: Place | None
    path: KeyPath
    message: str


class Problems:
    """Collects problems of one file and raises them as one ``SuiteError``."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Problem] = []

    def add(self, message: str, *, place: Place | None = None, path: KeyPath = ()) -> None:
        """Remember one problem; the same one is told once."""
        problem = Problem(place, path, message)
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise ``SuiteError`` with every problem found, in file order."""
        if self.found:
            raise SuiteError(str(self))

    def __str__(self) -> str:
        ordered = sorted(self.found, key=lambda p: (p.place.line, p.place.column) if p.place else (0, 0))
        lines = []
        for problem in ordered:
            where = self.file
            if problem.place is not None:
                where += f":{problem.place.line}:{problem.place.column}"
            name = key_path(problem.path)
            lines.append(f"{where}: {name + ': ' if name else ''}{problem.message}")
        if len(lines) > 1:
            lines.insert(0, f"{len(lines)} errors in {self.file}")
        return "\n".join(lines)


def key_path(path: KeyPath) -> str:
    """``("workloads", "short", "concurrency", 0)`` as ``workloads.short.concurrency[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest known word, or nothing."""
    options = sorted(known)
    folded = {option.lower().replace("_", "-"): option for option in options}
    near = difflib.get_close_matches(word.lower().replace("_", "-"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


def is_secret(name: str) -> bool:
    """Whether a flag or environment variable of this name carries a secret value."""
    return bool(_SECRET.search(name))


def show(value: object, path: KeyPath = ()) -> str:
    """A found value, short, and never a secret one."""
    if any(is_secret(part) for part in path if isinstance(part, str)):
        return "a value (not shown)"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def relative(path: Path) -> str:
    """A path as people see it: relative to the working directory where it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def one_of(words: Sequence[str]) -> str:
    """``a, b or c``."""
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else words[0] if words else "nothing"
