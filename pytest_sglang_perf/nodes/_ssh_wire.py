"""What paramiko reads from and writes to: a socket that knows when its peer is dead.

Quirks of paramiko that end here:

* It polls its socket with a 0.1 s timeout and takes *every* ``TimeoutError`` for such a poll, also the
  kernel's ETIMEDOUT that ends a connection.
* It retries a write for ever while the kernel's buffer is full.
* Its keepalives ask for no reply and count none, so that a dead peer is found by TCP after 15 minutes.
* Its ``ProxyCommand`` spins at end of file, never drains standard error and leaves a zombie.
* It never sets TCP_NODELAY, so that small messages wait 40 ms for a delayed ACK.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Protocol

from pytest_sglang_perf.errors import NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._deadline import Deadline

__all__ = ["PeerDead", "ProxySocket", "Stream", "Wire", "dial", "limit_sends"]

# One read serves many of paramiko's small ones: a packet is a header, a body and a MAC to it.
_READ_BYTES = 1 << 16
# Requests that must go unanswered before silence means death: a laptop that slept has asked none.
_UNANSWERED = 2
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

_limits = threading.local()


class PeerDead(EOFError):
    """The peer is silent, or the kernel gave the connection up. The text is the reason."""


class Stream(Protocol):
    """The part of a socket that a wire needs; paramiko's channels have it too."""

    def recv(self, nbytes: int, /) -> bytes: ...

    def send(self, s: bytes, /) -> int: ...

    def settimeout(self, timeout: float | None, /) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def limit_sends(deadline: Deadline) -> Iterator[None]:
    """Let writes of this thread fail after ``deadline``, on every wire that they pass through.

    paramiko holds the half-written packet, so that a connection on which this strikes is lost.
    """
    _limits.deadline = deadline
    try:
        yield
    finally:
        _limits.deadline = None


class Wire:
    """A socket for paramiko, with a sense for silence.

    ``reason`` says why it died, empty while it lives.
    """

    def __init__(self, stream: Stream) -> None:
        self.reason = ""
        self._stream = stream
        self._closed = False  # read by paramiko, which knows sockets that well
        self._buffer = b""
        self._keepalive_s = 0.0
        self._ask: Callable[[], object] | None = None
        self._heard = self._asked = time.monotonic()
        self._unanswered = 0
        self._stuck_since: float | None = None

    def watch(self, keepalive_s: float, ask: Callable[[], object]) -> None:
        """From now on call ``ask`` after each ``keepalive_s`` of silence, and die of silence after three."""
        self._heard = self._asked = time.monotonic()
        self._keepalive_s, self._ask = keepalive_s, ask

    def recv(self, count: int) -> bytes:
        if not self._buffer:
            try:
                self._buffer = self._stream.recv(_READ_BYTES)
            except TimeoutError as error:
                if error.errno == errno.ETIMEDOUT:
                    raise self._die("TCP got no acknowledgement from the other end") from error
                self._on_silence()
                raise
            except OSError as error:
                raise self._die(error.strerror or str(error)) from error
            if not self._buffer:
                raise self._die("the other end closed it")
            self._heard = time.monotonic()
            self._unanswered = 0
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def send(self, data: bytes) -> int:
        try:
            count = self._stream.send(data)
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:
                raise self._die("TCP got no acknowledgement from the other end") from error
            self._on_stuck()
            raise
        except OSError as error:
            raise self._die(error.strerror or str(error)) from error
        self._stuck_since = None
        return count

    def settimeout(self, timeout: float | None) -> None:
        self._stream.settimeout(timeout)

    def close(self) -> None:
        self._closed = True
        if isinstance(self._stream, socket.socket):
            # Wakes a thread that is inside recv, which closing alone does not.
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _die(self, reason: str) -> PeerDead:
        if self._closed:
            return PeerDead(self.reason or "closed on this side")
        self.reason = reason
        self.close()
        return PeerDead(reason)

    def _on_silence(self) -> None:
        """Called about ten times a second by paramiko's reading thread while nothing arrives."""
        if self._ask is None:
            return
        now = time.monotonic()
        if now - max(self._heard, self._asked) < self._keepalive_s:
            return
        if self._unanswered >= _UNANSWERED:
            silent_s = now - self._heard
            raise self._die(
                f"nothing was heard for {silent_s:.1f} s and {self._unanswered} keepalive requests stayed unanswered"
            )
        self._unanswered += 1
        self._asked = now
        self._ask()

    def _on_stuck(self) -> None:
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        stuck_s = now - self._stuck_since
        limit: Deadline | None = getattr(_limits, "deadline", None)
        too_long = 0 < (_UNANSWERED + 1) * self._keepalive_s < stuck_s
        if too_long or (limit is not None and limit.over()):
            raise self._die(f"the other end took no data for {stuck_s:.1f} s")


