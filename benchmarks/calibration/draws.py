"""Random boots with a known truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

#: Other levels that noise is learned from: their sds as multiples of the judged level's. Fixed, and not alike.
OTHER_LEVELS = (0.6, 1.3, 1.8)


@dataclass(frozen=True)
class Truth:
    """One cell: what the world is like.

    Attributes:
        boot_sd: Between boots of a session (of the log).
        trial_sd: Between trials of a boot.
        drift_sd: Between sessions.
        change: True change of the candidate, as a share; -0.1 is 10 % lower.
        reference: Stored boots.
        candidate: New boots, all of one further session.
        sessions: Sessions that the stored boots come from; 0 means that nobody recorded them.
        trials: Trials per boot.
        shape: Of the boot noise: normal, heavy (t with 3 degrees of freedom), bimodal (one boot in five slow).
    """

    boot_sd: float = 0.02
    trial_sd: float = 0.01
    drift_sd: float = 0.0
    change: float = 0.0
    reference: int = 5
    candidate: int = 3
    sessions: int = 5
    trials: int = 4
    shape: str = "normal"


@dataclass(frozen=True)
class Sample:
    """Draws of one cell, all of shape (draws, boots); reference boots first.

    Attributes:
        y: Mean log value of each boot.
        squares: Sum of squared deviations of its log trials.
        side: Shape (boots,), true for the candidate.
        session: Shape (boots,).
        truth: The cell.
    """

    y: np.ndarray
    squares: np.ndarray
    side: np.ndarray
    session: np.ndarray
    truth: Truth

    def first(self, candidate: int) -> Sample:
        """The same draws as they looked after so many candidate boots."""
        n = self.truth.reference + candidate
        truth = replace(self.truth, candidate=candidate)
        return Sample(self.y[:, :n], self.squares[:, :n], self.side[:n], self.session[:n], truth)

    def piece(self, part: slice) -> Sample:
        """Some of the draws."""
        return replace(self, y=self.y[part], squares=self.squares[part])


def boot_noise(rng: np.random.Generator, shape: str, sd: float, size: tuple[int, int]) -> np.ndarray:
    """Noise of mean 0 and the given sd."""
    if shape == "heavy":
        return rng.standard_t(3, size) * sd / np.sqrt(3)
    if shape == "bimodal":
        # Four boots in five near the fast mode, the fifth four sds of a mode slower; scaled to the wanted sd.
        slow = rng.random(size) < 0.2
        raw = rng.normal(size=size) - 4.0 * slow + 0.8
        return raw * sd / np.sqrt(1 + 16 * 0.2 * 0.8)
    return rng.normal(0, sd, size)


def draw(rng: np.random.Generator, truth: Truth, draws: int) -> Sample:
    """Boots of one cell."""
    n = truth.reference + truth.candidate
    side = np.arange(n) >= truth.reference
    spread = max(truth.sessions, 1)
    session = np.where(side, spread, np.arange(n) % spread)
    drift = rng.normal(0, truth.drift_sd, (draws, spread + 1))
    y = drift[:, session] + boot_noise(rng, truth.shape, truth.boot_sd, (draws, n))
    y = y + np.where(side, np.log1p(truth.change), 0.0)
    y = y + rng.normal(0, truth.trial_sd / np.sqrt(truth.trials), (draws, n))
    squares = truth.trial_sd**2 * rng.chisquare(max(truth.trials - 1, 1), (draws, n)) if truth.trials > 1 else 0 * y
    return Sample(y, squares, side, session, truth)


def other_levels(rng: np.random.Generator, truth: Truth, draws: int) -> list[Sample]:
    """Stored boots of the other levels, from the same sessions as the judged level's, each with noise of its own."""
    return [
        draw(rng, replace(truth, boot_sd=truth.boot_sd * f, trial_sd=truth.trial_sd * f, candidate=0, change=0.0), draws)
        for f in OTHER_LEVELS
    ]
