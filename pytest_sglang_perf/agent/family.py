"""The processes of one server: its parent, what descends from it, and what escaped but is still ours.

A process that gives itself a title, as sglang's workers do, may overwrite the environment that would name it, and one
whose parent ends is no longer a descendant. So whatever was once seen below the server is remembered.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Iterator, List, Set, Tuple

from . import command, procfs
from .children import Child, Children
from .procfs import Process
from .sweep import carriers

__all__ = ["Family"]


class Family:
    """Who belongs to a server.

    Args:
        parent: the process that was started.
        children: knows which other processes are the agent's own.
        run: the run's id.
        boot: the boot's name.
        alone: whether this is the only server that is not swept yet.

    Attributes:
        seen: what was found below the parent at the last look, pid to start time.
    """

    def __init__(self, parent: Child, children: Children, *, run: str, boot: str, alone: Callable[[], bool]) -> None:
        self._parent = parent
        self._children = children
        self._run = run
        self._boot = boot
        self._alone = alone
        self._strangers: Set[Tuple[int, int]] = set()
        self.seen: Dict[int, int] = {}

    def below(self) -> List[Process]:
        """Look: the processes of the server without its parent."""
        processes = procfs.all_processes()
        known = {**self.seen, self._parent.pid: self._parent.start}
        roots = {pid for pid, start in known.items() if pid in processes and processes[pid].start == start}
        roots.update(one.pid for one in carriers(self._run, processes, boot=self._boot, strangers=self._strangers))
        roots.update(self._strays(processes))
        pids = {pid for pid in procfs.descendants(processes, roots) | roots if not self._is_the_agents(pid)}
        pids.discard(self._parent.pid)
        self.seen = {pid: processes[pid].start for pid in pids}
        return [processes[pid] for pid in sorted(pids)]

    def everyone(self) -> List[Process]:
        """Look: the parent first, while it runs, and all the others."""
        own = None if self._parent.exited.done() else procfs.process(self._parent.pid)
        return ([own] if own is not None else []) + self.below()

    def pids(self) -> Iterator[int]:
        """Everyone's pid, lazily: whoever searches these mostly finds what it looks for among those that are known."""
        known = [self._parent.pid, *self.seen]
        yield from known
        yield from (one.pid for one in self.below() if one.pid not in known)

    def stopped(self) -> List[Process]:
        """Those known that are stopped or held by a debugger."""
        known = {self._parent.pid: self._parent.start, **self.seen}
        found = [one for one in map(procfs.process, known) if one is not None and one.start == known[one.pid]]
        return [one for one in found if one.stopped]

    def recorded(self) -> Dict[int, int]:
        """What runs as far as is known, pid to start time."""
        if self._parent.exited.done():
            return dict(self.seen)
        return {**self.seen, self._parent.pid: self._parent.start}

    def _strays(self, processes: Dict[int, Process]) -> List[int]:
        """What we inherited and cannot be told from its environment: of this server, if there is no other."""
        if not self._alone():
            return []
        me = os.getpid()
        return [
            one.pid
            for one in processes.values()
            if one.ppid == me and one.start >= self._parent.start and not self._is_the_agents(one.pid)
        ]

    def _is_the_agents(self, pid: int) -> bool:
        return self._children.is_ours(pid) or command.is_ours(pid)
