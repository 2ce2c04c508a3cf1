"""sglang's child processes: one scheduler a rank and one detokenizer, titled as sglang titles them.

Each is a ``cat`` without arguments under another name (a link in the state folder, so that ``ps`` shows the
title as command and as argument). It waits on a pipe that only the server holds open, and asks the kernel to
be killed with the server: it ends with the server, however that ends. It takes a megabyte and a millisecond.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Child", "Children"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Child:
    """One child process. ``name`` is what sglang's log calls it, such as ``scheduler_0``."""

    pid: int
    title: str
    name: str


class Children:
    """The child processes of one server."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("cat")
        if program is None:
            raise SystemExit("the simulated server needs the program cat for its child processes")
        self._program = os.path.realpath(program)
        self._folder = folder / "titles"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        self.alive: dict[int, Child] = {}
        self._prctl = _prctl()

    def start(self, title: str, name: str) -> Child:
        """Start one child."""
        link = self._folder / title
        with contextlib.suppress(FileExistsError):
            link.symlink_to(self._program)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:  # nothing but system calls from here to exec
            try:
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)
                os.dup2(self._read_end, 0)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                os.execv(link, [title])  # noqa: S606 (no shell is the point)
            finally:
                os._exit(127)
        child = Child(pid, title, name)
        self.alive[pid] = child
        return child

    def watch(self, loop: asyncio.AbstractEventLoop, died: Callable[[Child, int], None]) -> None:
        """Call ``died(child, exit_code)`` when one ends; a signal's code is negative."""
        for child in self.alive.values():
            descriptor = os.pidfd_open(child.pid)
            loop.add_reader(descriptor, self._reap, loop, descriptor, child, died)

    def _reap(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        child: Child,
        died: Callable[[Child, int], None],
    ) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        if self.alive.pop(child.pid, None) is None:
            return
        _, status = os.waitpid(child.pid, 0)
        died(child, os.waitstatus_to_exitcode(status))

    def kill(self) -> None:
        """Kill those that live."""
        for pid in list(self.alive):
            del self.alive[pid]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _prctl() -> Callable[[int, int, int, int, int], int]:
    import ctypes

    prctl: Callable[[int, int, int, int, int], int] = ctypes.CDLL(None).prctl
    return prctl
