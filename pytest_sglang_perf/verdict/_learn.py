"""Learning the noise of one metric from its other levels, configs and sessions.

Five boots say little about a variance. Levels and configs of one node resemble each other, so each level's
variance is taken as drawn from one scaled inverse chi-squared distribution (``s0^2``, ``d0``), which is
itself learned from all of them (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004). With thousands of genes its
parameters may be fixed at an estimate; with a handful of levels they are integrated over, so that few or
disagreeing levels are worth little.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from pytest_sglang_perf.errors import VerdictError

from ._evidence import ENOUGH_TRIALS
from ._model import Layout, likelihood
from ._noise import DRIFT_SHARES, STATED, Noise
from ._numbers import shorten
from ._types import Boot, Boots, as_boots

if TYPE_CHECKING:
    from ._model import Array

__all__ = ["learn_noise", "pool"]

#: Boot variances that are considered: sds from 0.1 % to 50 %.
_LOG_VAR = np.linspace(2 * math.log(0.001), 2 * math.log(0.5), 26)
#: How alike the variances of levels may be (d0). 4 means that two levels in three lie within a factor of 1.6
#: of the typical sd either way, 16 a factor of 1.2; a stated belief, corrected by the levels themselves.
_ALIKE = (2.0, 4.0, 8.0, 16.0)
_MOST_DF = 60.0
#: Where the typical boot sd of a level is sought: the middle of what serving metrics show (0.5 to 5 %), give or take a
#: factor of 4.5. A weak belief: it only keeps a handful of boots from pointing anywhere at all.
_TYPICAL_LOG_VAR = 2 * math.log(0.015)
_TYPICAL_LOG_VAR_SD = 3.0
#: log(90 % point / median) of the inverse chi-squared, falling with its degrees of freedom; for `np.interp`.
_DFS = np.exp(np.linspace(math.log(_MOST_DF), math.log(0.5), 200))
_LOG_RATIOS = np.log(special.chdtri(_DFS, 0.5) / special.chdtri(_DFS, 0.9))


def learn_noise(
    histories: Mapping[Any, Boots] | Iterable[Boots],
    *,
    current: Mapping[Any, Boots] | None = None,
    prior: Noise = STATED,
    leave_out: Hashable | None = None,
) -> Noise:
    """Noise of one level, learned from boots whose means need not agree.

    Args:
        histories: Boots per level (or metric, or config): each item has one mean of its own. Keep metrics of different
            kinds apart; throughput and p99 latency do not share their noise.
        current: Boots of this session for keys of ``histories``. Their mean may have changed, so only their spread
            counts; seen beside the spread over sessions it tells drift from boot noise.
        prior: Gives the belief in drift to begin with, and is returned where nothing can be learned (no item with two
            boots).
        leave_out: Key of the level that is about to be judged. Its own boots are weighed by `compare` itself and
            would count twice.

    Returns:
        Spread between boots, spread between trials, and the belief in drift between sessions.
    """
    items = _by_key(histories)
    fresh = current or {}
    levels = [
        (as_boots(boots, "history"), as_boots(fresh[key], "current") if fresh.get(key) else ())
        for key, boots in items.items()
        if not (isinstance(boots, Sequence) and len(boots) == 0) and (leave_out is None or key != leave_out)
    ]
    trial_sd, trial_df = _trial_noise([old + new for old, new in levels])
    usable = [(old, new) for old, new in levels if len(old) > 1 or len(new) > 1]
    if not usable:
        return Noise(prior.boot_sd, prior.boot_df, trial_sd, trial_df, prior.drift, prior.source)
    logs = np.stack([_likelihood(old, new, trial_sd**2 if trial_df else 0.0) for old, new in usable])
    sd, df, drift = pool(logs, prior.drift)
    count = sum(len(old) + len(new) for old, new in usable)
    return Noise(
        boot_sd=float(sd),
        boot_df=float(df),
        trial_sd=trial_sd,
        trial_df=trial_df,
        drift=tuple(float(weight) for weight in drift),
        source=f"learned from {count} boots over {len(usable)} level{'s' if len(usable) > 1 else ''}",
    )


def _by_key(histories: object) -> dict[Any, Any]:
    if isinstance(histories, Mapping):
        return dict(histories)
    if isinstance(histories, Iterable) and not isinstance(histories, (str, bytes)):
        return dict(enumerate(histories))
    raise VerdictError(f"noise is learned from the boots of several levels, not from {shorten(histories)}")


def pool(log_likelihoods: Array, drift: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """Combine levels.

    Args:
        log_likelihoods: Shape (..., levels, K, J): of boot variance (``_LOG_VAR``) and drift share of each level.
        drift: Belief in each of the J drift shares to begin with.

    Returns:
        Boot sd and degrees of freedom of a further level, shape (...), and belief in the shares, shape (..., J).
    """
    family = _family()  # (H, K)
    peak = np.max(log_likelihoods, axis=(-2, -1), keepdims=True)
    marginal = np.einsum("hk,...kj->...hj", family, np.exp(log_likelihoods - peak))  # (..., levels, H, J)
    joint = np.sum(np.log(np.maximum(marginal, 1e-300)), axis=-3) + np.log(np.maximum(drift, 1e-300))
    typical = -0.5 * ((_LOG_VAR - _TYPICAL_LOG_VAR) / _TYPICAL_LOG_VAR_SD) ** 2
    joint = joint + np.tile(typical, len(_ALIKE))[:, None]
    belief = np.exp(joint - np.max(joint, axis=(-2, -1), keepdims=True))
    belief /= np.sum(belief, axis=(-2, -1), keepdims=True)
    sd, df = _scaled_inverse_chi2(np.sum(belief, axis=-1) @ family)
    return sd, df, np.sum(belief, axis=-2)


def _scaled_inverse_chi2(predictive: Array) -> tuple[Array, Array]:
    """The scaled inverse chi-squared with the same median and 90 % point, as (s0, d0).

    Its upper half is what intervals rest on; how close to 0 a variance may come is of no interest.
    """
    cumulative = np.cumsum(predictive, axis=-1)
    step = _LOG_VAR[1] - _LOG_VAR[0]
    points = []
    for q in (0.5, 0.9):
        above = np.argmax(cumulative >= q, axis=-1)
        mass = np.take_along_axis(predictive, above[..., None], axis=-1)[..., 0]
        excess = np.take_along_axis(cumulative, above[..., None], axis=-1)[..., 0] - q
        points.append(_LOG_VAR[above] + step * (0.5 - excess / mass))
    median, upper = points
    df = np.interp(upper - median, _LOG_RATIOS, _DFS)
    return np.exp(0.5 * (median + np.log(special.chdtri(df, 0.5) / df))), df


def grid_likelihood(y: Array, noise_var: Array, layout: Layout) -> Array:
    """Log likelihood on the grid that `pool` expects, shape (..., K, J)."""
    shape = (*y.shape[:-1], len(_LOG_VAR), len(DRIFT_SHARES))
    drift_var = np.broadcast_to(np.exp(_LOG_VAR)[:, None] * np.asarray(DRIFT_SHARES), shape)
    return likelihood(y, noise_var, layout, np.exp(_LOG_VAR)[:, None] - drift_var, drift_var)[0]


@cache
def _family() -> Array:
    """Densities of log tau^2 under each (d0, s0^2), each summing to 1 on the grid."""
    rows = []
    for d0 in _ALIKE:
        for log_s02 in _LOG_VAR:
            row = -0.5 * d0 * (_LOG_VAR + np.exp(log_s02 - _LOG_VAR))
            row = np.exp(row - row.max())
            rows.append(row / row.sum())
    return np.array(rows)


def _likelihood(old: tuple[Boot, ...], new: tuple[Boot, ...], pooled_trial_var: float) -> Array:
    boots = old + new
    logs = [np.log(np.asarray(boot.trials)) for boot in boots]
    y = np.array([float(values.mean()) for values in logs])
    df = sum(len(values) - 1 for values in logs)
    own = sum(float(np.sum((values - values.mean()) ** 2)) for values in logs)
    trial_var = own / df if df >= ENOUGH_TRIALS else pooled_trial_var
    noise_var = np.array([trial_var / len(values) for values in logs])
    side = np.arange(len(boots)) >= (len(old) if new else 0)
    names = {name: number for number, name in enumerate(dict.fromkeys(boot.session for boot in boots))}
    known = all(boot.session for boot in boots)
    sessions = np.array([names[boot.session] if known else index for index, boot in enumerate(boots)])
    return grid_likelihood(y, noise_var, Layout(side, sessions))


def _trial_noise(levels: list[tuple[Boot, ...]]) -> tuple[float, float]:
    """Smyth's moments estimate (2004, section 6.2): centre and worth of the levels' trial variances."""
    variances, dfs = [], []
    for boots in levels:
        df = sum(len(boot.trials) - 1 for boot in boots)
        if df < 1:
            continue
        squares = sum(float(np.sum((np.log(b.trials) - np.mean(np.log(b.trials))) ** 2)) for b in boots)
        if squares > 0:
            variances.append(squares / df)
            dfs.append(float(df))
    if not variances:
        return 0.0, 0.0
    d = np.array(dfs)
    e = np.log(np.array(variances)) - special.digamma(d / 2) + np.log(d / 2)
    if len(e) == 1:
        return float(math.sqrt(variances[0])), float(min(d[0], 2.0))
    excess = float(np.var(e, ddof=1) - np.mean(special.polygamma(1, d / 2)))
    df0 = float(np.minimum(2 * _inverse_trigamma(np.array(max(excess, 1e-3))), _MOST_DF))
    return float(np.exp((np.mean(e) + special.digamma(df0 / 2) - math.log(df0 / 2)) / 2)), df0


def _inverse_trigamma(value: Array) -> Array:
    """Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    value = np.asarray(value, dtype=float)
    x = 0.5 + 1 / value
    for _ in range(12):
        trigamma = special.polygamma(1, x)
        x = x + trigamma * (1 - trigamma / value) / special.polygamma(2, x)
    return x
