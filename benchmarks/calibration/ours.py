"""Our own rule on many draws at once.

It runs the very model of the package (`fit`, `pool`); what is repeated here for speed, trial noise and the fall back to
Welch, is held to `compare` by a unit test.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from pytest_sglang_perf.verdict._learn import grid_likelihood, pool
from pytest_sglang_perf.verdict._model import FLOOR_SD, Layout, Prior, fit
from pytest_sglang_perf.verdict._noise import DRIFT_SHARES, STATED

from .draws import Sample

CHUNK = 250


def learn(levels: list[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boot sd, its degrees of freedom and belief in drift, per draw, from other levels."""
    parts = []
    for start in range(0, len(levels[0].y), CHUNK):
        logs = []
        for level in levels:
            piece = level.piece(slice(start, start + CHUNK))
            session = piece.session if piece.truth.sessions else np.arange(len(piece.side))
            layout = Layout(np.ones(len(piece.side), dtype=bool), session)
            logs.append(grid_likelihood(piece.y, own_trial_var(piece), layout))
        parts.append(pool(np.stack(logs, axis=-3), STATED))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def own_trial_var(sample: Sample) -> np.ndarray:
    """Variance of each boot's mean from trial noise, pooled over a draw's boots."""
    trials = sample.truth.trials
    if trials < 2:
        return np.zeros_like(sample.y)
    pooled = sample.squares.sum(axis=1) / ((trials - 1) * sample.y.shape[1])
    return np.repeat(pooled[:, None] / trials, sample.y.shape[1], axis=1)


def side_trial_var(sample: Sample) -> np.ndarray:
    """The same, but each side by itself where an F test at 1 % finds them different."""
    trials = sample.truth.trials
    pooled = own_trial_var(sample)
    n_c = int(sample.side.sum())
    n_r = len(sample.side) - n_c
    df_c, df_r = n_c * (trials - 1), n_r * (trials - 1)
    if min(df_c, df_r) < 2:
        return pooled
    var_c = sample.squares[:, sample.side].sum(axis=1) / df_c
    var_r = sample.squares[:, ~sample.side].sum(axis=1) / df_r
    tail = special.fdtr(df_c, df_r, var_c / np.maximum(var_r, 1e-300))
    apart = np.minimum(tail, 1 - tail) <= 0.005
    own = np.where(sample.side, var_c[:, None], var_r[:, None]) / trials
    return np.where(apart[:, None], own, pooled)


def tails(sample: Sample, points: tuple[float, ...], noise: tuple[np.ndarray, ...] | None = None) -> list[np.ndarray]:
    """Probability that log(candidate / reference) is at most each of the points, per draw."""
    session = sample.session if sample.truth.sessions else np.zeros(len(sample.side), dtype=int)
    layout = Layout(sample.side, session)
    result: list[list[np.ndarray]] = [[] for _ in points]
    for start in range(0, len(sample.y), CHUNK):
        part = slice(start, start + CHUNK)
        piece = sample.piece(part)
        if noise is not None:
            prior = Prior(noise[0][part] ** 2, noise[1][part], DRIFT_SHARES, noise[2][part])
        elif layout.df == 0:
            prior = Prior(STATED.boot_sd**2, STATED.boot_df, DRIFT_SHARES, STATED.drift)
        else:
            prior = Prior(0.0, 0.0, DRIFT_SHARES, STATED.drift)
        posterior = fit(piece.y, side_trial_var(piece), layout, prior)
        below = [posterior.below(point) for point in points]
        if noise is None and not layout.drift_matters:
            below = _welch_where_wider(piece, posterior, points, below)
        for column, values in zip(result, below, strict=True):
            column.append(values)
    return [np.concatenate(column) for column in result]


def _welch_where_wider(piece, posterior, points, below):
    a, b = piece.y[:, piece.side], piece.y[:, ~piece.side]
    n_a, n_b = a.shape[1], b.shape[1]
    if min(n_a, n_b) < 3:
        return below
    va = np.maximum(a.var(axis=1, ddof=1), FLOOR_SD**2)
    vb = np.maximum(b.var(axis=1, ddof=1), FLOOR_SD**2)
    tail = special.fdtr(n_a - 1, n_b - 1, va / vb)
    unequal = np.minimum(tail, 1 - tail) <= 0.01
    if not unequal.any():
        return below
    ea, eb = va / n_a, vb / n_b
    df = (ea + eb) ** 2 / (ea**2 / (n_a - 1) + eb**2 / (n_b - 1))
    se, centre = np.sqrt(ea + eb), a.mean(axis=1) - b.mean(axis=1)
    width = posterior.quantile(0.95) - posterior.quantile(0.05)
    use = unequal & (2 * se * special.stdtrit(df, 0.95) > width)
    return [
        np.where(use, special.stdtr(df, (point - centre) / se), values)
        for point, values in zip(points, below, strict=True)
    ]


def sequential(
    sample: Sample, levels: tuple[float, ...], margin: float, noise: tuple[np.ndarray, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Look after 1, 2, ... candidate boots and stop at the first answer.

    Args:
        sample: Draws with as many candidate boots as there are looks.
        levels: Nominal one-sided level of each look.
        margin: Tolerated decrease.
        noise: What `learn` returned.

    Returns:
        Per draw: +1 holds, -1 violated, 0 inconclusive; and the candidate boots that were used.
    """
    answer = np.zeros(len(sample.y), dtype=int)
    used = np.full(len(sample.y), len(levels))
    for look, level in enumerate(levels, start=1):
        (below,) = tails(sample.first(look), (float(np.log1p(-margin)),), noise)
        now = np.where(below <= level, 1, np.where(1 - below <= level, -1, 0))
        fresh = (answer == 0) & (now != 0)
        answer = np.where(fresh, now, answer)
        used = np.where(fresh, look, used)
    return answer, used
