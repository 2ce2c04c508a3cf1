"""Open patterns: requests leave on a schedule, and the server's slowness does not slow them down."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Deque, Iterator, Optional, Tuple

from ._schedule import Due, schedule

if TYPE_CHECKING:
    from ._connection import Connection
    from ._engine import Engine
    from ._requests import Exchange

_LEAST_SPARE = 16
_MOST_SPARE = 4096
_SENDS_PER_TURN = 32
_AHEAD = 256
_POLL_S = 0.05


class OpenLoop:
    """Sends each request at its time on an idle connection.

    Connections are opened ahead and a stock of idle ones is kept; where it runs out the request waits for a new one
    and is late by the schedule, which its latency from ``scheduled_ns`` shows. Timers have a resolution of 1 ms.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        arrival = engine.spec.arrival
        self._idle: Deque[Connection] = deque()
        self._opening = 0
        self._late: Deque[Exchange] = deque()
        self._ready: Deque[Tuple[float, Exchange]] = deque()
        self._due: Iterator[Due] = schedule(engine.spec)
        self._number = 0
        self._ahead = max(_AHEAD, arrival.size + 1) // engine.workers
        self._exhausted = False
        self._cap: Optional[int] = None
        if arrival.max_concurrency is not None:
            self._cap = max(1, arrival.max_concurrency // engine.workers)
        expected = arrival.size if arrival.kind == "burst" else int(arrival.rate * 2)
        self._spare = min(_MOST_SPARE, self._cap or _MOST_SPARE, max(_LEAST_SPARE, expected)) // engine.workers + 1

    async def prepare(self) -> None:
        """Open the stock of connections and build the first requests.

        Raises:
            OSError: a connection could not be opened.
            SpecError: the trace cannot be read.
        """
        self._idle.extend(await self._engine.connect_all(self._spare))
        while len(self._ready) < self._ahead and not self._exhausted:
            self._build()

    def _build(self) -> None:
        """Build this worker's next request."""
        engine = self._engine
        for offset_s, lengths in self._due:
            index = self._number
            self._number += 1
            if index % engine.workers == engine.worker:
                self._ready.append((offset_s, engine.factory.build(index, lengths)))
                return
        self._exhausted = True

    async def start(self) -> None:
        """Walk along the schedule until the trial ends."""
        engine = self._engine
        began_ns = monotonic_ns()
        full, sent = False, 0
        while True:
            if not self._ready:
                self._build()
            if not self._ready:
                await self._run_dry()
                return
            offset_s, exchange = self._ready.popleft()
            due_ns = began_ns + int(offset_s * 1e9)
            await _sleep_until(due_ns)
            if not full and offset_s >= engine.spec.ramp_s:
                full = True
                engine.conductor.full(monotonic_ns())
            if engine.over:
                return
            exchange.scheduled_ns = due_ns
            self._send(exchange)
            sent += 1
            if sent % _SENDS_PER_TURN == 0:
                await asyncio.sleep(0)  # let what arrives be stamped while a burst is being sent
            if not self._exhausted:
                engine.digester.later(self._build)

    async def _run_dry(self) -> None:
        """A trace has an end: wait for what it sent, then close the trial if the window did not."""
        engine = self._engine
        while engine.in_flight or self._late:
            await asyncio.sleep(_POLL_S)
            if engine.over:
                return
        engine.conductor.exhausted()

    def _send(self, exchange: Exchange) -> None:
        engine = self._engine
        if self._cap is not None and engine.in_flight >= self._cap:
            self._late.append(exchange)
            return
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                engine.send(connection, exchange)
                break
        else:
            self._late.append(exchange)
        if len(self._idle) + self._opening < max(1, self._spare // 4) + len(self._late):
            self._opening += 1
            engine.spawn(self._open_one())

    async def _open_one(self) -> None:
        try:
            fresh = await self._engine.reconnect(None)
        finally:
            self._opening -= 1
        if fresh is not None:
            self.ended(fresh)

    def ended(self, connection: Connection) -> None:
        """An idle connection: for a request that waits, else for the stock."""
        engine = self._engine
        if engine.over:
            return
        if connection.closed:
            if self._late and not self._idle:
                self._opening += 1
                engine.spawn(self._open_one())
        elif self._late and (self._cap is None or engine.in_flight < self._cap):
            engine.send(connection, self._late.popleft())
        else:
            self._idle.append(connection)

    def dropped(self, connection: Connection) -> None:
        """The server closed an idle connection (sglang does so after 5 s)."""
        if connection in self._idle:
            self._idle.remove(connection)


async def _sleep_until(due_ns: int) -> None:
    """Never early: uvloop's timers may ring up to a millisecond before their time."""
    early_ns = due_ns - monotonic_ns()
    while early_ns > 0:
        await asyncio.sleep(early_ns / 1e9)
        early_ns = due_ns - monotonic_ns()
