"""Follow a boot through its phases, line by line.

The order of phases is not assumed: weights may be committed after the CUDA graphs, kernels may be compiled in
the middle of a capture, and with several ranks one may load while another captures. What is *current* is what
was entered last by the first rank to enter it; time is charged to the current phase, so that the durations add
up to the boot.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ._marks import PHASES, PROGRESS, find_mark
from .lines import Line, parse_line
from .versions import VersionGuess

__all__ = ["LIMITS_S", "PHASES", "PhaseEvent", "PhaseTracker", "Progress"]

LIMITS_S: dict[str, float] = {
    "spawn": 120.0,
    "imports": 300.0,  # 8 s to 25 s from a local disk; minutes from a shared file system, once per rank
    "arguments": 300.0,  # reads the model's configuration, perhaps from the hub
    "distributed": 900.0,  # ranks of other nodes may still be coming; torch itself gives up after 600 s
    "weights": 1200.0,  # between two shards, or for all of them where nothing is printed
    "kv_cache": 1800.0,  # what follows it (attention back ends, kernels) is silent
    "jit": 3600.0,  # nvcc and ninja say nothing; DeepGEMM announces 10 to 20 minutes
    "cuda_graphs": 1800.0,  # the first capture compiles kernels
    "capacity": 600.0,
    "http": 120.0,
    "warmup": 900.0,  # sglang's own warm-up request gives up after 600 s
    "stopping": 120.0,
}
"""Seconds without any sign of life (a log line, CPU time) after which a phase counts as stuck."""

_TQDM = re.compile(r"(\d+)%(?: Completed)? ?\|[^|]*?\|? *(\d+)/(\d+) \[")
_RE_ENTERED = {"imports", "jit", "cuda_graphs"}
_SERVING = {"ready", "running", "stopping"}


class PhaseEvent(NamedTuple):
    """A phase began, ended (on the first rank to say so) or moved on.

    ``edge`` is ``start``, ``end`` or ``progress``; ``at_s`` is on the tracker's clock, None before its first time.
    """

    phase: str
    edge: str
    at_s: float | None
    number: int
    text: str


class Progress(NamedTuple):
    """How far a phase says it is: ``done`` of ``total`` (weight shards, graph sizes, kernels)."""

    phase: str
    what: str
    done: int
    total: int

    @property
    def percent(self) -> float:
        return 100.0 * self.done / self.total if self.total else 0.0


class PhaseTracker:
    """Which phase a boot is in, judged from its log alone.

    ``feed`` takes the lines in order. Times are those of the reading side (``ns``, any monotonic clock) when they
    are given, else those that the log prints, which have a resolution of one second. Readiness of a boot is
    decided by probes and not here: ``ready`` means that the log claims it, and ``enter`` lets who knows better
    say so.

    Args:
        start_ns: when the process was spawned, on the clock of ``feed``'s ``ns``.
    """

    def __init__(self, *, start_ns: int | None = None) -> None:
        self.current = "spawn"
        self.progress: Progress | None = None
        self.ranks: set[str] = set()
        self._spent: dict[str, float] = {}
        self.started: dict[str, float | None] = {"spawn": None if start_ns is None else start_ns / 1e9}
        """When each phase was first entered, in seconds on the clock in use."""
        self.ended: dict[str, float | None] = {}
        """When the last rank said that a phase was over; only for phases that say so."""
        self.bind_failed = False
        self._guess = VersionGuess()
        self._now_s = self.started["spawn"]
        self._since_s = self._now_s
        self._given = start_ns is not None
        self._number = 0
        self._over = False

    @property
    def version(self) -> str | None:
        """The release whose dialect this is, ``None`` until something tells."""
        return self._guess.version

    @property
    def served(self) -> bool:
        """Whether the server came up, as far as its log says."""
        return not _SERVING.isdisjoint(self.started)

    @property
    def durations(self) -> dict[str, float]:
        """Seconds charged to each phase so far, in order of first entry; they add up to the time since the spawn."""
        spent = dict(self._spent)
        if self._now_s is not None and self._since_s is not None:
            spent[self.current] = spent.get(self.current, 0.0) + max(0.0, self._now_s - self._since_s)
        return spent

    @property
    def limit_s(self) -> float | None:
        """Seconds without progress after which the current phase is stuck; None where silence is normal."""
        limit = LIMITS_S.get(self.current)
        if limit is not None and self._over and self.current not in _SERVING:
            return max(limit, LIMITS_S["kv_cache"])  # what comes between two announced phases is not announced
        return limit

    def restart(self) -> None:
        """Begin anew: another boot wrote into the same log."""
        guess, now, given = self._guess, self._now_s, self._given
        self.__init__()  # type: ignore[misc]
        self._guess, self._now_s, self._since_s, self._given = guess, now, now, given
        self.started["spawn"] = now

    def feed(self, text: str, ns: int | None = None, number: int | None = None) -> list[PhaseEvent]:
        """Take the next line; returns what changed."""
        self._number = self._number + 1 if number is None else number
        return self.feed_line(parse_line(text, self._number), ns)

    def feed_line(self, line: Line, ns: int | None = None) -> list[PhaseEvent]:
        """Take the next line, already parsed."""
        self._number = line.number
        if ns is not None:
            self._given = True
            self._now_s = ns / 1e9
            self._since_s = self._now_s if self._since_s is None else self._since_s
        elif line.stamp and line.kind not in {"batch", "access"}:
            self._tick(line)
        if line.ranks:
            self.ranks.add(line.ranks)
        if line.kind == "batch":
            return self._on_batch(line)
        if line.kind == "access":
            return self._on_access(line)
        if line.kind == "more" and line.text.startswith("  ") and self.current != "spawn":
            if "[--" in line.text:
                self._guess.feed(line)
            return []
        self._guess.feed(line)
        if line.kind == "progress":
            return self._on_progress(line)
        if line.kind == "echo":
            return []
        return self._on_message(line)

    def enter(self, phase: str, *, line: Line | None = None, ns: int | None = None) -> list[PhaseEvent]:
        """Make ``phase`` the current one, if it is not."""
        if ns is not None:
            self._now_s = ns / 1e9
        if phase == self.current:
            self._over = False
            return []
        self._charge()
        self.current, self.progress, self._over = phase, None, False
        self.started.setdefault(phase, self._now_s)
        text = "" if line is None else line.text
        return [PhaseEvent(phase, "start", self._now_s, self._number, text)]

    def _on_message(self, line: Line) -> list[PhaseEvent]:
        if self.current == "spawn":
            events = self.enter("arguments" if line.kind == "log" else "imports", line=line)
        elif self.current == "imports" and "arguments" not in self.started and line.kind == "log":
            events = self.enter("arguments", line=line)
        else:
            events = []
        if line.kind == "uvicorn" and "error while attempting to bind" in line.message:
            self.bind_failed = True
        mark = find_mark(line.message)
        if mark is None:
            if "flashinfer.jit" in line.text and self.current in {"weights", "kv_cache", "cuda_graphs"}:
                events += self.enter("jit", line=line)
            return events
        if mark.edge == "end":
            return events + self._end(mark.phase, line)
        return events + self._begin(mark.phase, line)

    def _begin(self, phase: str, line: Line) -> list[PhaseEvent]:
        if self.current == "stopping" or (self.current in _SERVING and phase not in _SERVING):
            return []
        if phase == "ready" and self.bind_failed:
            return []  # it warmed up against whoever holds the port
        if phase in self.started and phase not in _RE_ENTERED:
            return []  # another rank follows
        return self.enter(phase, line=line)

    def _end(self, phase: str, line: Line) -> list[PhaseEvent]:
        first = phase not in self.ended
        events = [] if phase in self.started else self._begin(phase, line)
        self.ended[phase] = self._now_s
        if first:
            events.append(PhaseEvent(phase, "end", self._now_s, line.number, line.text))
        if phase == self.current:
            self._over = True
            if phase == "weights":
                events += self.enter("kv_cache", line=line)
            elif phase == "arguments":
                events += self.enter("imports", line=line)
        return events

    def _on_access(self, line: Line) -> list[PhaseEvent]:
        if self.current == "http":
            return self.enter("warmup", line=line)
        if self.current == "spawn" and line.message.endswith("200 OK") and '"POST /' in line.message:
            return self.enter("running", line=line)  # stdout alone, or the tail of a log
        return []

    def _on_batch(self, line: Line) -> list[PhaseEvent]:
        if self.current in {"ready", "spawn"}:
            self._tick(line)
            return self.enter("running", line=line)
        return self.enter("warmup", line=line) if self.current == "http" else []

    def _on_progress(self, line: Line) -> list[PhaseEvent]:
        bar = _TQDM.search(line.text)
        if bar is None or self.current in _SERVING:
            return []
        for phase, pattern in PROGRESS:
            what = pattern.search(line.text)
            if what is None:
                continue
            events = [] if phase in self.started and phase not in _RE_ENTERED else self.enter(phase, line=line)
            if phase == self.current:
                self.progress = Progress(phase, what[1] or what[2], int(bar[2]), int(bar[3]))
                events.append(PhaseEvent(phase, "progress", self._now_s, line.number, line.text))
            return events
        return []

    def _tick(self, line: Line) -> None:
        seconds = None if self._given else line.seconds
        if seconds is not None:
            self._now_s = seconds
            if self._since_s is None:
                self._since_s = seconds

    def _charge(self) -> None:
        if self._now_s is not None:
            since = self._now_s if self._since_s is None else self._since_s
            spent = max(0.0, self._now_s - since)
            self._spent[self.current] = self._spent.get(self.current, 0.0) + spent
        self._since_s = self._now_s
