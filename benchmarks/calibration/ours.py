"""Our own rule on many draws at once.

It runs the very model of the package (`fit`, `pool`). What is repeated here for speed, trial noise and the fall back to
Welch, is held to `compare` by a unit test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import special

from pytest_sglang_perf.verdict._claims import caution
from pytest_sglang_perf.verdict._evidence import UNLIKE
from pytest_sglang_perf.verdict._learn import grid_likelihood, pool
from pytest_sglang_perf.verdict._model import FLOOR_SD, Layout, Posterior, Prior, fit
from pytest_sglang_perf.verdict._noise import DRIFT_SHARES, STATED

from .draws import Sample

_CHUNK = 250


class Learned(NamedTuple):
    """What `learn_noise` finds, per draw."""

    boot_sd: np.ndarray
    boot_df: np.ndarray
    drift: np.ndarray


def learn(levels: list[Sample]) -> Learned:
    """Noise from other levels, the boots of this session among them."""
    parts = []
    for start in range(0, len(levels[0].logs), _CHUNK):
        logs = []
        for level in levels:
            piece = level.piece(slice(start, start + _CHUNK))
            session = piece.session if piece.truth.sessions else np.arange(len(piece.side))
            logs.append(grid_likelihood(piece.y, pooled_trial_var(piece), Layout(piece.side, session)))
        parts.append(pool(np.stack(logs, axis=-3), STATED.drift))
    return Learned(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def pooled_trial_var(sample: Sample) -> np.ndarray:
    """Variance of each boot's mean from trial noise, pooled over a draw's boots."""
    trials, boots = sample.truth.trials, len(sample.side)
    if trials < 2:
        return np.zeros_like(sample.y)
    pooled = sample.squares.sum(axis=1) / ((trials - 1) * boots)
    return np.repeat(pooled[:, None] / trials, boots, axis=1)


def trial_var(sample: Sample) -> np.ndarray:
    """The same, but each side by itself where an F test at 1 % finds them different."""
    trials, n_c = sample.truth.trials, int(sample.side.sum())
    pooled = pooled_trial_var(sample)
    df_c, df_r = n_c * (trials - 1), (len(sample.side) - n_c) * (trials - 1)
    if min(df_c, df_r) < 2:
        return pooled
    var_c = sample.squares[:, sample.side].sum(axis=1) / df_c
    var_r = sample.squares[:, ~sample.side].sum(axis=1) / df_r
    tail = special.fdtr(df_c, df_r, var_c / np.maximum(var_r, 1e-300))
    apart = np.minimum(tail, 1 - tail) <= 0.005
    own = np.where(sample.side, var_c[:, None], var_r[:, None]) / trials
    return np.where(apart[:, None], own, pooled)


def below(
    sample: Sample, points: tuple[float, ...], learned: Learned | None = None, *, alike: bool = True
) -> list[np.ndarray]:
    """Probability that log(candidate / reference) is at most each of the points, per draw."""
    session = sample.session if sample.truth.sessions else np.zeros(len(sample.side), dtype=int)
    layout = Layout(sample.side, session)
    result: list[list[np.ndarray]] = [[] for _ in points]
    for start in range(0, len(sample.logs), _CHUNK):
        part = slice(start, start + _CHUNK)
        piece = sample.piece(part)
        if learned is not None:
            prior = Prior(learned.boot_sd[part] ** 2, learned.boot_df[part], DRIFT_SHARES, learned.drift[part])
        elif layout.df == 0:
            prior = Prior(STATED.boot_sd**2, STATED.boot_df, DRIFT_SHARES, STATED.drift)
        else:
            prior = Prior(0.0, 0.0, DRIFT_SHARES, STATED.drift)
        if not alike:
            prior = replace(prior, ratios=UNLIKE)
        posterior = fit(piece.y, trial_var(piece), layout, prior)
        chances = [posterior.below(point) for point in points]
        if alike and not layout.drift_matters:
            chances = _welch_where_wider(piece, posterior, points, chances)
        for column, values in zip(result, chances, strict=True):
            column.append(values)
    return [np.concatenate(column) for column in result]


def _welch_where_wider(
    piece: Sample, posterior: Posterior, points: tuple[float, ...], chances: list[np.ndarray]
) -> list[np.ndarray]:
    a, b = piece.y[:, piece.side], piece.y[:, ~piece.side]
    n_a, n_b = a.shape[1], b.shape[1]
    if min(n_a, n_b) < 3:
        return chances
    var_a, var_b = (np.maximum(side.var(axis=1, ddof=1), FLOOR_SD**2) for side in (a, b))
    tail = special.fdtr(n_a - 1, n_b - 1, var_a / var_b)
    unequal = np.minimum(tail, 1 - tail) <= 0.01
    if not unequal.any():
        return chances
    ea, eb = var_a / n_a, var_b / n_b
    df = (ea + eb) ** 2 / (ea**2 / (n_a - 1) + eb**2 / (n_b - 1))
    se, centre = np.sqrt(ea + eb), a.mean(axis=1) - b.mean(axis=1)
    width = posterior.quantile(0.95) - posterior.quantile(0.05)
    use = unequal & (2 * se * special.stdtrit(df, 0.95) > width)
    return [
        np.where(use, special.stdtr(df, (point - centre) / se), values)
        for point, values in zip(points, chances, strict=True)
    ]


def sequential(
    sample: Sample,
    looks: tuple[int, ...],
    levels: tuple[float, ...],
    margin: float,
    others: list[Sample] | None = None,
    *,
    alike: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Look after so many candidate boots and stop at the first answer.

    Args:
        sample: Draws with as many candidate boots as the last look has.
        looks: Candidate boots at each look.
        levels: Nominal one-sided level of each look.
        margin: Tolerated decrease.
        others: The same boots at other levels, to learn noise from; None for no noise model.
        alike: As in `compare`.

    Returns:
        Per draw: +1 holds, -1 violated, 0 inconclusive; and the candidate boots that were used.
    """
    answer = np.zeros(len(sample.logs), dtype=int)
    used = np.full(len(sample.logs), looks[-1])
    for look, level in zip(looks, levels, strict=True):
        open_ = np.flatnonzero(answer == 0)
        if not len(open_):
            break
        seen = _rows(sample.first(look), open_)
        learned = learn([_rows(other.first(look), open_) for other in others]) if others is not None else None
        (chance,) = below(seen, (float(np.log1p(-margin)),), learned, alike=alike)
        answer[open_] = np.where(chance <= level, 1, np.where(accused(chance, level, seen), -1, 0))
        used[open_] = look
    return answer, used


def accused(chance: np.ndarray, level: float, sample: Sample) -> np.ndarray:
    """Whether the claim is violated, given the probability that the effect is at most the limit."""
    share = caution(sample.truth.candidate, sample.truth.reference, drifting=sample.truth.sessions > 0)
    return 1 - chance <= level * share


def _rows(sample: Sample, rows: np.ndarray) -> Sample:
    return Sample(sample.logs[rows], sample.side, sample.session, sample.truth)
