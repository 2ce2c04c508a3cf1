"""The seam between us and a node: bytes to and from one agent process, and a way to its ports.

Everything above this module speaks the agent's wire protocol and cannot tell a local node from a remote one.
A transport knows nothing of that protocol, and a fake one fits in twenty lines of a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Channel", "Transport"]


class Channel(Protocol):
    """A byte stream to the standard input and output of one process on the node."""

    def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of ``data``.

        Raises:
            ConnectionLost: the process or the way to it is gone, or took nothing for ``timeout`` seconds.
        """

    def receive(self, *, timeout: float) -> bytes:
        """Return the next bytes of standard output, ``b""`` at its end.

        Raises:
            TimeoutError: nothing arrived within ``timeout`` seconds; the channel is still good.
            ConnectionLost: the way to the process is gone.
        """

    def stderr(self) -> str:
        """What the process has written to standard error so far (its last 64 KiB)."""

    def exit_status(self, *, timeout: float) -> int | None:
        """The exit status, negative for a signal, or None when it did not end within ``timeout`` seconds."""

    def close(self) -> None:
        """Close standard input and the channel. Never blocks for more than a second; never raises."""


class Transport(Protocol):
    """A way to run the agent on one node."""

    def open(self, command: str) -> Channel:
        """Run ``command`` through the node's login shell and return a channel to it.

        ``command`` is always one of this package's constants (``nodes/bootstrap.py``).

        Raises:
            NodeUnreachable, HostKeyError: with what was tried and what to do.
        """

    def forward(self, port: int) -> AbstractContextManager[int]:
        """Make 127.0.0.1:``port`` of the node reachable; yields the local port on 127.0.0.1."""

    def describe(self) -> str:
        """How a message names this node, such as ``ssh root@blackwell:22``."""

    def close(self) -> None:
        """Give back every connection, thread and socket. Idempotent."""
