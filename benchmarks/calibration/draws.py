"""Random boots with a known truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from pytest_sglang_perf.verdict import Boot

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

#: Other levels that noise is learned from: their sds as multiples of the judged level's. Fixed, and not alike; their
#: geometric mean is 1, so that pooling errs neither way for the judged level.
OTHER_LEVELS = (0.6, 1.1, 1.5)


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
        louder: Candidate's boot sd as a multiple of the reference's.
        shape: Of the boot noise: normal, heavy (t with 3 degrees of freedom), bimodal (one boot in five slow).
    """

    boot_sd: float = 0.02
    trial_sd: float = 0.005
    drift_sd: float = 0.0
    change: float = 0.0
    reference: int = 5
    candidate: int = 3
    sessions: int = 5
    trials: int = 4
    louder: float = 1.0
    shape: str = "normal"


@dataclass(frozen=True)
class Sample:
    """Draws of one cell; reference boots first.

    Attributes:
        logs: Shape (draws, boots, trials), log value of each trial.
        side: Shape (boots,), true for the candidate.
        session: Shape (boots,).
        truth: The cell.
    """

    logs: Array
    side: np.ndarray
    session: np.ndarray
    truth: Truth

    @cached_property
    def y(self) -> Array:
        """Shape (draws, boots): mean log value of each boot."""
        means: Array = self.logs.mean(axis=2)
        return means

    @cached_property
    def squares(self) -> Array:
        """Shape (draws, boots): sum of squared deviations of a boot's log trials."""
        squares: Array = np.sum((self.logs - self.y[..., None]) ** 2, axis=2)
        return squares

    def first(self, candidate: int) -> Sample:
        """The same draws as they looked after so many candidate boots."""
        n = self.truth.reference + candidate
        truth = replace(self.truth, candidate=candidate)
        return Sample(self.logs[:, :n], self.side[:n], self.session[:n], truth)

    def piece(self, part: slice) -> Sample:
        """Some of the draws."""
        return Sample(self.logs[part], self.side, self.session, self.truth)


def boot_noise(rng: np.random.Generator, shape: str, sd: float, size: tuple[int, int]) -> Array:
    """Noise of mean 0 and the given sd."""
    if shape == "heavy":
        heavy: Array = rng.standard_t(3, size) * sd / np.sqrt(3)
        return heavy
    if shape == "bimodal":
        # Four boots in five near the fast mode, the fifth four sds of a mode slower; scaled to the wanted sd.
        slow = rng.random(size) < 0.2
        raw = rng.normal(size=size) - 4.0 * slow + 0.8
        modes: Array = raw * sd / np.sqrt(1 + 16 * 0.2 * 0.8)
        return modes
    return rng.normal(0, sd, size)


def draw(rng: np.random.Generator, truth: Truth, draws: int) -> Sample:
    """Boots of one cell."""
    n = truth.reference + truth.candidate
    side = np.arange(n) >= truth.reference
    spread = max(truth.sessions, 1)
    session = np.where(side, spread, np.arange(n) % spread)
    drift = rng.normal(0, truth.drift_sd, (draws, spread + 1))
    noise = boot_noise(rng, truth.shape, truth.boot_sd, (draws, n)) * np.where(side, truth.louder, 1.0)
    y = drift[:, session] + noise
    y = y + np.where(side, np.log1p(truth.change), 0.0)
    logs = y[..., None] + rng.normal(0, truth.trial_sd, (draws, n, truth.trials))
    return Sample(logs, side, session, truth)


def other_levels(rng: np.random.Generator, truth: Truth, draws: int) -> list[Sample]:
    """The same boots at the other levels: same design and change, each level with noise and drift of its own."""
    return [
        draw(rng, replace(truth, boot_sd=truth.boot_sd * factor, trial_sd=truth.trial_sd * factor), draws)
        for factor in OTHER_LEVELS
    ]


def as_boots(sample: Sample, number: int) -> tuple[list[Boot], list[Boot]]:
    """One draw as `compare` takes it: candidate, reference."""
    boots = [
        Boot(tuple(np.exp(logs).tolist()), f"s{session}" if sample.truth.sessions else "")
        for logs, session in zip(sample.logs[number], sample.session, strict=True)
    ]
    cut = sample.truth.reference
    return boots[cut:], boots[:cut]
