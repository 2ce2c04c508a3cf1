"""Ports: is one free, who holds it, and whose process listens there."""

from __future__ import annotations

import errno
import socket
from typing import Callable, Iterable, NamedTuple, Optional

from . import procfs
from .protocol import OrderError

__all__ = ["Holder", "claim", "holder_of", "listener_among", "probe_host"]


class Holder(NamedTuple):
    """Who listens on a port: pid and command line; None where /proc does not let us see it."""

    pid: Optional[int]
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command[:200]})" if self.pid is not None else "a process we cannot see"


def probe_host(host: str) -> str:
    """Where to reach a server that was told to bind ``host``."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a name to translate


def claim(host: str, port: int) -> int:
    """The port to give a server: ``port`` if it is free, any free one for 0.

    Raises:
        OrderError: ``port_in_use`` with ``pid`` and ``command``, or ``bad_request`` for a host that is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers bind: connections of an earlier server in TIME_WAIT do not matter, listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OrderError("bad_request", f"cannot bind {host}:{port}: {error.strerror}") from None
            holder = holder_of(port)
            raise OrderError(
                "port_in_use",
                f"port {port} is held by {holder}; stop it or choose another port (0 lets us pick a free one)",
                pid=holder.pid,
                command=holder.command,
            ) from None
        return int(probe.getsockname()[1])


def holder_of(port: int, among: Callable[[], Iterable[int]] = lambda: sorted(procfs.all_processes())) -> Holder:
    """Who listens on a port, searched for among these pids."""
    pid = procfs.socket_holder(procfs.listening_inodes(port), among())
    return Holder(pid, procfs.command(pid) if pid is not None else "")


def listener_among(port: int, pids: Iterable[int]) -> Optional[int]:
    """Which of these processes listens on a port."""
    inodes = procfs.listening_inodes(port)
    return procfs.socket_holder(inodes, pids) if inodes else None
