"""What other tools would say about the same draws. Each rule returns +1 (fine), -1 (regression), 0 (no answer).

The rules are written from their documentation and sources, with the margin of the cell in place of their default
threshold, so that they answer the same question. Higher values are better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from .draws import Sample

#: Requests of one boot, for the rule that compares requests, and the spread of their latencies.
REQUESTS = 500
REQUEST_SD = 0.3


def fixed_threshold(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """One new boot against the mean of the stored ones: sglang's and vLLM's own CI, many house scripts."""
    new, stored = np.exp(sample.y[:, sample.side][:, 0]), np.exp(sample.y[:, ~sample.side]).mean(axis=1)
    return np.where(new < (1 - margin) * stored, -1, 1)


def pytest_benchmark(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """``--benchmark-compare-fail=mean:5%``: the mean of the rounds against the last stored run."""
    new = np.exp(sample.logs[:, sample.side][:, 0]).mean(axis=1)
    stored = np.exp(sample.logs[:, ~sample.side][:, -1]).mean(axis=1)
    return np.where(new < (1 - margin) * stored, -1, 1)


def inference_doctor(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """Welch t interval (90 %) of the log ratio of means against the threshold; at least 3 runs a side."""
    new, stored = (np.exp(sample.y[:, side]) for side in (sample.side, ~sample.side))
    n_a, n_b = new.shape[1], stored.shape[1]
    if min(n_a, n_b) < 3:
        return np.zeros(len(new), dtype=int)
    # Variance of the log of a mean by the delta method.
    ea = new.var(axis=1, ddof=1) / n_a / new.mean(axis=1) ** 2
    eb = stored.var(axis=1, ddof=1) / n_b / stored.mean(axis=1) ** 2
    df = (ea + eb) ** 2 / (ea**2 / (n_a - 1) + eb**2 / (n_b - 1))
    half = special.stdtrit(df, 0.95) * np.sqrt(ea + eb)
    effect, bound = np.log(new.mean(axis=1) / stored.mean(axis=1)), np.log1p(-margin)
    return np.where(effect + half < bound, -1, np.where(effect - half > bound, 1, 0))


def welch_significance(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """Welch's t test on boots, two-sided 5 %, no margin: significantly slower is a regression."""
    new, stored = sample.y[:, sample.side], sample.y[:, ~sample.side]
    n_a, n_b = new.shape[1], stored.shape[1]
    ea, eb = new.var(axis=1, ddof=1) / n_a, stored.var(axis=1, ddof=1) / n_b
    df = (ea + eb) ** 2 / (ea**2 / (n_a - 1) + eb**2 / (n_b - 1))
    t = (new.mean(axis=1) - stored.mean(axis=1)) / np.sqrt(ea + eb)
    return np.where(special.stdtr(df, t) < 0.025, -1, 1)


def mann_whitney_requests(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """Mann-Whitney on 500 requests of one boot each, two-sided 5 %, no margin."""
    new, stored = sample.y[:, sample.side][:, :1], sample.y[:, ~sample.side][:, -1:]
    answers = []
    for start in range(0, len(new), 500):
        size = (len(new[start : start + 500]), REQUESTS)
        both = np.concatenate(
            [base[start : start + 500] + rng.normal(0, REQUEST_SD, size) for base in (new, stored)], axis=1
        )
        ranks = both.argsort(axis=1).argsort(axis=1)[:, :REQUESTS].sum(axis=1) + REQUESTS
        u = ranks - REQUESTS * (REQUESTS + 1) / 2
        z = (u - REQUESTS**2 / 2) / np.sqrt(REQUESTS**2 * (2 * REQUESTS + 1) / 12)
        answers.append(np.where(special.ndtr(z) < 0.025, -1, 1))
    return np.concatenate(answers)


def asv(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """``asv continuous``: factor on the medians, and 99 % intervals that do not overlap.

    With so few trials Mann-Whitney can never reach its p < 0.002, so asv itself falls back to the intervals, which for
    few samples come from a Laplace likelihood of the median.
    """
    new, stored = np.exp(sample.logs[:, sample.side][:, 0]), np.exp(sample.logs[:, ~sample.side][:, -1])
    low_new, high_new = _laplace_interval(new)
    low_old, high_old = _laplace_interval(stored)
    worse = np.median(new, axis=1) < (1 - margin) * np.median(stored, axis=1)
    apart = (low_new > high_old) | (low_old > high_new)
    return np.where(worse & apart, -1, 1)


def _laplace_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centre, scale = np.median(values, axis=1), values.std(axis=1) + 1e-12
    grid = centre[:, None] + scale[:, None] * np.linspace(-15, 15, 601)
    density = np.sum(np.abs(values[:, :, None] - grid[:, None, :]), axis=1) ** -float(values.shape[1])
    cumulative = np.cumsum(density, axis=1) / density.sum(axis=1, keepdims=True)
    ends = [np.argmax(cumulative >= q, axis=1) for q in (0.005, 0.995)]
    low, high = (np.take_along_axis(grid, end[:, None], axis=1)[:, 0] for end in ends)
    return low, high


def criterion(sample: Sample, margin: float, rng: np.random.Generator) -> np.ndarray:
    """criterion.rs: 95 % bootstrap interval of the relative change of the mean wholly beyond the noise threshold."""
    new, stored = np.exp(sample.logs[:, sample.side][:, 0]), np.exp(sample.logs[:, ~sample.side][:, -1])
    trials = new.shape[1]
    pick = rng.integers(0, trials, (2, 400, trials))
    answers = []
    for start in range(0, len(new), 500):
        a = new[start : start + 500][:, pick[0]].mean(axis=2)
        b = stored[start : start + 500][:, pick[1]].mean(axis=2)
        high = np.quantile(a / b - 1, 0.975, axis=1)
        answers.append(np.where(high < -margin, -1, 1))
    return np.concatenate(answers)


RULES = {
    "fixed threshold, 1 new boot": fixed_threshold,
    "pytest-benchmark, 1 new boot": pytest_benchmark,
    "asv, trials of 1 new boot": asv,
    "criterion, trials of 1 new boot": criterion,
    "Mann-Whitney on 500 requests, 1 new boot": mann_whitney_requests,
    "Welch on boots, p < 5 %, no margin": welch_significance,
    "inference-doctor (Welch interval on boots)": inference_doctor,
}
