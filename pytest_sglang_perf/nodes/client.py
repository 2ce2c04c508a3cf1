"""Our end of the wire: orders and answers, events, heartbeats, and coming back after a lost connection.

One thread reads: it hands answers to whoever waits for them and events to the subscribers. One thread beats.
Neither is ever blocked by a test. When the connection breaks, the reader tries to come back for as long as the
agent waits for us; the boot and the trial go on meanwhile, and what was missed is told again.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Self

from pytest_sglang_perf.agent.protocol import PROTOCOL, LineBuffer, encode
from pytest_sglang_perf.errors import AgentError, ConnectionLost, NodeError
from pytest_sglang_perf.nodes import bootstrap
from pytest_sglang_perf.nodes.zipapp import archive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_sglang_perf.nodes.transport import Channel, Transport

    Subscriber = Callable[[dict[str, Any]], None]

__all__ = ["AgentClient"]

_LOGGER = logging.getLogger(__name__)
_SEND_S = 10.0
_READ_S = 0.5  # how soon the reader notices that we close
_BYE_S = 1.2
_RETRY_S = 0.3
_RESUME_S = 15.0
_FILE_PART = 1024 * 1024


class _Answer:
    """A place for one answer."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.message: dict[str, Any] | None = None
        self.arrived = threading.Event()


