"""How a controller comes back to a running agent: through a second agent that only passes bytes on.

A lost connection cannot be picked up again, but a new one starts a new agent, and that finds the socket of the
running one in the run's private folder. From then on the new agent is a relay.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .protocol import OrderError

if TYPE_CHECKING:
    from .link import Link

__all__ = ["Relay", "listen"]

_NAME = "agent.sock"


def listen(run_dir: Path) -> socket.socket:
    """The socket that relays connect to."""
    with _FolderAddress(run_dir) as address:
        Path(address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address)
        Path(address).chmod(0o600)
    listener.listen(4)
    listener.setblocking(False)
    return listener


class Relay:
    """Passes bytes between our controller and the agent that it lost.

    Args:
        run_dir: the folder of the run.
        controller: the link to our controller.

    Raises:
        OrderError: ``nothing_to_resume``.
    """

    def __init__(self, run_dir: Path, controller: Link) -> None:
        self._controller = controller
        self._agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _FolderAddress(run_dir) as address:
                self._agent.connect(address)
        except OSError as error:
            self._agent.close()
            raise OrderError("nothing_to_resume", f"no agent of this run is left: {error}") from None
        threading.Thread(target=self._back, name="relay", daemon=True).start()

    def pass_on(self, line: bytes) -> None:
        """Give a line of the controller to the agent."""
        try:
            self._agent.sendall(line + b"\n")
        except OSError:
            self._controller.end()

    def close(self) -> None:
        """Let the agent see that its controller left."""
        self._agent.close()

    def _back(self) -> None:
        try:
            while True:
                data = self._agent.recv(256 * 1024)
                if not data:
                    break
                self._controller.write(data)
        except OSError:
            pass
        self._controller.end()


class _FolderAddress:
    """A short name for a socket in a folder: addresses are limited to 107 bytes, folders are not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._fd}/{_NAME}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
