"""A TCP proxy of the tests' between a client and a server: it delays, falls silent, or cuts, on order.

What a network does to a connection without any right to change the machine's own: `delay` holds every part back,
`freeze` is a cable that was pulled (nothing passes, nobody is told), `cut` is a peer that resets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_PART = 64 * 1024
_SLICE_S = 0.2


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes on to ``target``, another port there."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._delay_s = 0.0
        self._passing = threading.Event()
        self._passing.set()
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener.settimeout(_SLICE_S)
        self._thread = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._thread.start()

    def delay(self, seconds: float) -> None:
        """Hold every part back for so long, in each direction."""
        self._delay_s = seconds

    def freeze(self) -> None:
        """Pass nothing on any more, and let nobody know."""
        self._passing.clear()

    def thaw(self) -> None:
        """Pass on again, also what was held."""
        self._passing.set()

    def cut(self) -> None:
        """Reset every connection, and every new one."""
        self._refusing = True
        self._reset()

    def heal(self) -> None:
        """Work again as at first."""
        self._refusing = False
        self._delay_s = 0.0
        self.thaw()

    def close(self) -> None:
        """Stop; every connection is reset."""
        self._closed = True
        self._reset()
        self._passing.set()
        self._thread.join(5)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _reset(self) -> None:
        with self._lock:
            connections, self._open = self._open, set()
        for one in connections:
            with contextlib.suppress(OSError):
                # Linger for 0 s: the peer gets a reset and not an orderly end.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD)
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), name="proxy-pass", daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_PART):
                if self._delay_s:
                    time.sleep(self._delay_s)
                self._passing.wait()
                sink.sendall(data)
        except OSError:
            pass
        if not self._closed:
            # An end that a frozen network cannot tell is told once it works again.
            self._passing.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
