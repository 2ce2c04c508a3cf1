"""Simulated seconds, and a timer that is finer than the event loop's.

Simulated time runs ``scale`` times as fast as the machine's. A millisecond of lateness, which is all that an
event loop promises, would be 40 ms at a scale of 40: more than some of the times that are simulated.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["SimClock", "Timer"]

_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_CLOCK_MONOTONIC = 1
_TURNAROUND_S = 0.25


class SimClock:
    """Simulated seconds since ``start`` (of ``time.monotonic``), by default since the clock was made."""

    def __init__(self, scale: float, start: float | None = None) -> None:
        if not scale > 0:
            raise ValueError(f"a time scale is a number above 0, not {scale!r}")
        self.scale = scale
        self._start = time.monotonic() if start is None else start

    def now(self) -> float:
        """Simulated seconds that have passed."""
        return (time.monotonic() - self._start) * self.scale

    def real(self, seconds: float) -> float:
        """How long ``seconds`` of simulated time last, in real seconds."""
        return seconds / self.scale

    def real_until(self, moment: float) -> float:
        """Real seconds until a simulated moment; 0 when it has passed."""
        return max(self.real(moment - self.now()), 0.0)

    def turnaround(self, done: float, again: float) -> float:
        """Simulated seconds of a client's turn-around that are an artefact of the time scale.

        A client that answers the end of one request (ready at simulated ``done``) with its next (at ``again``)
        takes some real milliseconds. They are no part of the simulated machine, yet would count ``scale`` times:
        5 ms are 0.2 s at a scale of 45, and throughput would measure the client. They are to count once.
        A client that lets more than a quarter of a second pass is not turning around but waiting.
        """
        real = self.real(again - done)
        return again - done - real if 0.0 <= real <= _TURNAROUND_S else 0.0


class Timer:
    """One pending call at a time, on time to some tens of microseconds.

    Uses a timerfd; where the C library has none, the loop's own timers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._set, self._fd = _timerfd()
        if self._fd >= 0:
            loop.add_reader(self._fd, self._fired)

    def start(self, delay: float) -> None:
        """Call back in ``delay`` real seconds, instead of at any time set before."""
        if self._fd >= 0 and self._set is not None:
            self._set(self._fd, max(delay, 1e-9))
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(delay, self._callback)

    def _fired(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set anew between the wake-up and now
            os.read(self._fd, 8)
            self._callback()

    def close(self) -> None:
        """Forget the pending call. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def _timerfd() -> tuple[Callable[[int, float], None] | None, int]:
    """The function that arms a new timerfd, and its descriptor (-1 where there is none)."""
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        create, settime = libc.timerfd_create, libc.timerfd_settime
    except (ImportError, OSError, AttributeError):
        return None, -1
    descriptor: int = create(_CLOCK_MONOTONIC, _TFD_FLAGS)
    if descriptor < 0:
        return None, -1
    pack = struct.Struct("llll").pack

    def arm(fd: int, delay: float) -> None:
        seconds = int(delay)
        settime(fd, 0, pack(0, 0, seconds, max(int((delay - seconds) * 1e9), 1)), None)

    return arm, descriptor
