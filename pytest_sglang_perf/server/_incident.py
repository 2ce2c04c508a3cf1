"""Collect what a log says around the end of a server, and pick the cause out of it."""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

from .classes import ORDER, CrashClass, Depth

__all__ = ["Death", "Hit", "Incident", "Raised", "names_exception", "shorten"]

_BEFORE = 400
"""Lines before the first sign of death (statistics and access lines not counted) in which a cause may stand."""
_UNDESCRIBED = "scheduler-exception"
_KEPT = 256
_UNUSUAL = 16
_TEXT = 600

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?:\w*(?:Error|Exception|Interrupt|Exit|Timeout|Unsupported|Failure|Failed|OutOfResources|"
    r"NotFound|Invalid\w*|Warning))(?:: |:$|$)|^\w+(?:\.\w+)+: \S"
)


def names_exception(text: str) -> bool:
    """Whether a line without indentation is the last line of a traceback."""
    return _EXCEPTION.match(text) is not None


class Hit(NamedTuple):
    """A line that fits a crash class. ``at`` counts lines without statistics, ``block`` tracebacks."""

    entry: CrashClass
    detail: str
    number: int
    at: int
    block: int
    phase: str
    text: str


class Death(NamedTuple):
    """A line that says that a process of the server ended or will."""

    kind: str
    number: int
    at: int
    block: int
    phase: str
    text: str


class Raised(NamedTuple):
    """The line that names an exception, with the innermost frame above it."""

    number: int
    block: int
    text: str
    frame: tuple[int, str] | None


class Incident:
    """Everything that may explain the end of one boot, in bounded memory."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self.blocks: set[int] = set()
        """Blocks (a stamped line and what hangs below it) in which a process died."""
        self.exceptions: deque[Raised] = deque(maxlen=_KEPT)
        self._before: deque[Hit] = deque(maxlen=_KEPT)
        self._after: list[Hit] = []
        self._unusual: deque[tuple[int, int, str]] = deque(maxlen=_UNUSUAL)
        self._unusual_after: list[tuple[int, int, str]] = []

    def copy(self) -> Incident:
        """An independent copy, to try the end of a log on."""
        other = Incident()
        other.deaths = self.deaths.copy()
        other.blocks = self.blocks.copy()
        other.exceptions = self.exceptions.copy()
        other._before = self._before.copy()
        other._after = self._after.copy()
        other._unusual = self._unusual.copy()
        other._unusual_after = self._unusual_after.copy()
        return other

    def add_hit(self, hit: Hit) -> None:
        if not self.deaths:
            self._before.append(hit)
        elif len(self._after) < _KEPT:
            self._after.append(hit)

    def add_death(self, death: Death) -> None:
        self.blocks.add(death.block)
        if len(self.deaths) < _KEPT:
            self.deaths.append(death)

    def add_unusual(self, number: int, index: int, text: str) -> None:
        if not self.deaths:
            self._unusual.append((number, index, text))
        elif len(self._unusual_after) < _UNUSUAL:
            self._unusual_after.append((number, index, text))

    def cause(self, end: int) -> Hit | None:
        """The deepest and first of what may have killed the server; ``end`` is the index of the last line."""
        candidates = self._near(end)
        explained = {hit.block for hit in candidates if hit.entry.name != _UNDESCRIBED}
        return min(candidates, key=lambda hit: self._rank(hit, explained), default=None)

    def followers(self, cause: Hit, end: int) -> list[Hit]:
        """Other classes seen, once each, in order."""
        seen = {cause.entry.name, "scheduler-exception"}
        found = []
        for hit in self._near(end):
            if hit.entry.name not in seen:
                seen.add(hit.entry.name)
                found.append(hit)
        return found

    def raised(self, block: int | None = None) -> Raised | None:
        """The first exception of that block, else of any block in which a process died."""
        for wanted in ({block}, self.blocks):
            found = next((e for e in self.exceptions if e.block in wanted), None)
            if found is not None:
                return found
        return None

    def unusual(self, end: int, count: int) -> list[tuple[int, str]]:
        start = (self.deaths[0].at if self.deaths else end) - _BEFORE
        lines = [(number, text) for number, index, text in self._unusual if index >= start]
        lines += [(number, text) for number, _, text in self._unusual_after]
        return lines[:count]

    def _near(self, end: int) -> list[Hit]:
        start = (self.deaths[0].at if self.deaths else end) - _BEFORE
        return [hit for hit in self._before if hit.at >= start] + self._after

    def _rank(self, hit: Hit, explained: set[int]) -> tuple[int, int, int, int]:
        depth = int(hit.entry.depth)
        inside = hit.block in self.blocks or hit.entry.precursor
        if not inside and self.blocks:
            depth += 1  # a complaint that was survived, perhaps; what killed a process is named where it died
        # Consequences say the same thing from several sides; among them the most specific tells more than the first.
        if hit.entry.depth is not Depth.CONSEQUENCE:
            return depth, hit.block, ORDER[hit.entry.name], hit.number
        # An exception that no class describes is news; that its peers lost the connection is not.
        undescribed = hit.entry.name == _UNDESCRIBED and hit.block not in explained
        return depth, 0, -1 if undescribed else ORDER[hit.entry.name], hit.number


def shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
