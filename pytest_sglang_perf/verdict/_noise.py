"""How much a metric varies by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import VerdictError

from ._numbers import LARGEST, as_float, items, number, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DRIFT_SHARES", "DRIFT_WEIGHTS", "STATED", "Noise"]

#: Which part of the variance between boots is drift between sessions: the points at which it is considered.
DRIFT_SHARES = (0.0, 0.2, 0.5, 0.8, 0.95)
#: Stated prior belief in each point: rather none than some. Chosen by calibration
#: (docs/explanation/calibration.md).
DRIFT_WEIGHTS = (0.46, 0.12, 0.16, 0.15, 0.11)
#: Of a log. What is learned from figures of all sizes stays below.
_MOST_SD = 100.0


@dataclass(frozen=True)
class Noise:
    """Learned or stated noise of one metric at one level; all spreads are sds of the log value (0.02 is 2 %).

    Attributes:
        boot_sd: Between boots of different sessions, trial noise taken out, drift between sessions included.
        boot_df: What it is worth: degrees of freedom (roughly the number of boots it was learned from, less
            where the levels it was pooled over disagree). 0 means nothing is known.
        trial_sd: Between trials of one boot.
        trial_df: What that is worth.
        drift: Belief in each of ``DRIFT_SHARES``; sums to 1.
        source: In words, for the ``method`` of verdicts.
    """

    boot_sd: float
    boot_df: float
    trial_sd: float = 0.0
    trial_df: float = 0.0
    drift: tuple[float, ...] = DRIFT_WEIGHTS
    source: str = "stated prior"

    def __post_init__(self) -> None:
        for name in ("boot_sd", "boot_df", "trial_sd", "trial_df"):
            number(f"noise: {name}", getattr(self, name), least=0.0, below=_MOST_SD if name.endswith("sd") else LARGEST)
        if self.boot_df > 0 and self.boot_sd == 0:
            raise VerdictError("noise: boot_sd is 0 with boot_df above 0; no server repeats exactly")
        weights = [as_float(weight) for weight in items(self.drift)]
        known = [weight for weight in weights if weight is not None and 0 <= weight < LARGEST]
        if len(known) != len(weights) or len(known) != len(DRIFT_SHARES) or not sum(known) > 0:
            raise VerdictError(f"noise: drift needs {len(DRIFT_SHARES)} weights, got {shorten(self.drift)}")

    @classmethod
    def stated(cls, boot_sd: float, *, trial_sd: float = 0.0, df: float = 4.0) -> Noise:
        """A belief that somebody writes down, as if ``df`` + 1 boots had shown it."""
        boot_sd = number("boot_sd", boot_sd, below=_MOST_SD)
        return cls(boot_sd, df, trial_sd, df if trial_sd else 0.0, source=f"stated prior: boot sd {boot_sd:.1%}")

    @property
    def drift_share(self) -> float:
        """Expected part of the variance between boots that is drift between sessions."""
        return sum(w * s for w, s in zip(self.drift, DRIFT_SHARES, strict=True)) / sum(self.drift)

    @property
    def drift_sd(self) -> float:
        """Expected drift between sessions (sd of the log)."""
        return self.boot_sd * math.sqrt(self.drift_share)

    def floor(self) -> float:
        """Smallest margin that makes sense here, two boot sds.

        A tighter one asks about luck, not about servers.
        """
        return math.expm1(2 * self.boot_sd) if self.boot_df > 0 else 0.0

    def margin(self, wanted: float) -> float:
        """The margin of the suite, widened to the noise floor where that is larger."""
        return max(wanted, self.floor())

    def to_dict(self) -> dict[str, Any]:
        """Builtin types only."""
        return {
            "boot_sd": self.boot_sd,
            "boot_df": self.boot_df,
            "trial_sd": self.trial_sd,
            "trial_df": self.trial_df,
            "drift": list(self.drift),
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Noise:
        """Inverse of `to_dict`."""
        return cls(**{**data, "drift": tuple(data["drift"])})


#: Believed where nothing else is known: one boot on each side and no learned noise. Published figures and
#: our own recordings put the boot sd of serving metrics between 0.5 and 5 %; this is towards the careful end.
STATED = Noise(boot_sd=0.04, boot_df=3.0, source="stated prior: boot sd 4 %")
