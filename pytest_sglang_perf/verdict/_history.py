"""A metric over time: where it changed, and whether it crept away under every single gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from pytest_sglang_perf.errors import VerdictError

from ._model import FLOOR_SD
from ._numbers import LARGEST, is_count, number, shorten
from ._stability import kendall_p, theil_sen
from ._types import Boots, as_boots

if TYPE_CHECKING:
    from ._model import Array

__all__ = ["ChangePoint", "SlowDrift", "change_points", "slow_drift"]

_WINDOW = 5
_PENALTY = 3.0
_CHI2_MEDIAN = 0.4549  # of one degree of freedom


@dataclass(frozen=True)
class ChangePoint:
    """A place where the level of a metric changed.

    Attributes:
        index: First boot of the new level, counted from 0.
        before: Geometric mean of the boots since the change before.
        after: Geometric mean of the boots up to the next change.
        ratio: ``after / before``.
        p_value: Two-sided, corrected for having searched all places.
    """

    index: int
    before: float
    after: float
    ratio: float
    p_value: float


@dataclass(frozen=True)
class SlowDrift:
    """A trend beyond the margin.

    Attributes:
        ratio: Last against first boot along the trend.
        p_value: Of "no trend", two-sided.
        worst_step: The worst ratio of a boot to the mean of the (up to five) boots before it.
        hidden: No such step was beyond the margin: every single gate let it pass.
    """

    ratio: float
    p_value: float
    worst_step: float
    hidden: bool


def change_points(series: Boots, *, alpha: float = 0.01, least: int = 2) -> tuple[ChangePoint, ...]:
    """Where the level changed.

    The partition with least squares within its segments plus a penalty for each (Jackson and others, IEEE
    Signal Proc. Lett. 12, 2005), so that a dip and its recovery cannot hide each other. Then each place must
    pass a t test between its neighbours, corrected by Bonferroni for all places it might have had, or is
    dropped, the weakest first.

    Args:
        series: Boots in the order of time.
        alpha: Error of each test after correction.
        least: Boots of a level; with 2, one strange boot is never a change.
    """
    values = _means(series)
    number("alpha", alpha, below=1.0)
    if not is_count(least) or least < 2:
        raise VerdictError(f"a level needs two boots at least, got least={shorten(least)}")
    found = _partition(values - values.mean(), least)
    while True:
        edges = [0, *found, len(values)]
        tests = [
            _t_test(values[edges[i] : edges[i + 1]], values[edges[i + 1] : edges[i + 2]]) for i in range(len(found))
        ]
        p_values = [min(1.0, p * max(1, edges[i + 2] - edges[i] - 2 * least + 1)) for i, p in enumerate(tests)]
        if not found or max(p_values) <= alpha:
            break
        found.pop(int(np.argmax(p_values)))
    result = []
    for i, index in enumerate(found):
        before, after = values[edges[i] : index].mean(), values[index : edges[i + 2]].mean()
        result.append(
            ChangePoint(index, math.exp(before), math.exp(after), math.exp(after - before), float(p_values[i]))
        )
    return tuple(result)


def slow_drift(
    series: Boots, *, margin: float, better: Literal["higher", "lower"], alpha: float = 0.01
) -> SlowDrift | None:
    """A worsening trend whose sum is beyond the margin, or None.

    Exact Mann-Kendall test and Theil-Sen slope over the boots in the order of time.
    """
    if better not in ("higher", "lower"):
        raise VerdictError(f"better must be 'higher' or 'lower', got {shorten(better)}")
    number("margin", margin, below=1.0 if better == "higher" else LARGEST)
    number("alpha", alpha, below=1.0)
    values = _means(series)
    if len(values) < _WINDOW:
        return None
    p = kendall_p([values])
    total = theil_sen(values) * (len(values) - 1)
    sign = 1.0 if better == "higher" else -1.0
    limit = math.log(1 - margin) if better == "higher" else -math.log(1 + margin)
    if p > alpha or sign * total >= limit:
        return None
    steps = [sign * float(values[i] - values[max(0, i - _WINDOW) : i].mean()) for i in range(1, len(values))]
    worst = min(steps)
    return SlowDrift(math.exp(total), p, math.exp(sign * worst), worst >= limit)


def _means(series: Boots) -> Array:
    return np.array([float(np.mean(np.log(boot.trials))) for boot in as_boots(series, "history")])


def _partition(values: Array, least: int) -> list[int]:
    """Starts of the segments (but the first) of the cheapest partition, by dynamic programming."""
    n = len(values)
    if n < 2 * least:
        return []
    steps = np.diff(values)
    # Half the squared median step over its normal consistency factor: changes of level hardly touch it.
    variance = max(float(np.median(steps**2)) / (2 * _CHI2_MEDIAN), FLOOR_SD**2)
    penalty = _PENALTY * variance * math.log(n)
    sums, squares = np.r_[0.0, np.cumsum(values)], np.r_[0.0, np.cumsum(values**2)]
    cost = np.full(n + 1, math.inf)
    cost[0] = -penalty
    origin = np.zeros(n + 1, dtype=int)
    for stop in range(least, n + 1):
        starts = np.r_[0, np.arange(least, stop - least + 1)]
        size = stop - starts
        within = squares[stop] - squares[starts] - (sums[stop] - sums[starts]) ** 2 / size
        total = cost[starts] + within + penalty
        best = int(np.argmin(total))
        cost[stop], origin[stop] = total[best], starts[best]
    places = []
    place = int(origin[n])
    while place:
        places.append(place)
        place = int(origin[place])
    return places[::-1]


def _t_test(a: Array, b: Array) -> float:
    """Two-sided p-value of Student's t (Biometrika 6, 1908), with the floor of a boot's spread."""
    df = len(a) + len(b) - 2
    squares = float(np.sum((a - a.mean()) ** 2) + np.sum((b - b.mean()) ** 2))
    variance = max(squares / df, FLOOR_SD**2)
    t = abs(float(a.mean() - b.mean())) / math.sqrt(variance * (1 / len(a) + 1 / len(b)))
    return float(2 * special.stdtr(df, -t))
