"""Where the steady window begins and ends.

It begins when the last of the warm-up requests has finished (and, after a ramp, the level is full), and ends with a
whole number of further rounds. Between the two the level is kept full: nothing drains for either boundary.

Why these boundaries: requests of one length run in waves, all prefilling and then all decoding. A window cut at
arbitrary times holds an unequal share of the two phases and is wrong by up to one phase; one that opens and closes
at the same phase is not, whatever the wave looks like. Where requests are out of step, any boundary serves.
"""

from __future__ import annotations

from typing import Optional


class WindowFinder:
    """Finds the window from completions, reported in order of time.

    Args:
        warmup: the requests with an index below this are warm-up.
        target: completions that the window must hold.
    """

    __slots__ = ("_full_ns", "_last_warm_ns", "_target", "_warm_left", "_warmup", "end_ns", "finished", "start_ns")

    def __init__(self, warmup: int, target: int) -> None:
        self._warmup = warmup
        self._warm_left = warmup
        self._target = target
        self._full_ns: Optional[int] = None
        self._last_warm_ns = 0
        self.finished = 0
        self.start_ns: Optional[int] = None
        self.end_ns: Optional[int] = None

    def full(self, now_ns: int) -> None:
        """The level is reached: every slot is in use, or the schedule runs at its full rate."""
        self._full_ns = now_ns
        self._maybe_start()

    def completed(self, index: int, end_ns: int) -> bool:
        """A request ended; whether this closes the window."""
        if self.start_ns is not None:
            if end_ns > self.start_ns and self.end_ns is None:
                self.finished += 1
                if self.finished >= self._target:
                    self.end_ns = end_ns
                    return True
            return False
        if index < self._warmup:
            self._warm_left -= 1
            self._last_warm_ns = max(self._last_warm_ns, end_ns)
        self._maybe_start()
        return False

    def _maybe_start(self) -> None:
        if self._full_ns is not None and self._warm_left <= 0 and self.start_ns is None:
            self.start_ns = max(self._full_ns, self._last_warm_ns)
