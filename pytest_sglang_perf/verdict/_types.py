"""What goes into a verdict and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from pytest_sglang_perf.errors import VerdictError

from ._numbers import LARGEST, SMALLEST, is_number, shorten

__all__ = ["Boot", "Boots", "Estimate", "Status", "Verdict", "as_boots"]


@dataclass(frozen=True)
class Boot:
    """The trials of one metric at one level in one boot of a server: the unit of statistics.

    Attributes:
        trials: Values of the trials, in the order they ran.
        session: Which session it was measured in. Boots of one session share that day's state of the node;
            "" means unknown, and then no drift between sessions can be allowed for.
        unit: Unit of the values; two sides with different units cannot be compared. "" means not said.
    """

    trials: tuple[float, ...]
    session: str = ""
    unit: str = ""


Boots: TypeAlias = Sequence[Boot | Sequence[float]]


class Status(StrEnum):
    """The three answers."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Estimate:
    """A metric over some boots.

    Attributes:
        value: Geometric mean over boots, in the metric's unit.
        interval: Where the long-run mean lies with ``confidence``.
        boots: Number of boots.
        trials: Number of trials in all of them.
        method: How the interval was made.
        warnings: What a reader should know before relying on it.
        confidence: Of the interval.
    """

    value: float
    interval: tuple[float, float]
    boots: int
    trials: int
    method: str
    warnings: tuple[str, ...] = ()
    confidence: float = 0.90


@dataclass(frozen=True)
class Verdict:
    """The answer to one claim. All fields are builtin types.

    Attributes:
        status: ``holds``, ``violated`` or ``inconclusive``.
        effect: Ratio candidate / reference; for absolute limits the candidate's value itself.
        interval: Where the true effect lies with ``confidence``.
        method: How the interval was made, in words.
        boots: Number of boots (candidate, reference).
        trials: Number of trials (candidate, reference).
        warnings: What a reader should know before relying on it.
        more_boots: How many more candidate boots would probably decide; 0 if decided, None if more of them
            cannot.
        more_boots_each: The same where every further boot is taken on both sides, as against a control.
        confidence: Of the interval; each one-sided answer is wrong with at most half of what is missing to 1.
        bound: The limit or limits the interval was judged against, on the scale of ``effect``.
        relation: ``>=``, ``<=``, ``within``, or the operator of an exact claim.
        p_value: One-sided p-value of "the claim is violated", for corrections over many claims.
        drift_sd: Drift between sessions that was allowed for (sd of the log), None where none could be.
        trend: Paired plans: by which ratio the node moved from one boot to the next; None where that cannot be told.
        balanced: Either side began as many pairs as the other, so that the trend cancels.
        sides: Value of each side (candidate, reference); the reference is None for absolute limits.
    """

    status: Status
    effect: float
    interval: tuple[float, float]
    method: str
    boots: tuple[int, int]
    trials: tuple[int, int]
    warnings: tuple[str, ...]
    more_boots: int | None
    confidence: float
    bound: tuple[float, ...]
    relation: str
    p_value: float
    drift_sd: float | None = None
    trend: float | None = None
    sides: tuple[float, float | None] = (math.nan, None)
    more_boots_each: int | None = None
    balanced: bool = True

    def unsettled(self, reasons: Sequence[str]) -> Verdict:
        """The same figures without an answer, because the run was unstable; the reasons lead the warnings."""
        if not reasons:
            return self
        return replace(
            self,
            status=Status.INCONCLUSIVE,
            warnings=(*(f"unstable: {reason}" for reason in reasons), *self.warnings),
            more_boots=None,
            more_boots_each=None,
            p_value=1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Builtin types only: strings, numbers, lists."""
        data = asdict(self)
        data["status"] = self.status.value
        return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_dict`."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        values["status"] = Status(values["status"])
        return cls(**values)


def as_boots(boots: Boots, side: str) -> tuple[Boot, ...]:
    """Check and normalise boots.

    Raises:
        VerdictError: If there is no boot, a boot without trials, or a value that has no logarithm. The
            message says which one it is.
    """
    if isinstance(boots, (str, bytes, Boot)) or not isinstance(boots, Sequence):
        raise VerdictError(f"the {side} must be a sequence of boots, got {type(boots).__name__}")
    if not boots:
        raise VerdictError(f"the {side} has no boots: nothing was measured, so nothing can be compared")
    checked = tuple(_as_boot(boot, side, index) for index, boot in enumerate(boots, start=1))
    units = sorted({boot.unit for boot in checked if boot.unit})
    if len(units) > 1:
        raise VerdictError(f"the boots of the {side} have different units: {', '.join(units)}")
    return checked


def _as_boot(boot: Boot | Sequence[float], side: str, index: int) -> Boot:
    session, unit = (boot.session, boot.unit) if isinstance(boot, Boot) else ("", "")
    trials = boot.trials if isinstance(boot, Boot) else boot
    if isinstance(trials, (str, bytes, Mapping, AbstractSet)) or not isinstance(trials, Iterable):
        raise VerdictError(
            f"boot {index} of the {side} must be a sequence of trial values, got {shorten(trials)}"
            " (a single boot is written [[value, ...]])"
        )
    values = tuple(
        _value(value, f"trial {n} in boot {index} of the {side}") for n, value in enumerate(tuple(trials), start=1)
    )
    if not values:
        raise VerdictError(f"boot {index} of the {side} has no trials")
    return Boot(values, str(session), str(unit))


def _value(value: object, where: str) -> float:
    if not is_number(value):
        raise VerdictError(f"{where} is {shorten(value)}, not a number")
    figure = _float(value)
    if not math.isfinite(figure):
        raise VerdictError(f"{where} is {figure}: a trial without a figure must be left out and said so")
    if figure <= 0:
        raise VerdictError(
            f"{where} is {figure:g}; ratios need positive values. Counts that may be 0 are exact metrics"
        )
    if not SMALLEST <= figure <= LARGEST:
        raise VerdictError(
            f"{where} is {figure:g}, which no server measures: figures lie between {SMALLEST:g} and {LARGEST:g}"
        )
    return figure


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond 1e308
        return math.inf
