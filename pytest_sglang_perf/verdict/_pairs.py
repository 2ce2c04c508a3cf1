"""Evidence from pairs of neighbouring boots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ._evidence import Evidence, StudentT, choose_prior, count, mean_logs, trial_variances
from ._model import FLOOR_SD, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._model import Array
    from ._noise import Noise
    from ._types import Boot

__all__ = ["of_pairs"]

#: From so many pairs on a steady drift of the node is taken out as a covariate, at the price of a degree of freedom.
_PAIRS_FOR_DRIFT = 5
#: Drift that fewer, unbalanced pairs may leave in the effect before it is worth a warning.
_UNBALANCED = 0.002


@dataclass(frozen=True)
class _Line:
    """Least squares fit of the differences: a mean, and with ``slope`` an alternating term for the drift."""

    centre: float
    leverage: float
    squares: float
    df: int


def of_pairs(
    candidate: tuple[Boot, ...], reference: tuple[Boot, ...], first: Sequence[str], noise: Noise | None
) -> Evidence:
    """Differences within pairs: whatever is common to a pair cancels (paired t).

    A steady drift of the node by d a boot adds +d to the difference of a pair that the reference began and -d to that
    of one that the candidate began (``first``, pair by pair); in ABBA order these are pairs 1, 3, 5 and 2, 4, 6. It is
    estimated and reported, and from five pairs on taken out as a covariate. Learned noise moderates the variance
    (Smyth 2004).
    """
    n = len(candidate)
    y, squares = mean_logs(candidate + reference)
    warnings: list[str] = []
    side = np.arange(2 * n) < n
    noise_var = float(np.sum(trial_variances(squares, side, noise, warnings))) / n
    prior, words = choose_prior(Layout(np.ones(n, dtype=bool), np.zeros(n, dtype=int)), noise, warnings)
    d0 = float(prior.df)
    share = noise.drift_share if noise is not None else 0.0
    prior_squares = d0 * (2 * float(prior.var) * (1 - share) + noise_var)

    differences = y[:n] - y[n:]
    sign = np.array([1.0 if side == "reference" else -1.0 for side in first])
    both = 0 < np.count_nonzero(sign > 0) < n
    slope = float(differences[sign > 0].mean() - differences[sign < 0].mean()) / 2 if both else None
    left = abs(float(sign.mean()))  # the share of a boot's drift that is in the mean of the differences
    if n >= _PAIRS_FOR_DRIFT and slope is not None:
        straight, across = differences - slope * sign, _squares(sign)
        line = _Line(float(straight.mean()), 1 / n + sign.mean() ** 2 / across, _squares(straight), n - 2)
        how = "steady drift of the node taken out"
    else:
        line = _Line(float(differences.mean()), 1 / n, _squares(differences), n - 1)
        how = "drift common to a pair cancels"
        if slope is None and n > 1:
            warnings.append(f"the {first[0]} began all pairs: drift of the node is in the effect, and cannot be told")
        elif slope is not None and abs(slope) * left > _UNBALANCED:
            uneven = "odd number of pairs" if n % 2 else "pairs begun unevenly"
            warnings.append(f"{uneven}: drift of the node ({slope:+.1%} a boot) is in the effect")
    variance = _variance(prior_squares, d0, line)
    order = " in ABBA order" if all(one != next_one for one, next_one in pairwise(first)) else ""
    return Evidence(
        distribution=StudentT(line.centre, math.sqrt(variance * line.leverage), d0 + line.df),
        centre=line.centre,
        boot_var=variance,
        fixed_var=0.0,
        df=d0 + line.df,
        drift_sd=None,
        method="; ".join((f"paired t on {count(n, 'pair')} of boots{order}", words, how)),
        warnings=tuple(warnings),
        trend=slope,
        balanced=not left,
    )


def _squares(values: Array) -> float:
    return float(np.sum((values - values.mean()) ** 2))


def _variance(prior_squares: float, d0: float, line: _Line) -> float:
    """Of one difference; two boots, so twice the floor at least."""
    return max((prior_squares + line.squares) / (d0 + line.df), 2 * FLOOR_SD**2)
