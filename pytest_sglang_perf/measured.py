"""What was measured, boot by boot, and what of it tests have asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_sglang_perf.suite import ResolvedWorkload
    from pytest_sglang_perf.trials import TrialRecord

__all__ = ["BootRecord", "Planned", "Want"]


@dataclass(frozen=True)
class Want:
    """A level of a workload, as memo key; fingerprints because names may be reused with other content."""

    workload: str
    level: float


class Planned(NamedTuple):
    """What selected tests need of a level: trials in each boot, and in how many boots (or pairs) at first."""

    workload: ResolvedWorkload
    trials: int
    boots: int


@dataclass
class BootRecord:
    """What one boot gave: how it came up and its trials by level.

    ``wanted`` are levels that this very boot must measure before it is stopped, beyond those that every boot of its
    config does; ``asked`` are those of them that were wanted before anything was measured.
    """

    number: int
    server: str
    fingerprint: str
    started_wall_s: float
    boot_time_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    server_info: dict[str, Any] = field(default_factory=dict)
    trials: dict[Want, list[TrialRecord]] = field(default_factory=dict)
    pooled: dict[Want, dict[str, float]] = field(default_factory=dict)
    saved: set[Want] = field(default_factory=set)
    wanted: dict[Want, Planned] = field(default_factory=dict)
    asked: set[Want] = field(default_factory=set)

    def values(self, want: Want, metric: str) -> tuple[float, ...]:
        """The trials of one metric at one level; one value for what only all trials together can give."""
        if metric == "boot_time":
            return (self.boot_time_s,) if self.boot_time_s is not None else ()
        if metric in self.pooled.get(want, {}):
            return (self.pooled[want][metric],)
        return tuple(trial.values[metric] for trial in self.trials.get(want, ()) if metric in trial.values)

    def columns(self, want: Want) -> dict[str, tuple[float, ...]]:
        """All metrics of one level, as they are stored."""
        names = {"boot_time", *self.pooled.get(want, {})}
        for trial in self.trials.get(want, ()):
            names.update(trial.values)
        return {name: values for name in sorted(names) if (values := self.values(want, name))}

    @property
    def version(self) -> str:
        return str(self.server_info.get("version") or self.facts.get("version") or "unknown")
