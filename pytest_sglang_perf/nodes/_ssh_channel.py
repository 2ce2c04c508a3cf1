"""The channel to one process on an SSH node.

paramiko gives standard output and standard error one window of 2 MiB together: whoever reads one and not the
other stops both. Here one pump reads both.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import paramiko

from pytest_sglang_perf.errors import ConnectionLost

from ._deadline import Deadline
from ._ssh_connection import UNKNOWN_STATUS, close_channels
from ._ssh_wire import limit_sends

if TYPE_CHECKING:
    from ._ssh_connection import Connection

__all__ = ["SshChannel"]

_STDERR_BYTES = 64 << 10
# Output that nobody receives is held up to here; then the node's process feels it, as with any full pipe.
_STDOUT_BYTES = 8 << 20
_READ_BYTES = 1 << 16
_PACKET_BYTES = 1 << 15
_CLOSE_S = 0.9
# How often a send that waits for window looks at its deadline.
_SLICE_S = 0.1


class _Bell(threading.Event):
    """Rung when a buffer of paramiko's has data or ends.

    The buffers clear an event when they run empty, each for itself; one bell for two must only be cleared by
    its listener.
    """

    def clear(self) -> None:
        pass

    def wait_and_reset(self) -> None:
        self.wait()
        super().clear()


class SshChannel:
    """A :class:`~pytest_sglang_perf.nodes.transport.Channel` over SSH.

    Args:
        channel: a session on which the command was accepted, its exit status set to UNKNOWN_STATUS before.
        connection: the connection it belongs to.
        name: how messages name the node.
    """

    def __init__(self, channel: paramiko.Channel, connection: Connection, name: str) -> None:
        self._channel = channel
        self._connection = connection
        self._name = name
        channel.settimeout(_SLICE_S)
        self._changed = threading.Condition()
        self._stdout: deque[bytes] = deque()
        self._held = 0
        self._stderr = bytearray()
        self._ended = False
        self._closed = False
        self._send_lock = threading.Lock()
        self._bell = _Bell()
        channel.in_buffer.set_event(self._bell)
        channel.in_stderr_buffer.set_event(self._bell)
        self._bell.set()
        self._pump = threading.Thread(target=self._run, name=f"{name}: output", daemon=True)
        self._pump.start()

    @property
    def closed(self) -> bool:
        """Whether this side has closed it."""
        return self._closed

    def leave(self) -> None:
        """Take what happens from now on for our own doing. Without any I/O."""
        self._closed = True

    def send(self, data: bytes, *, timeout: float) -> None:
        deadline = Deadline(timeout)
        view = memoryview(data)
        with self._send_lock, limit_sends(deadline):
            while view:
                if self._closed or not self._connection.alive:
                    raise self._lost()
                try:
                    count = self._channel.send(bytes(view[:_PACKET_BYTES]))
                except TimeoutError:  # no window; paramiko's clock is not monotonic, ours decides
                    if deadline.over():
                        raise ConnectionLost(f"{self._name}: the process took no input for {timeout:g} s") from None
                    continue
                except (paramiko.SSHException, EOFError, OSError) as error:
                    raise self._lost() from error
                if count == 0:
                    raise self._lost()
                view = view[count:]
                deadline.restart()
        # paramiko drops what it cannot send on a connection that just died, without a word.
        if not self._connection.alive:
            raise self._lost()

    def receive(self, *, timeout: float) -> bytes:
        deadline = Deadline(timeout)
        with self._changed:
            while not self._stdout:
                if self._ended:
                    if self._cut_off:
                        raise self._lost()
                    return b""
                if deadline.over():
                    raise TimeoutError(f"{self._name}: no output for {timeout:g} s")
                self._changed.wait(deadline.left())
            data = self._stdout.popleft()
            was_full = self._held >= _STDOUT_BYTES
            self._held -= len(data)
        if was_full:
            self._bell.set()
        return data

    def stderr(self) -> str:
        with self._changed:
            return self._stderr.decode("utf-8", errors="replace")

    def exit_status(self, *, timeout: float) -> int | None:
        self._channel.status_event.wait(timeout)
        status = self._channel.exit_status
        return None if status == UNKNOWN_STATUS else status

    def close(self) -> None:
        self.leave()
        close_channels([self._channel], timeout=_CLOSE_S / 2)
        self._pump.join(_CLOSE_S / 2)

    @property
    def _cut_off(self) -> bool:
        return not self._channel.eof_received

    def _lost(self) -> ConnectionLost:
        if self._closed:
            return ConnectionLost(f"{self._name}: the channel was closed on this side")
        if self._cut_off and self._channel.closed:
            # paramiko ends the channels of a dying connection a moment before the connection itself.
            self._connection.transport.join(_CLOSE_S)
        if self._connection.alive:
            return ConnectionLost(f"{self._name}: the process or its input has ended")
        return ConnectionLost(f"{self._name}: connection lost: {self._connection.loss()}")

    def _run(self) -> None:
        try:
            while self._pump_once():
                self._bell.wait_and_reset()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the connection died while we gave back window; what came before it is kept
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _pump_once(self) -> bool:
        """Move what there is; False at the end of both streams."""
        channel = self._channel
        # Asked first: what arrives before the end is then certainly in the buffers.
        ending = bool(channel.closed or channel.eof_received)
        while channel.recv_stderr_ready():
            data = channel.recv_stderr(_READ_BYTES)
            with self._changed:
                self._stderr += data
                del self._stderr[:-_STDERR_BYTES]
        while channel.recv_ready() and (ending or self._held < _STDOUT_BYTES):
            data = channel.recv(_READ_BYTES)
            with self._changed:
                self._stdout.append(data)
                self._held += len(data)
                self._changed.notify_all()
        return not ending
