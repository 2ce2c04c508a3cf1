"""From boots to the distribution of an effect."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy import special

from ._model import FLOOR_SD, Layout, Posterior, Prior, fit
from ._noise import DRIFT_SHARES, STATED, Noise

if TYPE_CHECKING:
    from ._types import Boot

__all__ = [
    "Distribution",
    "Evidence",
    "StudentT",
    "choose_prior",
    "count",
    "mean_logs",
    "of_difference",
    "of_level",
    "trial_variances",
]

#: Fewer stored sessions than this cannot show how much the node drifts from one to the next.
ENOUGH_SESSIONS = 5
#: From so many degrees of freedom on a level's own trials say what their noise is.
ENOUGH_TRIALS = 3
#: F tests at these levels ask whether the two sides differ in spread before their spreads are pooled.
_UNEQUAL_TRIALS = 0.01
_UNEQUAL_BOOTS = 0.02
#: Variance of candidate over reference where they are different configurations, and the stated belief in each: a
#: candidate that is up to four times as noisy is what false alarms come from (recorded: 0.5 % with CUDA graphs, 13 %
#: without), so most belief is in that. Chosen by calibration: at three times the spread at most 8 % are wrong.
UNLIKE = ((1.0, 0.25), (4.0, 0.15), (16.0, 0.45), (1 / 9, 0.15))
#: A ratio beyond this is more often seconds against milliseconds than a change.
_IMPLAUSIBLE = math.log(100)


class Distribution(Protocol):
    """What is known about a difference of logs."""

    def below(self, x: float) -> float | np.ndarray:
        """Probability that it is at most ``x``."""

    def quantile(self, q: float) -> float | np.ndarray:
        """The value below which it lies with probability ``q``."""


@dataclass(frozen=True)
class StudentT:
    """Welch's approximate distribution of a difference (Welch, Biometrika 34, 1947)."""

    centre: float
    se: float
    df: float

    def below(self, x: float) -> float:
        """Probability that the difference is at most ``x``."""
        return float(special.stdtr(self.df, (x - self.centre) / self.se))

    def quantile(self, q: float) -> float:
        """The value below which the difference lies with probability ``q``."""
        return self.centre + self.se * float(special.stdtrit(self.df, q))


@dataclass(frozen=True)
class Evidence:
    """All that a claim needs to know about its boots.

    Attributes:
        distribution: Of log(candidate / reference), or of log(candidate) without a reference.
        centre: Its middle, as a log.
        boot_var: Expected variance of one boot's mean within a session (between boots plus trial noise).
        fixed_var: Part of the squared standard error that more candidate boots leave as it is.
        df: Degrees of freedom behind ``boot_var``, for planning.
        drift_sd: Drift between sessions that was allowed for, None if that was not possible.
        method: In words.
        warnings: In words.
        trend: Pairs only: movement of the node from one boot to the next, as a log.
        balanced: Pairs only: either side began as many as the other.
    """

    distribution: Distribution
    centre: float
    boot_var: float
    fixed_var: float
    df: float
    drift_sd: float | None
    method: str
    warnings: tuple[str, ...]
    trend: float | None = None
    balanced: bool = True


def of_difference(
    candidate: tuple[Boot, ...], reference: tuple[Boot, ...], noise: Noise | None, *, alike: bool = True
) -> Evidence:
    """Candidate against reference, each boot one observation."""
    boots = reference + candidate
    side = np.array([False] * len(reference) + [True] * len(candidate))
    y, squares = mean_logs(boots)
    warnings: list[str] = []
    noise_var = trial_variances(squares, side, noise, warnings)
    sessions, known = _sessions(boots)
    layout = Layout(side, sessions)
    prior, words = choose_prior(layout, noise, warnings)
    if not alike:
        prior = replace(prior, ratios=UNLIKE)
        words += "; the sides may differ in spread"
    posterior = fit(y, noise_var, layout, prior)
    drifting = known and layout.drift_matters
    method = [_design_in_words(len(candidate), len(reference)), words]
    if not known:
        method.append("no sessions recorded, so no drift between them allowed for")
    elif drifting:
        method.append("drift between sessions integrated over")
        _warn_about_sessions(candidate, reference, warnings)
    else:
        method.append("one session, so its drift cancels")
    evidence = _evidence(posterior, noise_var, layout, prior, drifting, method, warnings)
    if abs(evidence.centre) > _IMPLAUSIBLE:
        warnings.append(
            f"the sides differ by a factor of {math.exp(abs(evidence.centre)):.0f}: are their units the same?"
        )
    if np.ptp(y) == 0:
        warnings.append(f"all values are identical; boots are taken to vary by {FLOOR_SD:.1%} at least")
    welch = None if drifting or not alike else _welch(y, side, evidence)
    if welch is not None:
        warnings.append(
            "the two sides differ in spread (F test, 2 %): Welch's interval is used, which does not pool it"
        )
        method[1] = "Welch-Satterthwaite, spreads not pooled"
        evidence = replace(evidence, distribution=welch, centre=welch.centre, df=welch.df)
    return replace(evidence, method="; ".join(method), warnings=tuple(warnings))


