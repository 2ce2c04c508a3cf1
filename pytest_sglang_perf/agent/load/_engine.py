"""The engine: keeps a level of requests going against one server, from one process and one event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import monotonic_ns
from typing import IO, Any, Deque, Dict, List, Optional, Set
from urllib.parse import urlsplit

from ._connection import Connection, protocol_for
from ._digest import Digester
from ._probe import LoopProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ._peek import Peek
    from ._requests import Exchange, RequestFactory
    from ._spec import Spec

    class Conductor(Protocol):
        """Who decides when the trial is over; in this process or in the one that started it."""

        def full(self, now_ns: int) -> None:
            """The level is reached."""

        def completed(self, index: int, end_ns: int) -> None:
            """A request ended, one way or another."""

        def exhausted(self) -> None:
            """Nothing is left to be sent, and everything sent has ended."""

    class Pattern(Protocol):
        """When requests are sent."""

        def ended(self, connection: Connection) -> None:
            """This connection has finished a request."""

        def dropped(self, connection: Connection) -> None:
            """This idle connection was closed by the server."""


_CONNECT_AT_ONCE = 64
_CONNECT_TIMEOUT_S = 30.0
_WATCH_S = 0.25


class Engine:
    """Runs one trial's share of requests.

    Args:
        spec: the trial.
        factory: builds requests.
        loop: the event loop, not yet running.
        conductor: hears of every completion.
        records: where records go, or None.
        share: (worker, workers); this engine sends the requests whose index is worker modulo workers.
    """

    def __init__(
        self,
        spec: Spec,
        factory: RequestFactory,
        loop: asyncio.AbstractEventLoop,
        conductor: Conductor,
        *,
        records: Optional[IO[str]] = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.spec = spec
        self.loop = loop
        self.factory = factory
        self.conductor = conductor
        self.digester = Digester(spec, loop, records)
        self.probe = LoopProbe(loop)
        self.worker, self.workers = share
        self.connections: Set[Connection] = set()
        self.in_flight = 0
        self.peak_in_flight = 0
        self.sent = 0
        self.reconnects = 0
        self.resent = 0
        self.connect_errors: Dict[str, int] = {}
        self.stopped: asyncio.Future[str] = loop.create_future()
        self.pattern: Optional[Pattern] = None
        self.peek: Optional[Peek] = None
        self._protocol = protocol_for(loop)
        self._next_index = self.worker
        self._ready: Deque[Exchange] = deque()
        self._failures_in_a_row = 0
        self._ended_ns = 0
        self._tasks: Set[asyncio.Task[Any]] = set()
        parts = urlsplit(spec.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None

    @property
    def over(self) -> bool:
        """Whether the trial has ended."""
        return self.stopped.done()

    def stop(self, reason: str) -> None:
        """End the trial; the first reason stands."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    # --- connections -----------------------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """Open one connection.

        Raises:
            OSError: refused, timed out, or out of file descriptors.
        """
        connecting = self.loop.create_connection(lambda: self._protocol(self), self._host, self._port, ssl=self.tls)
        try:
            _, connection = await asyncio.wait_for(connecting, _CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise OSError(f"no connection within {_CONNECT_TIMEOUT_S:g} s") from None
        return connection

    async def connect_all(self, count: int) -> List[Connection]:
        """Open ``count`` connections before the clock starts, a few at a time.

        Raises:
            OSError: one of them could not be opened.
        """
        connections: List[Connection] = []
        while len(connections) < count:
            batch = min(_CONNECT_AT_ONCE, count - len(connections))
            opened = await asyncio.gather(*(self.connect() for _ in range(batch)), return_exceptions=True)
            connections += [result for result in opened if isinstance(result, Connection)]
            self.connections.update(connections)
            for result in opened:
                if isinstance(result, BaseException):
                    raise result
        return connections

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside the rest; its end is awaited nowhere."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- requests --------------------------------------------------------------------------------------------

    def prepare(self) -> Exchange:
        """The next request: one built ahead if there is one."""
        if self._ready:
            return self._ready.popleft()
        index = self._next_index
        self._next_index += self.workers
        return self.factory.build(index)

    def build_ahead(self) -> None:
        """Build one request while nothing else is to be done."""
        index = self._next_index
        self._next_index += self.workers
        self._ready.append(self.factory.build(index))

    def send(self, connection: Connection, exchange: Exchange) -> None:
        """Put a request on its way."""
        self.sent += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        connection.send(exchange)

    # --- what connections tell -------------------------------------------------------------------------------

    def arrived(self, exchange: Exchange) -> None:
        """Connection: decode some of this."""
        self.digester.push(exchange)

    def dropped(self, connection: Connection) -> None:
        """Connection: closed while idle."""
        self.connections.discard(connection)
        if self.pattern is not None and not self.over:
            self.pattern.dropped(connection)

    def ended(self, connection: Connection, exchange: Exchange, now_ns: int) -> None:
        """Connection: this exchange is over."""
        self.in_flight -= 1
        # Closed by the server just as we wrote on an idle connection: nobody's fault, and nothing was generated.
        unheard = exchange.error is not None and connection.reused and connection.last_ns == exchange.sent_ns
        if self.over:
            exchange.aborted = exchange.aborted or (unheard and self.stopped.result() == "done")
            self._over(exchange, now_ns)
            return
        if unheard:
            self.resent += 1
            self.spawn(self._resend(connection, exchange))
            return
        self._over(exchange, now_ns)
        self._ended_ns = now_ns
        if self.pattern is not None:
            self.pattern.ended(connection)
        self.conductor.completed(exchange.index, now_ns)

    async def _resend(self, connection: Connection, exchange: Exchange) -> None:
        why, exchange.error = exchange.error, None
        exchange.response = type(exchange.response)()
        fresh = None
        try:
            fresh = await self.reconnect(connection)
        finally:
            if fresh is not None and not self.over:
                self.send(fresh, exchange)
            else:  # the trial ended meanwhile: held against the server only if that is why
                exchange.error = why
                exchange.aborted = not self.over or self.stopped.result() != "server_died"
                self._over(exchange, monotonic_ns())

    def _over(self, exchange: Exchange, now_ns: int) -> None:
        exchange.end_ns = now_ns
        exchange.payload = b""
        failed = exchange.error is not None or exchange.response.status != 200
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        self.digester.push(exchange)

    async def reconnect(self, connection: Optional[Connection]) -> Optional[Connection]:
        """A fresh connection, in place of a closed one if given; None when the trial is over."""
        if connection is not None:
            self.connections.discard(connection)
        pause = 0.0
        while not self.over:
            if pause:
                await asyncio.sleep(pause)
            try:
                fresh = await self.connect()
            except OSError as error:
                self._connect_failed(error)
                pause = min(1.0, pause * 2 or 0.05)
                continue
            self.connections.add(fresh)
            self.reconnects += connection is not None
            return fresh
        return None

    def _connect_failed(self, error: OSError) -> None:
        text = error.strerror or str(error)
        self.connect_errors[text] = self.connect_errors.get(text, 0) + 1
        if isinstance(error, ConnectionRefusedError) and not self.in_flight:
            self.stop("server_died")  # nobody listens, and no stream is alive that could prove otherwise

    @property
    def backoff_s(self) -> float:
        """How long to wait after a failure before the next request, so that errors are not hammered."""
        return min(1.0, 0.02 * self._failures_in_a_row) if self._failures_in_a_row else 0.0

    # --- guards ----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Deadline, stalls, and a server that answers nothing but errors."""
        limits = self.spec.limits
        began = monotonic_ns()
        least = max(8, min(64, self.spec.arrival.concurrency))
        while not self.over:
            await asyncio.sleep(_WATCH_S)
            now = monotonic_ns()
            self.probe.mark_cpu()
            tally = self.digester.tally
            if now - began > limits.deadline_s * 1e9:
                self.stop("deadline")
            elif not tally.counts["ok"] and sum(tally.counts.values()) >= least:
                self.stop("all_failed")
            else:
                self._watch_stalls(now, int(limits.stall_s * 1e9))

    @property
    def silent_since_ns(self) -> int:
        """Since when no stream has received a byte; 0 while none is waited for."""
        waiting = [c.exchange.sent_ns or 0 for c in self.connections if c.exchange is not None]
        if not waiting:
            return 0
        heard = (c.last_ns for c in self.connections if c.exchange is None or c.last_ns != c.exchange.sent_ns)
        # What is sent now and then must not hide that nothing is answered, so the oldest question counts.
        return max(self._ended_ns, min(waiting), max(heard, default=0))

    def _watch_stalls(self, now: int, limit_ns: int) -> None:
        last = [c.last_ns for c in self.connections if c.exchange is not None]
        if not last or now - min(last) <= limit_ns:
            return
        everywhere = now - max(last) > limit_ns
        for connection in list(self.connections):
            if connection.exchange is not None and now - connection.last_ns > limit_ns:
                connection.exchange.error = "stalled: no byte for %.0f s" % (limit_ns / 1e9)
                if not everywhere:
                    connection.abort()
        if everywhere:
            self.stop("stall")

    async def close(self) -> None:
        """Abort what is still running and finish the records."""
        self.probe.stop()
        for connection in list(self.connections):
            exchange = connection.exchange
            if exchange is not None:
                exchange.aborted = exchange.error is None
                exchange.error = exchange.error or "stopped at the end of the trial"
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(1000):  # aborted transports report their loss on the next turns of the loop
            if not any(c.exchange is not None for c in self.connections):
                break
            await asyncio.sleep(0.001)
        self.digester.drain()
