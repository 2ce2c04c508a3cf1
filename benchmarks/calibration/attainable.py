"""How right an interval can be at all where drift between sessions is unknown.

Five stored boots of five sessions show ``S1``, the spread of sessions and boots together, the n new boots of one
session ``S2``, that of boots. All that a rule can go by is F = S1 / S2: its interval reaches ``c(F)`` standard errors
to either side. Here ``c`` is not any rule's but the best there is: a linear program chooses it (mixtures of several
allowed) so that the coverage at all drifts of a list strays from 90 % as little as possible. It is asked for two things
only:

* it never is narrower than the t interval that would be right without any drift, and
* it does not become narrower where the sessions scatter more.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, special

NOMINAL = 0.90
#: Drift between sessions as a multiple of the boot sd.
DRIFTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
STORED = 5
_BINS, _WIDTHS = 40, 45


def best_deviation(new: int, levels: int, draws: int, rng: np.random.Generator) -> tuple[float, list[float]]:
    """Least possible largest deviation of the coverage from 90 %, and the coverage at each of ``DRIFTS``.

    Args:
        new: New boots, all of one session.
        levels: So many levels of the same noise are pooled to learn both spreads from.
        draws: Random draws for each drift.
        rng: Their source.
    """
    between, within = (STORED - 1) * levels, (new - 1) * levels
    ratios, errors = [], []
    for drift in DRIFTS:
        s1 = (1 + drift**2) * rng.chisquare(between, draws) / between
        s2 = rng.chisquare(within, draws) / within
        difference = rng.normal(0, np.sqrt((1 + drift**2) / STORED + drift**2 + 1 / new), draws)
        ratios.append(s1 / s2)
        errors.append(np.abs(difference) / np.sqrt(s2 * (1 / STORED + 1 / new)))
    edges = np.quantile(np.concatenate(ratios), np.linspace(0, 1, _BINS + 1)[1:-1])
    least = float(special.stdtrit(between + within, (1 + NOMINAL) / 2))
    widths = np.geomspace(least, 40.0, _WIDTHS)
    covered = np.array([_covered(r, e, edges, widths) for r, e in zip(ratios, errors, strict=True)])
    return _solve(covered)


def _covered(ratio: np.ndarray, error: np.ndarray, edges: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Shape (bins * widths,): share of draws whose F is in the bin and whose error is within the width."""
    counts = np.zeros((_BINS, _WIDTHS + 1))
    np.add.at(counts, (np.searchsorted(edges, ratio), np.searchsorted(widths, error)), 1)
    return np.cumsum(counts[:, :-1], axis=1).ravel() / len(ratio)


def _solve(covered: np.ndarray) -> tuple[float, list[float]]:
    size = _BINS * _WIDTHS
    one = np.ones((len(covered), 1))
    within = np.vstack([np.hstack([covered, -one]), np.hstack([-covered, -one])])
    limits = np.concatenate([np.full(len(covered), NOMINAL), np.full(len(covered), -NOMINAL)])
    # The chance of at most a width may not rise with F.
    up_to = np.tril(np.ones((_WIDTHS, _WIDTHS)))
    steps = np.eye(_BINS - 1, _BINS, 1) - np.eye(_BINS - 1, _BINS)
    monotone = np.kron(steps, up_to)
    whole = np.kron(np.eye(_BINS), np.ones(_WIDTHS))
    found = optimize.linprog(
        np.append(np.zeros(size), 1.0),
        A_ub=np.vstack([within, np.hstack([monotone, np.zeros((len(monotone), 1))])]),
        b_ub=np.append(limits, np.zeros(len(monotone))),
        A_eq=np.hstack([whole, np.zeros((_BINS, 1))]),
        b_eq=np.ones(_BINS),
        method="highs",
    )
    if found.x is None or found.fun is None:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return float(found.fun), [float(value) for value in covered @ found.x[:size]]
