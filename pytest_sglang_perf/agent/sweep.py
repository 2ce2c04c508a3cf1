"""Leave nothing behind: find and kill every process that is ours.

Ours is what descends from us (a subreaper inherits those that escaped by a double fork and a session of their
own), and what carries our run's id in the environment that it was started with. Nothing is ever found by name or
port, and no process is signalled without its start time having been compared.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple

from . import procfs
from .procfs import Process

__all__ = ["AGENT_VARIABLE", "BOOT_VARIABLE", "RUN_VARIABLE", "carriers", "kill_until_gone"]

RUN_VARIABLE = "SGLANG_PERF_RUN"
BOOT_VARIABLE = "SGLANG_PERF_BOOT"
AGENT_VARIABLE = "SGLANG_PERF_AGENT"  # "pid:start" of the agent and its guardian, comma-separated

_PAUSE_S = 0.02


def carriers(
    run: str,
    processes: Optional[Dict[int, Process]] = None,
    *,
    boot: Optional[str] = None,
    strangers: Optional[Set[Tuple[int, int]]] = None,
) -> List[Process]:
    """The living processes that were started with this run's id (and this boot's), apart from ourselves.

    Args:
        run: the run's id.
        processes: those to look at; all by default.
        boot: the boot's id, or None for those of every boot.
        strangers: pids with start times that were looked at before and are not ours; updated. Whoever looks
            often saves most of the work, since an environment comes from the parent and stays.
    """
    ours = {os.getpid(), os.getppid()}
    known = set() if strangers is None else strangers
    looked_at = set()
    found = []
    for one in (procfs.all_processes() if processes is None else processes).values():
        identity = (one.pid, one.start)
        looked_at.add(identity)
        if one.pid in ours or one.dead or identity in known:
            continue
        is_ours = procfs.variable(one.pid, RUN_VARIABLE) == run
        if is_ours and (boot is None or procfs.variable(one.pid, BOOT_VARIABLE) == boot):
            found.append(one)
        else:
            known.add(identity)
    known &= looked_at
    return found


def kill_until_gone(
    find: Callable[[], Iterable[Process]], *, timeout: float, reap: Callable[[], None] = lambda: None
) -> Set[int]:
    """Kill what ``find`` finds until it finds nothing, since what is killed may just have forked.

    Args:
        find: looks anew each time.
        timeout: seconds after which to give up; a process in uninterruptible sleep cannot be killed.
        reap: collects the exit statuses of our own children in between.

    Returns:
        The pids that were killed.
    """
    deadline = time.monotonic() + timeout
    killed: Set[int] = set()
    while True:
        left = [one for one in find() if not one.dead]
        if not left or time.monotonic() > deadline:
            return killed
        for one in left:
            if procfs.kill(one):
                killed.add(one.pid)
        time.sleep(_PAUSE_S)
        reap()
