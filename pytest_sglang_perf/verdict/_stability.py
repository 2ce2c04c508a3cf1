"""Reasons not to believe a run: it was still moving, it had two modes, or it scattered beyond use.

Each needs evidence (a test at 1 %) and relevance (a size that matters), so that calm runs of few trials are
not accused, and a perfectly significant drift of 0.1 % is nobody's trouble.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from ._numbers import number
from ._types import Boot, Boots, as_boots

if TYPE_CHECKING:
    from ._model import Array

__all__ = ["kendall_p", "stability", "theil_sen", "two_modes"]

_ALPHA = 0.01
#: 99 % points of `_split_ratio` for n normal values (200 000 draws each).
_SPLIT_N = (6, 7, 8, 9, 10, 12, 14, 16, 20, 25, 30, 40, 60, 80)
_SPLIT_99 = (29.64, 19.75, 14.64, 11.82, 9.9, 7.73, 6.57, 5.8, 4.88, 4.25, 3.86, 3.39, 2.95, 2.72)


def stability(
    boots: Boots, *, trend: float = 0.05, modes: float = 0.05, trial_sd: float = 0.25, boot_sd: float = 0.10
) -> tuple[str, ...]:
    """Why these boots should not be judged; empty if nothing speaks against them.

    Args:
        boots: Trials of each boot in the order they ran.
        trend: Movement from first to last trial of a boot that matters, as a share.
        modes: Distance between two modes that matters, as a share.
        trial_sd: Largest believable sd between trials of a boot. Closed loops at saturation reach 15 % in
            earnest.
        boot_sd: Largest believable sd between boots.

    Raises:
        VerdictError: A bound that is no positive number, or boots that `compare` would refuse.
    """
    for name, bound in (("trend", trend), ("modes", modes), ("trial_sd", trial_sd), ("boot_sd", boot_sd)):
        number(name, bound)
    checked = as_boots(boots, "measurement")
    reasons = [
        _trend_reason(checked, trend),
        *_mode_reasons(checked, modes),
        _spread_reason(_within(checked), trial_sd, "trials of a boot"),
        _spread_reason(_between(checked), boot_sd, "boots"),
    ]
    return tuple(reason for reason in reasons if reason)


def _trend_reason(boots: tuple[Boot, ...], bound: float) -> str:
    series = [np.log(np.asarray(boot.trials)) for boot in boots if len(boot.trials) >= 3]
    if not series or kendall_p(series) > _ALPHA:
        return ""
    moves = [theil_sen(values) * (len(values) - 1) for values in series]
    move = math.expm1(float(np.median(moves)))
    if abs(move) <= bound:
        return ""
    return f"trend within the run: {move:+.1%} from the first to the last trial of a boot; it had not settled"


def _mode_reasons(boots: tuple[Boot, ...], bound: float) -> list[str]:
    reasons = []
    residuals = [np.log(np.asarray(boot.trials)) for boot in boots]
    pooled = np.concatenate([values - values.mean() for values in residuals])
    means = np.array([float(values.mean()) for values in residuals])
    for values, what in ((pooled, "trials"), (means, "boots")):
        gap = two_modes(values)
        if gap > bound:
            reasons.append(f"two modes: the {what} fall into two groups {gap:.1%} apart; a mean of both describes none")
    return reasons


def _within(boots: tuple[Boot, ...]) -> tuple[float, int]:
    logs = [np.log(np.asarray(boot.trials)) for boot in boots]
    return (
        float(sum(np.sum((values - values.mean()) ** 2) for values in logs)),
        sum(len(values) - 1 for values in logs),
    )


def _between(boots: tuple[Boot, ...]) -> tuple[float, int]:
    means = np.array([float(np.mean(np.log(boot.trials))) for boot in boots])
    return float(np.sum((means - means.mean()) ** 2)), len(means) - 1


def _spread_reason(squares: tuple[float, int], bound: float, what: str) -> str:
    total, df = squares
    if df < 1:
        return ""
    surely = math.sqrt(total / float(special.chdtri(df, _ALPHA)))  # one-sided 99 % lower limit of the sd
    if surely <= bound:
        return ""
    return f"spread: sd between {what} is {math.sqrt(total / df):.1%}, surely above the bound of {bound:.1%}"


def kendall_p(series: list[Array]) -> float:
    """Two-sided exact p-value of "no trend" over several series together.

    Mann-Kendall counts of rising minus falling pairs (Mann, Econometrica 13, 1945), summed over the series
    (Hirsch and Slack, Water Resour. Res. 20, 1984). Its null distribution follows from that of inversions in
    permutations; ties count nothing, which only makes the test more careful.
    """
    score = 0
    null = np.ones(1)
    for values in series:
        n = len(values)
        score += int(np.sum(np.sign(values[None, :] - values[:, None])[np.triu_indices(n, 1)]))
        for k in range(2, n + 1):
            null = np.convolve(null, np.full(k, 1 / k))
    pairs = len(null) - 1  # the score runs from -pairs to +pairs in steps of 2
    tail = float(np.sum(null[: (pairs - abs(score)) // 2 + 1]))
    return min(1.0, 2 * tail)


def theil_sen(values: Array) -> float:
    """Median slope per step (Theil 1950; Sen, J. Am. Stat. Assoc. 63, 1968)."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def two_modes(values: Array) -> float:
    """Distance of two groups as a share, 0.0 if one group explains the values.

    The best split into two groups by the ratio of squares between to within (Engelman and Hartigan, J. Am.
    Stat. Assoc. 64, 1969), each group holding at least a fifth of the values, so that a lone outlier is none.
    """
    n = len(values)
    if n < _SPLIT_N[0]:
        return 0.0
    x = np.sort(values) - np.mean(values)
    least = max(2, math.ceil(n / 5))
    k = np.arange(least, n - least + 1)
    sums = np.cumsum(x)
    between = sums[k - 1] ** 2 * (1 / k + 1 / (n - k))
    best = int(np.argmax(between))
    within = float(np.sum(x**2) - between[best])
    limit = float(np.interp(math.log(n), np.log(_SPLIT_N), _SPLIT_99))
    if not between[best] > limit * max(within, 1e-18):
        return 0.0
    split = k[best]
    return math.expm1(float(x[split:].mean() - x[:split].mean()))