def of_level(boots: tuple[Boot, ...], noise: Noise | None) -> Evidence:
    """The mean of the boots themselves."""
    y, squares = mean_logs(boots)
    warnings: list[str] = []
    side = np.ones(len(boots), dtype=bool)
    noise_var = trial_variances(squares, side, noise, warnings)
    sessions, known = _sessions(boots)
    layout = Layout(side, sessions)
    prior, words = choose_prior(layout, noise, warnings)
    posterior = fit(y, noise_var, layout, prior)
    drifting = known and layout.drift_matters
    method = [f"t interval on {count(len(boots), 'boot')}", words]
    if np.ptp(y) == 0 and len(y) > 1:
        warnings.append(f"all values are identical; boots are taken to vary by {FLOOR_SD:.1%} at least")
    return _evidence(posterior, noise_var, layout, prior, drifting, method, warnings)


def trial_variances(
    squares: list[tuple[float, int]], side: np.ndarray, noise: Noise | None, warnings: list[str]
) -> np.ndarray:
    """Variance of each boot's mean from trial noise alone.

    The trial variance is pooled over the boots of both sides, unless they differ (F test, 1 %). Levels differ
    in it by an order of magnitude (0.5 % at concurrency 1 and 15 % at 256, recorded), so what was learned at
    others moderates it (Smyth 2004, equation 4) only where the level's own trials say next to nothing. Where
    no boot has two trials and nothing is learned it is part of the boot variance, as it must be.

    Args:
        squares: Per boot: sum of squared deviations of its log trials, number of trials.
        side: Per boot, true for the candidate.
        noise: Learned noise.
        warnings: Appended to.
    """
    prior_df, prior_var = (noise.trial_df, noise.trial_sd**2) if noise is not None else (0.0, 0.0)
    groups = [side == value for value in (True, False) if (side == value).any()]
    sums = [sum(s for (s, _), m in zip(squares, group, strict=True) if m) for group in groups]
    dfs = [sum(t - 1 for (_, t), m in zip(squares, group, strict=True) if m) for group in groups]
    pooled = True
    if len(groups) == 2 and min(dfs) >= 2 and min(sums) > 0:
        ratio = (sums[0] / dfs[0]) / (sums[1] / dfs[1])
        tail = float(special.fdtr(dfs[0], dfs[1], ratio))
        pooled = min(tail, 1 - tail) > _UNEQUAL_TRIALS / 2
    if pooled:
        groups, sums, dfs = [np.ones_like(side, dtype=bool)], [sum(sums)], [sum(dfs)]
    else:
        warnings.append("the two sides differ in trial noise (F test, 1 %), so it is not pooled over them")
    result = np.zeros(len(side))
    counts = np.array([t for _, t in squares], dtype=float)
    for group, total, df in zip(groups, sums, dfs, strict=True):
        d0 = prior_df if df < ENOUGH_TRIALS else 0.0
        if df + d0 > 0:
            result[group] = (total + d0 * prior_var) / (df + d0) / counts[group]
    return result


def mean_logs(boots: tuple[Boot, ...]) -> tuple[np.ndarray, list[tuple[float, int]]]:
    """Mean log of each boot, and what its trials say about trial noise."""
    logs = [np.log(np.asarray(boot.trials)) for boot in boots]
    return (
        np.array([float(np.mean(values)) for values in logs]),
        [(float(np.sum((values - np.mean(values)) ** 2)), len(values)) for values in logs],
    )


