"""The closed loop: as many requests in flight as the level says, each slot on a connection of its own."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ._connection import Connection
    from ._engine import Engine

_SENDS_PER_TURN = 32


class ClosedLoop:
    """Sends the next request of a slot the moment its last one ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        level = engine.spec.arrival.concurrency
        self._connections: List[Connection] = []
        self.slots = level // engine.workers + (engine.worker < level % engine.workers)

    async def prepare(self) -> None:
        """Open every connection and build the first two requests of every slot.

        Raises:
            OSError: a connection could not be opened.
        """
        self._connections = await self._engine.connect_all(self.slots)
        for _ in range(2 * self.slots):
            self._engine.build_ahead()

    async def start(self) -> None:
        """Send the first request of every slot: together, or spread evenly over the ramp."""
        engine = self._engine
        began = self._engine.loop.time()
        ramp_s = engine.spec.ramp_s
        for number, connection in enumerate(self._connections):
            if ramp_s:
                due = began + ramp_s * number / self.slots
                await asyncio.sleep(max(0.0, due - engine.loop.time()))
            elif number % _SENDS_PER_TURN == 0:
                await asyncio.sleep(0)  # let first tokens be stamped while the rest is being sent
            if engine.over:
                return
            self._send(connection)
        engine.conductor.full(monotonic_ns())

    def ended(self, connection: Connection) -> None:
        """Refill the slot."""
        pause = self._engine.backoff_s
        if pause:
            self._engine.loop.call_later(pause, self._send, connection)
        else:
            self._send(connection)

    def dropped(self, connection: Connection) -> None:
        """An idle slot lost its connection; it is opened again when the slot is used."""

    def _send(self, connection: Connection) -> None:
        engine = self._engine
        if engine.over:
            return
        if connection.closed:
            engine.spawn(self._reopen(connection))
            return
        engine.send(connection, engine.prepare())
        engine.digester.later(engine.build_ahead)

    async def _reopen(self, connection: Connection) -> None:
        fresh = await self._engine.reconnect(connection)
        if fresh is not None:
            self._send(fresh)