def dial(
    host: str,
    port: int,
    *,
    deadline: Deadline,
    dead_after_s: float,
    address_family: str = "any",
    bind_address: str | None = None,
) -> socket.socket:
    """Connect to ``host`` and return a socket that is quick with small messages and notices a dead peer.

    Raises:
        NodeUnreachable: the name has no address, or none of its addresses answers before ``deadline``.
    """
    addresses = _lookup(host, port, deadline, _FAMILIES.get(address_family, socket.AF_UNSPEC))
    failures: list[str] = []
    for family, kind, proto, _, address in addresses:
        sock = socket.socket(family, kind, proto)
        try:
            if bind_address:
                sock.bind((bind_address, 0))
            sock.settimeout(max(deadline.left(), 0.001))
            sock.connect(address)
        except TimeoutError:
            failures.append(f"{address[0]} did not answer within {deadline.seconds:g} s")
            sock.close()
        except OSError as error:
            failures.append(f"{address[0]}: {error.strerror or error}")
            sock.close()
        else:
            _tune(sock, dead_after_s)
            return sock
    raise NodeUnreachable(
        f"cannot connect to {host} port {port}: {'; '.join(failures)}. "
        "Is the host up, is the port sshd's, and does a firewall let it through?"
    )


def _lookup(host: str, port: int, deadline: Deadline, family: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    # getaddrinfo has no timeout of its own, and a dead resolver takes half a minute.
    answer: list[object] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    thread.start()
    thread.join(deadline.left())
    found = answer[0] if answer else TimeoutError(f"no answer within {deadline.seconds:g} s")
    if isinstance(found, Exception):
        reason = getattr(found, "strerror", None) or found
        raise NodeUnreachable(
            f"the name {host} has no address: {reason}. Is it spelt as in your ssh configuration?"
        ) from found
    return found  # type: ignore[return-value]  # a list of getaddrinfo's tuples


def _tune(sock: socket.socket, dead_after_s: float) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, int(dead_after_s))
    for name, value in (  # each is missing on some platform
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", max(1, seconds // 3)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(dead_after_s * 1000)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class ProxySocket:
    """The standard input and output of a ProxyCommand, as one stream.

    Raises:
        NodeUnreachable: the command cannot be started.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._complaint = ""
        self._closing = threading.Lock()  # the reading thread and the one that gives up may meet here
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", f"exec {command}"],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._stderr,
                    start_new_session=True,  # a Ctrl-C for pytest must not cut the line before teardown
                )
        except OSError as error:
            self._socket.close()
            self._stderr.close()
            raise NodeUnreachable(f"cannot run ProxyCommand {command!r}: {error}") from error

    def recv(self, nbytes: int, /) -> bytes:
        return self._socket.recv(nbytes)

    def send(self, s: bytes, /) -> int:
        return self._socket.send(s)

    def settimeout(self, timeout: float | None, /) -> None:
        self._socket.settimeout(timeout)

    @property
    def complaint(self) -> str:
        """The last lines that the command wrote to standard error, known once this is closed."""
        return self._complaint

    def close(self) -> None:
        with self._closing:
            if not self._stderr.closed:
                self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(0.3)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), 2048, max(0, size - 2048))
        self._complaint = tail.decode(errors="replace").strip()
        self._stderr.close()

    def _signal(self, number: signal.Signals) -> None:
        # The group is the command's own session, so that its helpers go with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
