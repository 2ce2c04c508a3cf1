"""Which processes of a server matter, and noticing at once when one of them dies.

sglang's parent outlives a dead detokenizer by a minute and a dead data-parallel rank for ever. So we watch: what
titles itself ``sglang::…``, and what is alive when the server becomes ready. Compilers and other helpers come and
go, and their end means nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from . import procfs
from .procfs import Process

__all__ = ["Watch", "Watched", "is_helper"]

_TITLED = re.compile(r"^sglang::")
_HELPERS = frozenset(
    [
        "ninja",
        "nvcc",
        "cicc",
        "cudafe++",
        "ptxas",
        "fatbinary",
        "nvlink",
        "bin2c",
        "gcc",
        "g++",
        "cc",
        "c++",
        "cc1",
        "cc1plus",
        "clang",
        "clang++",
        "clang-cpp",
        "collect2",
        "lto1",
        "ld",
        "ld.bfd",
        "ld.gold",
        "ld.lld",
        "lld",
        "as",
        "ar",
        "cmake",
        "make",
        "sh",
        "bash",
        "dash",
        "env",
        "uname",
        "lscpu",
        "lspci",
        "ldconfig",
        "nvidia-smi",
        "nvidia-cuda-mps-control",
        "git",
        "which",
        "ps",
        "py-spy",
        "gdb",
        "cuobjdump",
        "nvdisasm",
        "hipcc",
        "tilelang",
        "triton",
    ]
)
_HELPER_CODE = re.compile(r"multiprocessing\.resource_tracker|multiprocessing\.forkserver")
_SHORT_LIVED_S = 2.0
_ENDING_S = 1.0  # how long we wait for the exit status of a process whose end has begun
_CHECK_S = 0.1  # a look at a dozen processes takes a fifth of a millisecond


class Watched(NamedTuple):
    """A process whose death matters."""

    pid: int
    start: int
    title: str


def is_helper(command: str) -> bool:
    """Whether a command line is that of a compiler or another process that is meant to end."""
    words = command.split(" ")
    name = os.path.basename(words[0])
    if name in _HELPERS:
        return True
    return bool(_HELPER_CODE.search(command))


class Watch:
    """Watches the processes below one server.

    Args:
        loop: the running event loop.
        on_death: called with the process and its exit code, or None where that cannot be had.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_death: Callable[[Watched, Optional[int]], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._watched: Dict[int, Watched] = {}
        self._handles: Dict[int, int] = {}
        self._ending: Dict[int, float] = {}  # in the order in which their ends began
        self._timer: Optional[asyncio.TimerHandle] = None

    def update(self, below: List[Process]) -> None:
        """Take note of the processes that now are below the server."""
        for one in below:
            known = self._watched.get(one.pid)
            if one.dead or (known is not None and known.start == one.start):
                continue
            title = procfs.command(one.pid)
            if _TITLED.match(title):
                self._add(Watched(one.pid, one.start, title))

    def ready(self, below: List[Process]) -> List[Watched]:
        """The server is ready: whatever is below it now matters. Returns the watched."""
        for one in below:
            title = procfs.command(one.pid)
            if one.pid not in self._watched and not one.dead and title and not is_helper(title):
                self._add(Watched(one.pid, one.start, title))
        return sorted(self._watched.values())

    def check(self) -> None:
        """Look for deaths that the kernel does not tell us of, or not yet."""
        now = time.monotonic()
        for watched in list(self._watched.values()):
            if not procfs.lives(watched.pid, watched.start):
                self._died(watched)
            elif procfs.exiting(watched.pid, watched.start):
                since = self._ending.setdefault(watched.pid, now)
                if now - since > _ENDING_S:
                    self._died(watched)

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pid in list(self._watched):
            self._forget(pid)

    def _add(self, watched: Watched) -> None:
        self._forget(watched.pid)
        self._watched[watched.pid] = watched
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_S, self._tick)
        try:
            handle = os.pidfd_open(watched.pid)
        except (AttributeError, OSError):
            return  # check() will see it
        self._handles[watched.pid] = handle
        self._loop.add_reader(handle, self._died, watched)

    def _tick(self) -> None:
        """Look often: between the end of one rank and that of all others lie some tenths of a second."""
        self._timer = self._loop.call_later(_CHECK_S, self._tick) if self._watched else None
        self.check()

    def _died(self, watched: Watched) -> None:
        """Report a death, and before it those whose end began earlier: who went first is to blame."""
        if self._watched.get(watched.pid) != watched:
            return
        for pid in list(self._ending):
            if pid == watched.pid:
                break
            self._report(self._watched[pid])
        self._report(watched)

    def _report(self, watched: Watched) -> None:
        code = procfs.exit_code(watched.pid)
        self._forget(watched.pid)
        lived_s = procfs.since_start_s() - watched.start / procfs.TICKS_PER_S
        if _TITLED.match(watched.title) or lived_s >= _SHORT_LIVED_S:
            self._on_death(watched, code)

    def _forget(self, pid: int) -> None:
        self._watched.pop(pid, None)
        self._ending.pop(pid, None)
        handle = self._handles.pop(pid, None)
        if handle is not None:
            self._loop.remove_reader(handle)
            os.close(handle)
