"""How late this process is: the error that the load generator itself adds to every stamp."""

from __future__ import annotations

import os
from array import array
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

if TYPE_CHECKING:
    import asyncio

_PERIOD_S = 0.005


class LoopProbe:
    """A timer that notes how long after its due time it runs.

    What waits in a socket waits for the same loop as the timer, so the lateness of the one tells that of the other.
    Timers of the loop have a resolution of 1 ms, which is part of what is noted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: Optional[asyncio.TimerHandle] = None
        self._due_ns = 0
        self.at = array("q")
        self.late = array("q")
        self.cpu_at = array("q")
        self.cpu = array("d")

    def start(self) -> None:
        """Begin to probe."""
        self._arm()
        self.mark_cpu()

    def stop(self) -> None:
        """End probing."""
        if self._handle is not None:
            self._handle.cancel()
        self.mark_cpu()

    def mark_cpu(self) -> None:
        """Note the processor time used so far."""
        times = os.times()
        self.cpu_at.append(monotonic_ns())
        self.cpu.append(times.user + times.system)

    def _arm(self) -> None:
        self._due_ns = monotonic_ns() + int(_PERIOD_S * 1e9)
        self._handle = self._loop.call_later(_PERIOD_S, self._ring)

    def _ring(self) -> None:
        now = monotonic_ns()
        self.at.append(now)
        self.late.append(max(0, now - self._due_ns))
        self._arm()

    def summary(self, start_ns: int, end_ns: int) -> Dict[str, Any]:
        """Lateness (ms) and share of one core between two moments."""
        late = [late / 1e6 for at, late in zip(self.at, self.late) if start_ns <= at <= end_ns]
        return {
            "lag_p50_ms": quantile(late, 0.5),
            "lag_p99_ms": quantile(late, 0.99),
            "lag_max_ms": max(late) if late else None,
            "lag_samples": len(late),
            "cpu_share": self._cpu_share(start_ns, end_ns),
        }

    def _cpu_share(self, start_ns: int, end_ns: int) -> Optional[float]:
        """Processor time over wall time, from the marks nearest to the window's ends."""
        if len(self.cpu_at) < 2:
            return None
        first = max((i for i, at in enumerate(self.cpu_at) if at <= start_ns), default=0)
        last = min((i for i, at in enumerate(self.cpu_at) if at >= end_ns), default=len(self.cpu_at) - 1)
        wall = (self.cpu_at[last] - self.cpu_at[first]) / 1e9
        return (self.cpu[last] - self.cpu[first]) / wall if wall > 0 else None


def quantile(values: Sequence[float], q: float) -> Optional[float]:
    """Linear interpolation between the two nearest values; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
