"""How late this process is: the error that the load generator itself adds to every stamp."""

from __future__ import annotations

import os
from array import array
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

if TYPE_CHECKING:
    import asyncio

_PERIOD_S = 0.005
_LEAST_MARKS = 2
_LEAST_SPAN = 1e-6


class LoopProbe:
    """A timer that notes how long after its due time it runs.

    Bytes that arrive while the loop is busy wait until it comes round, as the timer does, so from the lateness of every
    ring follows how long a byte that arrives at a random moment waits (``waiting_quantile``). Counting rings instead
    would let a single long absence, with thousands of events in it, pass for one sample among many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: Optional[asyncio.TimerHandle] = None
        self._due_ns = 0
        self.at = array("q")
        self.late = array("q")
        self.cpu_at = array("q")
        self.cpu = array("d")
        self.queued = array("d")

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
        """Note the processor time used so far, and the time spent waiting for a processor."""
        times = os.times()
        self.cpu_at.append(monotonic_ns())
        self.cpu.append(times.user + times.system)
        self.queued.append(_queued_s())

    def _arm(self) -> None:
        self._due_ns = monotonic_ns() + int(_PERIOD_S * 1e9)
        self._handle = self._loop.call_later(_PERIOD_S, self._ring)

    def _ring(self) -> None:
        now = monotonic_ns()
        self.at.append(now)
        self.late.append(max(0, now - self._due_ns))
        self._arm()

    def summary(self, start_ns: int, end_ns: int) -> Dict[str, Any]:
        """Waiting times (ms) and shares of one core between two moments.

        ``cpu_share`` is what this process used, ``cpu_wait_share`` how long it was ready to run and had to wait
        because others ran: a client can be too slow for either reason.
        """
        late = [late / 1e6 for at, late in zip(self.at, self.late) if start_ns <= at <= end_ns]
        total = (end_ns - start_ns) / 1e6
        return {
            "lag_p50_ms": waiting_quantile(late, total, 0.5),
            "lag_p99_ms": waiting_quantile(late, total, 0.99),
            "lag_max_ms": max(late) if late else None,
            "lag_samples": len(late),
            "cpu_share": self._share(self.cpu, start_ns, end_ns),
            "cpu_wait_share": self._share(self.queued, start_ns, end_ns),
        }

    def _share(self, used_s: Sequence[float], start_ns: int, end_ns: int) -> Optional[float]:
        """Seconds over wall time, from the marks nearest to the window's ends."""
        if len(self.cpu_at) < _LEAST_MARKS:
            return None
        first = max((i for i, at in enumerate(self.cpu_at) if at <= start_ns), default=0)
        last = min((i for i, at in enumerate(self.cpu_at) if at >= end_ns), default=len(self.cpu_at) - 1)
        wall = (self.cpu_at[last] - self.cpu_at[first]) / 1e9
        return (used_s[last] - used_s[first]) / wall if wall > 0 else None


def waiting_quantile(absences: Sequence[float], total: float, q: float) -> Optional[float]:
    """The q-quantile of how long something waits that arrives at a random moment of ``total``.

    ``absences`` are in order of time. What arrives when a share u of an absence g has passed waits for the rest of it,
    and then for what arrived before it: the loop works through these in turn, and is away for h while it does, its
    next absence. So it waits (1 - u) g + u h. After a single absence h is nothing; of a loop that never catches up,
    where one absence follows the other, everything waits for a whole one.
    """
    if not absences or total <= 0:
        return None
    # P(wait > x) is a sum of lines, from g / total down to 0 between the smaller and the larger of g and h.
    bends = []
    for g, h in zip(absences, [*absences[1:], 0.0]):
        low, high = min(g, h), max(g, h)
        low = min(low, high - _LEAST_SPAN)
        bends.append((high, g / (high - low)))
        bends.append((low, -g / (high - low)))
    bends.sort(reverse=True)
    wanted, above, slope, at = (1 - q) * total, 0.0, 0.0, bends[0][0]
    for x, change in bends:
        step = slope * (at - x)
        if above + step > wanted:
            return max(0.0, at - (wanted - above) / slope)
        above, slope, at = above + step, slope + change, x
    return 0.0


def _queued_s() -> float:
    """Seconds that this thread was ready and waited for a processor; 0 where the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def quantile(values: Sequence[float], q: float) -> Optional[float]:
    """Linear interpolation between the two nearest values; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