def _sessions(boots: tuple[Boot, ...]) -> tuple[np.ndarray, bool]:
    """Session numbers, and whether they are known (one unknown session makes them useless)."""
    if not all(boot.session for boot in boots):
        return np.zeros(len(boots), dtype=int), False
    names = {name: number for number, name in enumerate(dict.fromkeys(boot.session for boot in boots))}
    return np.array([names[boot.session] for boot in boots]), True


def choose_prior(layout: Layout, noise: Noise | None, warnings: list[str]) -> tuple[Prior, str]:
    belief = noise
    if layout.df == 0 and (noise is None or noise.boot_df == 0):
        belief = STATED
        warnings.append(
            f"one boot says nothing about the spread between boots: the answer rests on the {STATED.source}"
        )
    if belief is None or belief.boot_df == 0:
        weights = (belief or STATED).drift
        return Prior(0.0, 0.0, DRIFT_SHARES, weights), "spread between boots from these boots alone"
    if layout.df == 0:
        words = f"spread between boots from the {belief.source}"
    else:
        known = f"sd {belief.boot_sd:.2%}, {belief.boot_df:.1f} df, {belief.source}"
        words = f"spread between boots moderated by noise ({known})"
    drift = noise.drift if noise is not None else STATED.drift
    return Prior(belief.boot_sd**2, belief.boot_df, DRIFT_SHARES, drift), words


def _design_in_words(n_c: int, n_r: int) -> str:
    if n_c == 1 and n_r > 1:
        return f"prediction interval, 1 new boot against the spread of {n_r}"
    return f"t interval on boots, {n_c} against {n_r}"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n != 1 else ''}"


def _warn_about_sessions(candidate: tuple[Boot, ...], reference: tuple[Boot, ...], warnings: list[str]) -> None:
    ours, theirs = {b.session for b in candidate}, {b.session for b in reference}
    if len(theirs) < ENOUGH_SESSIONS and ours - theirs:
        warnings.append(
            f"the reference comes from {count(len(theirs), 'session')}: drift of the node between sessions"
            f" is mostly assumed, not seen ({ENOUGH_SESSIONS} sessions show it)"
        )


def _evidence(
    posterior: Posterior,
    noise_var: np.ndarray,
    layout: Layout,
    prior: Prior,
    drifting: bool,
    method: list[str],
    warnings: list[str],
) -> Evidence:
    boot_var = float(posterior.expect(posterior.boot_var)) + float(np.mean(noise_var) - np.min(noise_var))
    centre = float(posterior.quantile(0.5))
    n_c = int(layout.candidate.sum())
    se2 = float(posterior.expect(posterior.sd**2))
    return Evidence(
        distribution=posterior,
        centre=centre,
        boot_var=boot_var,
        fixed_var=max(se2 - boot_var / n_c, 0.0),
        df=max(layout.df + float(prior.df), 1.0),
        drift_sd=math.sqrt(float(posterior.expect(posterior.drift_var))) if drifting else None,
        method="; ".join(method),
        warnings=tuple(warnings),
    )


def _welch(y: np.ndarray, side: np.ndarray, evidence: Evidence) -> StudentT | None:
    """Welch's interval where the sides' spreads differ and pooling would make the interval too narrow."""
    a, b = y[side], y[~side]
    if min(len(a), len(b)) < 3:
        return None
    va, vb = max(float(np.var(a, ddof=1)), FLOOR_SD**2), max(float(np.var(b, ddof=1)), FLOOR_SD**2)
    tail = float(special.fdtr(len(a) - 1, len(b) - 1, va / vb))
    if min(tail, 1 - tail) > _UNEQUAL_BOOTS / 2:
        return None
    ea, eb = va / len(a), vb / len(b)
    df = (ea + eb) ** 2 / (ea**2 / (len(a) - 1) + eb**2 / (len(b) - 1))  # Satterthwaite, Biometrics 2, 1946
    welch = StudentT(float(a.mean() - b.mean()), math.sqrt(ea + eb), df)
    pooled = float(evidence.distribution.quantile(0.95)) - float(evidence.distribution.quantile(0.05))
    return welch if welch.quantile(0.95) - welch.quantile(0.05) > pooled else None
