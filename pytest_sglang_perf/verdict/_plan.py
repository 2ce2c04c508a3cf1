"""Plans: how much to measure, decided before the first figure is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np
from scipy import special

from pytest_sglang_perf.errors import VerdictError

from ._numbers import MOST_BOOTS, as_float, check_confidence, is_count, items, shorten
from ._spending import Spending, nominal_levels
from ._types import Status, Verdict, as_boots

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SequentialPlan", "TrialPlan"]


@dataclass(frozen=True)
class SequentialPlan:
    """Boots until decided, or until the budget ends, with the error split over the looks.

    The plan is a value: `after` returns the plan as it stands once a look was taken.

    Attributes:
        looks: Candidate boots (pairs, in a paired plan) at each look, rising; the last is the budget.
        reference: Boots of the reference that are there already; 0 in a paired plan.
        confidence: Of the whole plan, over all looks together.
        spending: ``obrien-fleming`` keeps the error for the last look (fewest wrong or missing answers),
            ``pocock`` spends it early (fewest boots where the effect is large), ``power`` lies between.
        taken: Looks taken so far.
    """

    looks: tuple[int, ...]
    reference: int = 0
    confidence: float = 0.90
    spending: Spending = "obrien-fleming"
    taken: int = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        looks = self.looks
        counts = (*items(looks), self.reference, self.taken)
        if len(counts) < 3 or not all(map(is_count, counts)):
            raise VerdictError(f"a plan needs rising whole numbers of boots at its looks, got {shorten(looks)}")
        if (
            any(b <= a for a, b in zip((0, *looks), looks, strict=False))
            or len(looks) > MOST_BOOTS
            or looks[-1] > MOST_BOOTS
        ):
            raise VerdictError(f"a plan needs rising numbers of boots, at most {MOST_BOOTS}, got {shorten(looks)}")
        if self.taken > len(looks):
            raise VerdictError(f"a plan of {len(looks)} looks cannot have {self.taken} of them taken")
        if self.spending not in get_args(Spending):
            raise VerdictError(f"spending is one of {', '.join(get_args(Spending))}, got {shorten(self.spending)}")
        object.__setattr__(self, "_levels", nominal_levels(self._information(), self._alpha, self.spending))

    _levels = ()  # filled above; not a field, because it follows from the others

    @property
    def _alpha(self) -> float:
        return (1 - self.confidence) / 2

    def _information(self) -> list[float]:
        """Inverse variance of the effect at each look, boots of both sides being alike."""
        fixed = 1 / self.reference if self.reference else 0.0
        return [1 / (1 / n + fixed) for n in self.looks]

    @property
    def levels(self) -> tuple[float, ...]:
        """Nominal one-sided level of each look."""
        return tuple(self._levels)

    @property
    def done(self) -> bool:
        """Whether all looks are taken."""
        return self.taken >= len(self.looks)

    @property
    def boots_taken(self) -> int:
        """Candidate boots measured up to the last look."""
        return self.looks[self.taken - 1] if self.taken else 0

    def confidence_at(self, look: int) -> float:
        """Confidence to judge look 1, 2, ... with."""
        if not is_count(look) or not 1 <= look <= len(self.looks):
            raise VerdictError(f"look {look} is not one of the {len(self.looks)} of this plan")
        return 1 - 2 * self.levels[look - 1]

    def next(self, *verdicts: Verdict) -> int:
        """How many more boots to take now; 0 when all is decided or the budget is spent.

        Args:
            verdicts: The answers of the last look, one per claim; none before the first.
        """
        if self.done or (verdicts and all(v.status is not Status.INCONCLUSIVE for v in verdicts)):
            return 0
        return self.looks[self.taken] - self.boots_taken

    def after(self, boots: int) -> SequentialPlan:
        """The plan once the next look was taken with so many boots."""
        if self.done:
            raise VerdictError("all looks of this plan are taken; a further one would spend error it does not have")
        if boots != self.looks[self.taken]:
            raise VerdictError(f"look {self.taken + 1} is planned at {self.looks[self.taken]} boots, not at {boots}")
        return replace(self, taken=self.taken + 1)

    def error_spent(self) -> float:
        """One-sided error used up by the looks taken so far."""
        if not self.taken:
            return 0.0
        from ._spending import spent

        information = self._information()
        return spent(information[self.taken - 1] / information[-1], self._alpha, self.spending)

    def cost(self, boot_s: float, trials_s: float, *, per_look: int = 1) -> tuple[float, float]:
        """Seconds at the first look and at the last.

        Args:
            boot_s: Seconds to boot one server.
            trials_s: Seconds to run all levels and trials against it.
            per_look: Servers booted for each counted boot: 2 in a paired plan.
        """
        one = (boot_s + trials_s) * per_look
        return self.looks[0] * one, self.looks[-1] * one

    def describe(self) -> str:
        """The plan in one or two lines, to be printed beforehand and after."""
        noun = "boots" if self.reference else "boots or pairs"
        looks = ", ".join(f"{n} ({level:.2%})" for n, level in zip(self.looks, self.levels, strict=True))
        against = f" against {self.reference} stored" if self.reference else ""
        text = (
            f"up to {self.looks[-1]} {noun}{against}, stopping when decided; looks at {looks} one-sided,"
            f" {self._alpha:.1%} in all ({self.spending})"
        )
        if self.taken:
            text += (
                f"; spent: {self.taken} of {len(self.looks)} looks, {self.boots_taken} {noun},"
                f" {self.error_spent():.2%} of the error"
            )
        return text


@dataclass(frozen=True)
class TrialPlan:
    """Trials within one boot until their mean is known well enough.

    More trials cannot replace boots: precision beyond a fraction of the boot sd is wasted.

    Attributes:
        precision: Wanted half-width of the boot's mean, as a share (0.01 for 1 %).
        least: Trials before the spread is looked at.
        most: Budget.
        confidence: Of that half-width.
    """

    precision: float = 0.01
    least: int = 3
    most: int = 10
    confidence: float = 0.90

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        precision = as_float(self.precision)
        counts = is_count(self.least) and is_count(self.most)
        if precision is None or not 0 < precision < 1 or not counts or not 2 <= self.least <= self.most:
            raise VerdictError(
                "a trial plan needs 0 < precision < 1 and 2 <= least <= most,"
                f" got {shorten(self.precision)}, {shorten(self.least)} and {shorten(self.most)}"
            )

    def half_width(self, trials: Sequence[float]) -> float:
        """Half-width of the t interval of the mean log."""
        values = _values(trials)
        if len(values) < 2:
            return math.inf
        logs = np.log(np.asarray(values))
        t = float(special.stdtrit(len(logs) - 1, 1 - (1 - self.confidence) / 2))
        return t * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))

    def next(self, trials: Sequence[float]) -> int:
        """How many more trials to run now; 0 when they suffice.

        Stein's two-stage rule (Ann. Math. Stat. 16, 1945), one trial at a time.
        """
        n = len(_values(trials))
        if n < self.least:
            return self.least - n
        if n >= self.most or self.half_width(trials) <= self.precision:
            return 0
        return 1


def _values(trials: Sequence[float]) -> tuple[float, ...]:
    return () if isinstance(trials, (list, tuple)) and not trials else as_boots([trials], "plan")[0].trials
