"""What the scheduler needs from others, so that it runs against a clock of a test as well."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock", "Limits", "Meter", "Observer", "Timer"]


class Clock(Protocol):
    """Simulated seconds; :class:`~.clock.SimClock` is the one that runs."""

    scale: float

    def now(self) -> float:
        """Simulated seconds that have passed."""

    def real(self, seconds: float) -> float:
        """Real seconds that simulated ``seconds`` last."""


class Timer(Protocol):
    """One pending call at a time; :class:`~.clock.Timer` is the one that runs."""

    def start(self, delay: float) -> None:
        """Call back in ``delay`` real seconds, instead of at any time set before."""

    def close(self) -> None:
        """Forget the pending call."""


class Limits:
    """What one boot may hold at once."""

    def __init__(
        self, *, running: int, tokens: int, chunk: int, prefill: int, prefill_requests: int, decode_log: int
    ) -> None:
        self.running = running
        self.tokens = tokens
        self.chunk = chunk if chunk > 0 else prefill
        self.prefill = prefill
        self.prefill_requests = prefill_requests
        self.decode_log = max(decode_log, 1)


class Meter(Protocol):
    """Who is told how hard the GPUs work."""

    def work(self, now: float, requests: int, factor: float) -> None:
        """From ``now`` on ``requests`` are served, at ``factor`` times the usual speed."""


class Observer(Protocol):
    """Who is told what a batch looked like."""

    def prefill_batch(
        self,
        *,
        sequences: int,
        tokens: int,
        cached: int,
        usage: float,
        running: int,
        queued: int,
        pending: int,
        throughput: float,
    ) -> None: ...

    def decode_batch(
        self, *, running: int, tokens: int, usage: float, graph: bool, throughput: float, queued: int
    ) -> None: ...

    def retracted(self, *, requests: int, tokens: int) -> None: ...