class AgentClient:
    """The controller's side of one agent.

    Args:
        transport: the way to the node; stays the caller's.
        run: the id of this run, a uuid in hex. Whatever the agent starts carries it in its environment.
        owner: who we are, for others who wait for the lease: ``user``, ``host``, ``pid``.
        ttl_s: the agent stops everything after this many seconds without a sign of life from us.
        grace_s: the same after the connection was closed; until then we may come back.
        nvidia_smi: the argv that stands for ``nvidia-smi``; None for the one on the node's ``PATH``.
        python: the interpreter on the node, a path or a name.
        max_runtime_s: whatever happens, the agent ends everything after this many seconds.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        owner: Mapping[str, object],
        ttl_s: float = 60.0,
        grace_s: float = 15.0,
        nvidia_smi: Sequence[str] | None = None,
        python: str = "python3",
        max_runtime_s: float = 24 * 3600.0,
    ) -> None:
        self._transport = transport
        self._hello_params: dict[str, Any] = {
            "protocol": PROTOCOL,
            "run": run,
            "owner": dict(owner),
            "ttl_s": ttl_s,
            "grace_s": grace_s,
            "nvidia_smi": None if nvidia_smi is None else list(nvidia_smi),
        }
        self._grace_s = grace_s
        self._beat_s = max(0.1, min(5.0, ttl_s / 6))
        self._python = python
        self._args = ("--max-runtime", f"{max_runtime_s:g}")
        self._channel: Channel | None = None
        self._lock = threading.Lock()  # of everything below
        self._next_id = 1
        self._waiting: dict[int, _Answer] = {}
        self._subscribers: list[Subscriber] = []
        self._last_seq = 0
        self._rest = b""  # the beginning of a line that followed the answer to a resuming hello
        self._error: NodeError | None = None
        self._clock_offset_ns = 0
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def lost(self) -> str | None:
        """Why the agent can no longer be reached, or None while it can (or while we are trying to come back)."""
        return None if self._error is None else str(self._error)

    def describe(self) -> str:
        """How a message names the node."""
        return self._transport.describe()

    def now_ns(self) -> int:
        """About now on the node's monotonic clock, in ns; wrong by at most the round trip of the greeting."""
        return time.monotonic_ns() + self._clock_offset_ns

    def connect(self, *, timeout: float = 60.0) -> dict[str, Any]:
        """Start the agent and greet it; returns its answer to ``hello``.

        Raises:
            NodeError: one of its subclasses.
        """
        deadline = time.monotonic() + timeout
        channel, rest = self._open(timeout)
        self._channel = channel
        for target, name in ((self._read, "agent-read"), (self._beat, "agent-beat")):
            arguments = (channel, rest) if target == self._read else ()
            thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        sent_ns = time.monotonic_ns()
        hello = self.request("hello", timeout=max(1.0, deadline - time.monotonic()), **self._hello_params)
        self._clock_offset_ns = int(hello["mono_ns"]) - (sent_ns + time.monotonic_ns()) // 2
        return hello

    def request(self, op: str, *, timeout: float, **params: Any) -> dict[str, Any]:
        """Give an order and wait for its answer.

        Raises:
            AgentError: the agent refused it, with its kind and details; or it did not answer within ``timeout``
                seconds (kind ``timeout``).
            ConnectionLost: the agent or the way to it is gone.
        """
        with self._lock:
            if self._error is not None:
                raise type(self._error)(str(self._error))
            if self._channel is None:
                raise ConnectionLost(f"{self.describe()}: not connected")
            identity = self._next_id
            self._next_id += 1
            answer = _Answer(encode({"id": identity, "op": op, **params}))
            self._waiting[identity] = answer
        self._send(answer.line)
        try:
            if not answer.arrived.wait(timeout):
                raise AgentError(f"{self.describe()}: no answer to {op} within {timeout:g} s", kind="timeout")
        finally:
            with self._lock:
                self._waiting.pop(identity, None)
        if answer.message is None:
            assert self._error is not None
            raise type(self._error)(str(self._error))
        if "error" in answer.message:
            details = dict(answer.message["error"])
            kind, message = str(details.pop("kind", "failed")), str(details.pop("message", "failed"))
            raise AgentError(f"{self.describe()}: {message}", kind=kind, details=details)
        return dict(answer.message["ok"])

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call ``callback`` on the reader's thread with each event; returns how to end that.

        A callback that raises is not called again: it must not stop the others' events.
        """
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def read_file(self, path: str, *, timeout: float = 60.0) -> bytes:
        """A file from the run's folder on the node.

        Raises:
            AgentError, ConnectionLost: see `request`; ``timeout`` is for each part of 1 MiB.
        """
        parts: list[bytes] = []
        offset = 0
        while True:
            answer = self.request("file.read", timeout=timeout, path=path, offset=offset, length=_FILE_PART)
            part = zlib.decompress(base64.b64decode(answer["data"]))
            parts.append(part)
            offset += len(part)
            if answer["eof"]:
                return b"".join(parts)

    def close(self) -> None:
        """Tell the agent to stop everything and leave. Returns within 2 s; never raises. Idempotent."""
        if self._closing.is_set():
            return
        with contextlib.suppress(NodeError):
            self.request("bye", timeout=_BYE_S)
        self._closing.set()
        channel = self._channel
        if channel is not None:
            channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, timeout: float) -> tuple[Channel, bytes]:
        return bootstrap.start(self._transport, archive(), python=self._python, args=self._args, timeout=timeout)

    def _send(self, line: bytes) -> None:
        channel = self._channel
        # A broken channel is the reader's business: it comes back and sends again what waits for an answer.
        if channel is not None:
            with contextlib.suppress(ConnectionLost):
                channel.send(line, timeout=_SEND_S)

    def _beat(self) -> None:
        beat = encode({"op": "beat"})
        while not self._closing.wait(self._beat_s) and self._error is None:
            self._send(beat)

    # -- the reader's thread --------------------------------------------------------------------------------

    def _read(self, channel: Channel, rest: bytes) -> None:
        while True:
            why = self._read_channel(channel, rest)
            if self._closing.is_set():
                break
            channel.close()
            back = self._come_back(why)
            if back is None:
                break
            channel, rest = back
        self._give_up(ConnectionLost(f"{self.describe()}: closed"))

    def _read_channel(self, channel: Channel, rest: bytes) -> str:
        """Read until the channel ends; returns why it did."""
        buffer = LineBuffer()
        for line in buffer.feed(rest):
            self._on_line(line)
        while not self._closing.is_set():
            try:
                data = channel.receive(timeout=_READ_S)
            except TimeoutError:
                continue
            except ConnectionLost as error:
                return str(error)
            if not data:
                status = channel.exit_status(timeout=1.0)
                words = channel.stderr().strip()[-400:]
                return f"the agent ended (exit status {status}){': ' + words if words else ''}"
            for line in buffer.feed(data):
                self._on_line(line)
        return "closed"

    def _on_line(self, line: bytes) -> None:
        message = bootstrap.as_message(line)
        if "bootstrap_error" in message:
            self._give_up(bootstrap.setup_error(message, where=self.describe(), python=self._python))
            return
        seq = message.get("seq")
        if isinstance(seq, int):
            if seq <= self._last_seq:
                return  # told again
            self._last_seq = seq
        if "event" in message:
            self._publish(message)
            return
        with self._lock:
            answer = self._waiting.get(message.get("id", 0))
        if answer is not None:
            answer.message = message
            answer.arrived.set()

    def _publish(self, event: dict[str, Any]) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for callback in subscribers:
            try:
                callback(event)
            except Exception:
                _LOGGER.exception("a subscriber failed on %s and gets no more events", event.get("event"))
                with self._lock, contextlib.suppress(ValueError):
                    self._subscribers.remove(callback)

    def _come_back(self, why: str) -> tuple[Channel, bytes] | None:
        """Reconnect within the grace; returns the new channel, or None when the agent is lost."""
        deadline = time.monotonic() + self._grace_s
        while time.monotonic() < deadline and self._error is None and not self._closing.wait(_RETRY_S):
            try:
                channel, rest = self._open(max(1.0, deadline - time.monotonic()))
            except NodeError:
                continue
            answer = self._resume(channel, rest)
            if answer is None:
                channel.close()
                continue
            if "error" in answer:
                channel.close()
                break  # there is nothing to come back to
            self._channel = channel
            with self._lock:
                unanswered = [self._waiting[identity].line for identity in sorted(self._waiting)]
            for line in unanswered:
                self._send(line)  # the agent knows which of these it has heard
            return channel, self._rest
        self._give_up(ConnectionLost(f"{self.describe()}: {why}"))
        return None

    def _resume(self, channel: Channel, rest: bytes) -> dict[str, Any] | None:
        """Greet the agent that we lost; returns its answer, or None when the channel broke again."""
        with self._lock:
            answer = _Answer(b"")
            identity = self._next_id
            self._next_id += 1
            self._waiting[identity] = answer
        hello = {**self._hello_params, "resume": True, "last_seq": self._last_seq}
        deadline = time.monotonic() + _RESUME_S
        buffer = LineBuffer()
        data = rest
        try:
            channel.send(encode({"id": identity, "op": "hello", **hello}), timeout=_SEND_S)
            while not answer.arrived.is_set():
                # What was missed comes first, and counts as read: the answer is the last of it.
                for line in buffer.feed(data):
                    self._on_line(line)
                if answer.arrived.is_set() or time.monotonic() > deadline:
                    break
                with contextlib.suppress(TimeoutError):
                    data = b""
                    data = channel.receive(timeout=_READ_S)
                    if not data:
                        break
        except ConnectionLost:
            return None
        finally:
            with self._lock:
                self._waiting.pop(identity, None)
        self._rest = buffer.rest()
        return answer.message

    def _give_up(self, error: NodeError) -> None:
        with self._lock:
            self._error = self._error or error
            waiting = list(self._waiting.values())
        for answer in waiting:
            answer.arrived.set()
