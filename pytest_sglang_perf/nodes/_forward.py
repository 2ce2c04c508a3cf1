"""A port of the node on 127.0.0.1 here, for the requests that tests themselves make.

Two threads a connection, each copying one direction: simple, and enough for tests. Load never passes here.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import paramiko

from ._deadline import Deadline
from ._ssh_connection import close_channels

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._ssh_connection import Connection

__all__ = ["Forward"]

_OPEN_S = 10.0
_CLOSE_S = 1.0
_COPY_BYTES = 1 << 16
_SLICE_S = 0.25  # how often a blocked copy looks whether it is still wanted
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close with RST
_log = logging.getLogger(__name__)


class Forward:
    """Listens on a free port of 127.0.0.1 (``local_port``) until it is closed."""

    def __init__(self, connection: Connection, port: int) -> None:
        self._connection = connection
        self._port = port
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.local_port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name=f"forward to {port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the listener and every connection, and wait for their threads. Idempotent."""
        with self._lock:
            self._closed = True
            links = list(self._links)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        for link in links:
            link.abort()
        close_channels([link.channel for link in links if link.channel is not None], timeout=_CLOSE_S)
        deadline = Deadline(_CLOSE_S)
        for thread in (self._thread, *(thread for link in links for thread in link.threads)):
            thread.join(deadline.left())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                _log.warning("the forward to port %d cannot accept: %s", self._port, error)
                time.sleep(_SLICE_S)  # out of descriptors, most likely; some may come free
                continue
            link = _Link(client, self._connection, self._port, self._forget)
            with self._lock:
                if self._closed:
                    link.abort()
                    return
                self._links.add(link)
                link.threads[0].start()

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection: the client's socket, the channel to the node's port, a thread for each direction."""

    def __init__(
        self, client: socket.socket, connection: Connection, port: int, done: Callable[[_Link], object]
    ) -> None:
        self._client = client
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(_SLICE_S)
        self._connection = connection
        self._port = port
        self._done = done
        self._aborted = False
        self.channel: paramiko.Channel | None = None
        self.threads = [
            threading.Thread(target=self._to_node, name=f"forward to {port}: up", daemon=True),
        ]

    def abort(self) -> None:
        """Reset the client's connection, so that it cannot take what it has for the whole answer."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if not self.threads[0].is_alive():
            self._client.close()

    def _to_node(self) -> None:
        channel: paramiko.Channel | None = None
        try:
            channel = self.channel = self._open()
            if channel is None or self._aborted:
                self.abort()
                return
            back = threading.Thread(
                target=self._from_node, args=(channel,), name=f"forward to {self._port}: down", daemon=True
            )
            self.threads.append(back)
            back.start()
            try:
                while data := self._receive():
                    channel.sendall(data)
                channel.shutdown_write()
            except (OSError, EOFError, paramiko.SSHException):
                self.abort()
                _close(channel)
            back.join()
        finally:
            self._client.close()
            if channel is not None:
                _close(channel)
            self._done(self)

    def _receive(self) -> bytes:
        while not self._aborted:
            with contextlib.suppress(TimeoutError):
                return self._client.recv(_COPY_BYTES)
        raise ConnectionAbortedError

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._aborted:
                raise ConnectionAbortedError
            with contextlib.suppress(TimeoutError):
                view = view[self._client.send(view) :]

    def _open(self) -> paramiko.Channel | None:
        try:
            channel = self._connection.transport.open_channel(
                "direct-tcpip", ("127.0.0.1", self._port), self._client.getsockname(), timeout=_OPEN_S
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            # As if the port itself had refused: the client sees a reset, the log the reason.
            _log.warning("%s does not connect to its port %d: %s", self._connection.config, self._port, error)
            return None
        channel.settimeout(None)  # the death of the connection ends every wait
        return channel

    def _from_node(self, channel: paramiko.Channel) -> None:
        try:
            while data := channel.recv(_COPY_BYTES):
                self._send(data)
            if channel.eof_received and not self._aborted:
                self._client.shutdown(socket.SHUT_WR)
            else:
                self.abort()
        except (OSError, EOFError, paramiko.SSHException):
            self.abort()
            _close(channel)  # wakes the other direction, which may wait for the node


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()
