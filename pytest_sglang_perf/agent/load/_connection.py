"""One TCP connection to the server, carrying one request at a time."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any, List, Optional, Type

from ._http1 import SIZES, HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ._requests import Exchange

    class Owner(Protocol):
        """What a connection tells the engine."""

        def arrived(self, exchange: Exchange) -> None:
            """Enough body bytes wait to be worth decoding."""

        def ended(self, connection: Connection, exchange: Exchange, now_ns: int) -> None:
            """The response is complete, or will never be (``exchange.error``)."""

        def dropped(self, connection: Connection) -> None:
            """An idle connection was closed."""


DECODE_AT_BYTES = 32768
_HOLD = 2 * DECODE_AT_BYTES  # stamps and bodies take turns in a list, so it is twice as long as there are bodies


class Connection(asyncio.Protocol):
    """Writes a request, stamps what comes back. Stamps are taken before anything else is done with the bytes."""

    __slots__ = ("_between", "_owner", "_pending", "closed", "exchange", "last_ns", "reused", "transport")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._between = False  # chunks: all bytes so far belong to whole ones
        self._pending: List[Any] = []  # of the exchange
        self.transport: Any = None
        self.exchange: Optional[Exchange] = None
        self.closed = False
        self.reused = False
        self.last_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, exchange: Exchange) -> None:
        """Hand the request to the socket; its clock starts here."""
        self.exchange = exchange
        self._pending = exchange.pending
        now = monotonic_ns()
        exchange.sent_ns = self.last_ns = now
        if not exchange.scheduled_ns:
            exchange.scheduled_ns = now
        self.transport.write(exchange.payload)

    def data_received(self, data: bytes) -> None:
        self.last_ns = now = monotonic_ns()
        # Nearly every read is one whole chunk of a size met before. This is what an event costs, so it is written out.
        if self._between:
            at = data.find(b"\r\n", 1, 18)
            size = len(data) - at - 4
            if SIZES.get(data[:at]) == size and data.endswith(b"\r\n"):
                pending = self._pending
                pending.append(now)
                pending.append(data[at + 2 : -2])
                if len(pending) * size > _HOLD:
                    self._offer()
                return
        self._received(now, data)

    def _received(self, now: int, data: bytes) -> None:
        """Any other read: the head, the end, a part of a chunk, several of them."""
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for: the connection cannot be trusted any more
            self.abort()
            return
        response = exchange.response
        try:
            body = response.feed(data)
        except HttpError as error:
            exchange.error = str(error)
            self.abort()
            return
        self._between = response.between
        if body:
            self._pending.append(now)
            self._pending.append(body)
            if len(self._pending) * len(body) > _HOLD:
                self._offer()
        if response.done:
            self._end(now)

    def _offer(self) -> None:
        """Long answers are decoded before their end, or their bytes would pile up."""
        exchange = self.exchange
        if exchange is not None and not exchange.queued:
            self._owner.arrived(exchange)

    def _end(self, now: int) -> None:
        exchange = self.exchange
        assert exchange is not None
        self.exchange = None
        self.reused = True
        if not exchange.response.keep_alive or exchange.response.excess:
            self.closed = True
            self.transport.close()
        self._owner.ended(self, exchange, now)

    def eof_received(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.response.eof():
            self._end(monotonic_ns())

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.closed = True
        exchange = self.exchange
        if exchange is None:
            self._owner.dropped(self)
            return
        self.exchange = None
        if exchange.error is None:
            seen = "before any answer" if not exchange.response.status else "inside the answer"
            exchange.error = "connection closed {}{}".format(seen, f": {exc}" if exc else "")
        self._owner.ended(self, exchange, monotonic_ns())

    def abort(self) -> None:
        """Drop the connection at once; the server sees a disconnect and stops generating."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


_READ_INTO = memoryview(bytearray(1 << 16))  # one for all: a read is over before the next begins


class BufferedConnection(Connection, asyncio.BufferedProtocol):
    """The same for asyncio's own loop, which else makes a buffer of 256 KiB for every read: 3 us of an event's cost."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - any size is allowed
        """Where the next read goes."""
        return _READ_INTO

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have been read."""
        self.data_received(bytes(_READ_INTO[:nbytes]))


def protocol_for(loop: asyncio.AbstractEventLoop) -> Type[Connection]:
    """The cheaper kind of protocol for this loop; for uvloop both cost the same, and the plain one is simpler."""
    return BufferedConnection if isinstance(loop, asyncio.SelectorEventLoop) else Connection
