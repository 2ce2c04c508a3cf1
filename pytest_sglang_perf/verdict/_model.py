"""The one statistical model behind every interval.

The mean log value of boot ``i`` of a side (candidate or reference), taken in session ``s``, is

    y_i = mean of its side + drift_s + boot_i + trial noise,
    Var(drift) = share * tau^2,  Var(boot) = (1 - share) * tau^2,  Var(trial noise) = v_i,

the unbalanced one-way random-effects layout of Searle, Casella and McCulloch, "Variance Components" (1992),
chapter 3. What is asked for is the difference of the two sides' means. Its variance needs ``tau`` and
``share``, which a handful of boots cannot fix, so they are integrated over instead of plugged in (Box and
Tiao, "Bayesian Inference in Statistical Analysis", 1973, chapter 5): on a grid of both, each point gives a
normal distribution of the difference (generalised least squares) and a weight (the restricted likelihood of
Patterson and Thompson, Biometrika 58, 1971, times the prior). The answer is the mixture.

Trial noise that all boots have in common cannot be told from boot noise and need not be: it is part of the spread that
the boots show. Only what exceeds it, in boots with fewer trials, is added to theirs.

With no drift, equal trial noise and the flat prior on ``log tau`` the mixture *is* Student's t with n - 2
degrees of freedom; with a learned prior (scaled inverse chi-squared with ``s0^2``, ``d0``) it is the
moderated t of Smyth (Stat. Appl. Genet. Mol. Biol. 3, 2004) with n - 2 + d0; one new boot against n stored
ones gives the classical prediction interval.

Everything is vectorised over leading axes, so that the calibration benchmark runs this very code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["FLOOR_SD", "Layout", "Posterior", "Prior", "fit", "likelihood"]

#: No boot is believed to repeat better than this (sd of the log value): clocks, rounding and luck.
FLOOR_SD = 0.001
_NODES = 24


@dataclass(frozen=True)
class Layout:
    """Which boot is on which side and in which session.

    Attributes:
        candidate: Shape (n,), true for boots of the candidate.
        session: Shape (n,), small integers; boots with the same one share their drift.
    """

    candidate: NDArray[np.bool_]
    session: NDArray[np.int_]

    @property
    def two_sided(self) -> bool:
        """Whether there is a reference at all."""
        return not bool(self.candidate.all())

    @property
    def df(self) -> int:
        """Degrees of freedom that the boots leave for their own spread."""
        return len(self.candidate) - (2 if self.two_sided else 1)

    @property
    def drift_matters(self) -> bool:
        """Whether drift between sessions can move the difference (it cancels within one session)."""
        return len(np.unique(self.session)) > 1


@dataclass(frozen=True)
class Prior:
    """What is believed about the variances before the boots are looked at.

    Attributes:
        var: ``s0^2``, the squared sd between boots; scalar or one per draw.
        df: ``d0``, how many boots that belief is worth; 0 for none. Scalar or one per draw.
        shares: Grid of the drift's share of ``tau^2``.
        share_weights: Prior weight of each of them, shape (J,), or (..., J) to differ between draws.
        ratios: Candidate's over reference's variance between boots, each with its prior weight.
    """

    var: float | Array
    df: float | Array
    shares: tuple[float, ...] = (0.0,)
    share_weights: tuple[float, ...] | Array = (1.0,)
    ratios: tuple[tuple[float, float], ...] = ((1.0, 1.0),)


@dataclass(frozen=True)
class Posterior:
    """A mixture of normal distributions of the difference of logs; the last axis runs over the mixture.

    Attributes:
        weight: Sums to 1 over the last axis.
        mean: Centre of each component.
        sd: Standard deviation of each component.
        boot_var: Variance between boots of a session in each component, the trial noise common to all included.
        drift_var: Variance between sessions in each component.
    """

    weight: Array
    mean: Array
    sd: Array
    boot_var: Array
    drift_var: Array

    def below(self, x: float | Array) -> Array:
        """Probability that the difference is at most ``x`` (one value, or one per draw)."""
        z = (np.asarray(x, dtype=float)[..., None] - self.mean) / self.sd
        result: Array = np.sum(self.weight * special.ndtr(z), axis=-1)
        return result

    def centre(self) -> Array:
        """Mean of the mixture."""
        result: Array = np.sum(self.weight * self.mean, axis=-1)
        return result

    def quantile(self, q: float) -> Array:
        """The value below which the difference lies with probability ``q``, by bisection."""
        # 9 sd of the widest component that has any weight hold every quantile one can ask for.
        weighty = self.weight > 1e-12
        reach = 9 * np.max(np.where(weighty, self.sd, 0.0), axis=-1)
        low, high = self.centre() - reach, self.centre() + reach
        for _ in range(50):
            middle = (low + high) / 2
            left = self.below(middle) < q
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        result: Array = (low + high) / 2
        return result

    def expect(self, values: Array) -> Array:
        """Posterior mean of a figure given per component."""
        result: Array = np.sum(self.weight * values, axis=-1)
        return result


def fit(y: Array, noise_var: Array, layout: Layout, prior: Prior) -> Posterior:
    """Distribution of candidate mean minus reference mean, or of the candidate mean if it stands alone.

    Args:
        y: Shape (..., n), mean log value of each boot.
        noise_var: Shape (..., n), variance of that mean from trial noise alone.
        layout: Sides and sessions of the n boots.
        prior: Beliefs about the variances.

    Returns:
        A mixture over 24 spreads times the shares times the ratios of the prior.
    """
    y = np.asarray(y, dtype=float)
    noise_var = np.broadcast_to(np.asarray(noise_var, dtype=float), y.shape)
    common = noise_var.min(axis=-1)
    spread, log_prior = _spread_nodes(y, common, layout, prior)  # (..., K)
    shares = np.asarray(prior.shares) if layout.drift_matters else np.zeros(1)
    share_weights = np.asarray(prior.share_weights) if layout.drift_matters else np.ones(1)
    with np.errstate(divide="ignore"):
        log_shares = np.log(share_weights)
    # Drift has its share of what the boots spread beyond their trial noise.
    drift_var = np.maximum(spread - common[..., None], 0.0)[..., None] * shares  # (..., K, J)
    boot_var = spread[..., None] - drift_var
    parts = []
    for ratio, belief in prior.ratios:
        scale = np.where(layout.candidate, np.sqrt(ratio), 1 / np.sqrt(ratio)) if ratio != 1 else None
        found = likelihood(y, noise_var - common[..., None], layout, boot_var, drift_var, scale)
        parts.append((found[0] + log_shares[..., None, :] + np.log(belief), *found[1:]))
    log_weight, mean, variance = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    log_weight = log_weight + log_prior[..., None]
    weight = np.exp(log_weight - np.max(log_weight, axis=(-2, -1), keepdims=True))
    weight /= np.sum(weight, axis=(-2, -1), keepdims=True)
    flat = (*y.shape[:-1], -1)
    return Posterior(
        weight.reshape(flat),
        mean.reshape(flat),
        np.sqrt(variance).reshape(flat),
        np.tile(boot_var, len(parts)).reshape(flat),
        np.tile(drift_var, len(parts)).reshape(flat),
    )


def likelihood(
    y: Array, noise_var: Array, layout: Layout, boot_var: Array, drift_var: Array, scale: Array | None = None
) -> tuple[Array, Array, Array]:
    """Restricted log likelihood of the variances, and the estimate they lead to.

    The covariance of the boots is block diagonal over sessions, each block a diagonal plus a constant, so
    its inverse and determinant are sums over sessions (Sherman and Morrison, Ann. Math. Stat. 21, 1950).

    Args:
        y: Shape (..., n).
        noise_var: Shape (..., n).
        layout: Sides and sessions.
        boot_var: Shape (..., K, J), variance between boots of a session, at each node of the grid.
        drift_var: Shape (..., K, J), variance between sessions.
        scale: Shape (n,), multiplies ``boot_var`` for each boot; None for 1.

    Returns:
        Log likelihood, estimate and its variance, each of shape (..., K, J).
    """
    origin = y[..., :1]
    y = y - origin  # differences of logs are small; this keeps the sums of squares exact
    one_hot = (layout.session[:, None] == np.unique(layout.session)[None, :]).astype(float)
    side = layout.candidate.astype(float)
    drift_var = drift_var[..., None]
    y = y[..., None, None, :]  # (..., 1, 1, n)

    # Boots with as many trials each have one weight; then the sums over boots need not be done for every node.
    alike = scale is None and bool(np.all(noise_var == noise_var[..., :1]))
    own_var = boot_var[..., None] if scale is None else boot_var[..., None] * scale
    w = 1 / (own_var + noise_var[..., None, None, : 1 if alike else None])  # (..., K, J, 1 or n)

    def weigh(values: Array, members: Array) -> Array:
        return w * (values @ members) if alike else (w * values) @ members

    everyone = np.ones((len(side), 1))
    w_s, wc_s, y_s = weigh(everyone.T, one_hot), weigh(side, one_hot), weigh(y, one_hot)  # (..., K, J, S)
    swell = 1 + drift_var * w_s
    gain = drift_var / swell
    a_cc = np.sum(wc_s - gain * wc_s**2, axis=-1)
    b_c = weigh(y * side, everyone)[..., 0] - np.sum(gain * wc_s * y_s, axis=-1)
    log_det = np.sum(np.log(swell), axis=-1) - np.sum(np.log(w), axis=-1) * (len(side) if alike else 1)
    square = weigh(y * y, everyone)[..., 0] - np.sum(gain * y_s**2, axis=-1)
    if not layout.two_sided:
        mean = b_c / a_cc
        return -0.5 * (log_det + np.log(a_cc) + square - mean * b_c), mean + origin[..., None], 1 / a_cc
    wr_s = w_s - wc_s
    a_rr = np.sum(wr_s - gain * wr_s**2, axis=-1)
    a_cr = -np.sum(gain * wc_s * wr_s, axis=-1)
    b_r = weigh(y * (1 - side), everyone)[..., 0] - np.sum(gain * wr_s * y_s, axis=-1)
    det = a_cc * a_rr - a_cr**2
    mean_c = (a_rr * b_c - a_cr * b_r) / det
    mean_r = (a_cc * b_r - a_cr * b_c) / det
    rss = square - mean_c * b_c - mean_r * b_r
    return -0.5 * (log_det + np.log(det) + rss), mean_c - mean_r, (a_cc + a_rr + 2 * a_cr) / det


def _spread_nodes(y: Array, common: Array, layout: Layout, prior: Prior) -> tuple[Array, Array]:
    """Grid of the spread of boots, common trial noise included, and the log of prior times step; both (..., K).

    The grid is even in the log of the variance and reaches to where the posterior is below 1e-4 of its peak.
    """
    squares = np.zeros(y.shape[:-1])
    for member in (layout.candidate, ~layout.candidate):
        if member.any():
            part = y[..., member]
            squares = squares + np.sum((part - part.mean(axis=-1, keepdims=True)) ** 2, axis=-1)
    d0 = np.broadcast_to(np.asarray(prior.df, dtype=float), squares.shape)
    s02 = np.broadcast_to(np.asarray(prior.var, dtype=float), squares.shape) + common
    df = np.maximum(layout.df + d0, 1.0)
    sum_squares = squares + d0 * s02
    start = np.log(np.maximum(FLOOR_SD**2, sum_squares / (8 * df + 40)))
    stop = np.log(np.maximum(FLOOR_SD**2, sum_squares / df)) + np.minimum(1 + 18 / df, 16)
    unit = np.linspace(0, 1, _NODES)
    log_spread = start[..., None] + np.maximum(stop - start, 4)[..., None] * unit
    spread = np.exp(log_spread)
    # Scaled inverse chi-squared, as a density of the log; flat in the log where nothing is believed (d0 = 0).
    log_prior = -0.5 * d0[..., None] * (log_spread + s02[..., None] / spread)
    log_prior[..., 0] += np.log(0.5)  # trapezoid
    return spread, log_prior
