"""A workload with all its defaults: the levels it has, and the load engine's order for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import NotDeclared
from pytest_sglang_perf.suite.server import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_sglang_perf.suite.models import WorkloadModel

__all__ = ["Level", "ResolvedWorkload", "default_requests", "level_of"]

Level = int | float
_CLOSED = "closed"
_LEVELS = {"rate", "size", "path"}


def level_of(key: str) -> float | None:
    """The level that a key of a mapping by level stands for; None where it is no number."""
    try:
        return float(key)
    except ValueError:
        return None


def default_requests(kind: str, level: Level) -> int:
    """How many requests a trial takes where the workload does not say.

    Closed loop: two full rounds, and up to 64 (where p90 begins) as long as that is no more than 8 rounds, at
    least 16. Level 1 takes 16, level 10 64, level 256 512, level 1024 2048. Percentiles are counted over all
    trials of a boot: with the default 4 trials level 1 has its p90, level 10 its p95 and level 256 its p99.
    Open loop: 10 s of the rate, at least 64. Bursts: 4 of them, at least 16.
    """
    if kind == _CLOSED:
        return max(16, min(64, 8 * int(level)), 2 * int(level))
    if kind == "burst":
        return max(16, 4 * int(level))
    return max(64, math.ceil(10 * level))


@dataclass(frozen=True)
class ResolvedWorkload:
    """One workload, ready to be run.

    Attributes:
        name: its name in the suite.
        written: what the suite file says.
        files: referred files (traces, lists of lengths), as named in the suite -> (absolute path, sha256).
    """

    name: str
    written: WorkloadModel
    files: Mapping[str, tuple[str, str]]

    @property
    def kind(self) -> str:
        """``closed`` for a concurrency, else the kind of arrival."""
        return self.written.arrival.kind if self.written.arrival else _CLOSED

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels in the order of the file: concurrencies, rates (1/s) or burst sizes."""
        arrival = self.written.arrival
        if arrival is None:
            return tuple(self.written.concurrency or ())
        if arrival.kind == "burst":
            return tuple(arrival.size)
        if arrival.kind == "trace":
            return (1,)
        return tuple(arrival.rate)

    def requests(self, level: Level) -> int:
        """Requests that must finish inside the steady window of a trial at ``level``.

        Raises:
            NotDeclared: the workload has no such level.
        """
        self._check(level)
        wanted = self.written.requests
        if isinstance(wanted, int):
            return wanted
        by_level = {level_of(key): value for key, value in (wanted or {}).items()}
        return by_level.get(float(level)) or default_requests(self.kind, level)

    def spec(self, level: Level) -> dict[str, Any]:
        """The load engine's order for one trial, without url, model, salt and paths, which the caller adds.

        Raises:
            NotDeclared: the workload has no such level.
        """
        self._check(level)
        written = self.written
        return {
            "api": written.api,
            "arrival": self._arrival(level),
            "ramp_s": written.ramp_s,
            "input": self._length(written.input_len.model_dump()),
            "output": self._length(written.output_len.model_dump()),
            "requests": self.requests(level),
            "warmup": {"requests": written.warmup},
            "shared_prefix": written.shared_prefix,
            "vocab": written.vocab,
            "seed": written.seed,
            "flush_cache": written.flush_cache,
            "limits": self._limits(),
            "workers": written.workers,
            "sampling": {"temperature": 0, "ignore_eos": True} | written.sampling,
        }

    @property
    def fingerprint(self) -> str:
        """16 hex digits over what a request and its timing are made of.

        How long a trial is (requests, limits) and which levels there are is not in it: figures of a longer
        trial are better known, not other figures.
        """
        written = self.written
        arrival = written.arrival
        return fingerprint_of(
            {
                "arrival": arrival.model_dump(exclude=_LEVELS) if arrival else {"kind": _CLOSED},
                "input": written.input_len.model_dump(),
                "output": written.output_len.model_dump(),
                "api": written.api,
                "shared_prefix": written.shared_prefix,
                "vocab": written.vocab,
                "seed": written.seed,
                "flush_cache": written.flush_cache,
                "sampling": {"temperature": 0, "ignore_eos": True} | written.sampling,
                "files": {name: digest for name, (_, digest) in self.files.items()},
            }
        )

    def describe_difference(self, other: ResolvedWorkload) -> list[str]:
        """What changes from this workload to ``other``, by key of the suite file; empty if nothing does."""
        before, after = self.written.model_dump(), other.written.model_dump()
        lines = [
            f"{key} changed from {_shown(before[key])} to {_shown(after[key])}"
            for key in before
            if before[key] != after[key] and key != "description"
        ]
        lines += [
            f"the content of {name} changed"
            for name in sorted(self.files.keys() & other.files.keys())
            if self.files[name][1] != other.files[name][1]
        ]
        return lines

    def _check(self, level: Level) -> None:
        if level not in self.levels:
            known = ", ".join(map(str, self.levels))
            raise NotDeclared(
                f"the workload {self.name!r} has no level {level}; it has {known}. "
                f"Add it to {'concurrency' if self.kind == _CLOSED else 'arrival'} in the suite file."
            )

    def _arrival(self, level: Level) -> dict[str, Any]:
        arrival = self.written.arrival
        if arrival is None:
            return {"kind": _CLOSED, "concurrency": level}
        cap = {"max_concurrency": arrival.max_concurrency}
        if arrival.kind == "burst":
            return {"kind": "burst", "size": level, "period_s": arrival.period_s} | cap
        if arrival.kind == "trace":
            return {"kind": "trace", "path": self.files[arrival.path][0]} | cap
        burstiness = arrival.burstiness if arrival.kind == "gamma" else 1.0
        return {"kind": arrival.kind, "rate": level, "burstiness": burstiness} | cap

    def _length(self, length: dict[str, Any]) -> dict[str, Any]:
        return length | {"path": self.files[length["path"]][0]} if length["kind"] == "file" else length

    def _limits(self) -> dict[str, Any]:
        limits = self.written.limits.model_dump(exclude_none=True)
        if self.written.shared_prefix:
            limits["max_cached_share"] = 1.0  # a shared prefix is there to be cached
        return limits


def _shown(value: Any) -> str:
    """A value as the suite file would have it."""
    if isinstance(value, dict):
        if value.get("kind") == "fixed":
            return str(value["value"])
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return "none" if value is None else str(value)
