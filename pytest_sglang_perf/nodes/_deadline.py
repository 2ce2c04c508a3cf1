"""One monotonic deadline for a job made of several waits."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """A moment on the monotonic clock, set once, that every step of a job asks how long it may still wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def over(self) -> bool:
        return time.monotonic() >= self._end

    def restart(self) -> None:
        """Give the full time again, after progress."""
        self._end = time.monotonic() + self.seconds
