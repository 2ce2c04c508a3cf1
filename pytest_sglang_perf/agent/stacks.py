"""Where the processes of a server are right now: their states, and their Python stacks where py-spy is installed."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence

from . import procfs
from .command import run
from .procfs import Process

__all__ = ["describe", "dump", "find_py_spy", "trace_obstacle"]

_MOST = 16
_DUMP_S = 6.0
_AGAIN_S = 3.0
_TEXT = 60_000


def describe(processes: Sequence[Process]) -> List[Dict[str, Any]]:
    """Each process with pid, title, state letter (``T`` stopped, ``D`` in the kernel) and what it waits for there."""
    return [
        {
            "pid": one.pid,
            "title": procfs.command(one.pid)[:200],
            "state": one.state,
            "waits_in": _wait_channel(one.pid),
        }
        for one in processes
    ]


def _wait_channel(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            return file.read().strip("0 \n")[:60]
    except OSError:
        return ""


def find_py_spy(pythons: Sequence[str]) -> Optional[str]:
    """py-spy from the PATH, or from beside one of these interpreters."""
    for python in pythons:
        # Not resolved: an environment's python is a link to one that has no such neighbour.
        beside = os.path.join(os.path.dirname(os.path.expanduser(python)), "py-spy")
        if "/" in python and os.access(beside, os.X_OK):
            return beside
    return shutil.which("py-spy")


def trace_obstacle() -> Optional[str]:
    """Why this user may not look into processes that are not its children, in words; None when it may."""
    if os.geteuid() == 0:
        return None
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return None
    return None if scope == "0" else f"kernel.yama.ptrace_scope is {scope}, and this user is not root"


def dump(processes: Sequence[Process], pythons: Sequence[str]) -> List[Dict[str, Any]]:
    """The Python stacks of these processes, all at once, within about 10 s.

    A process that is stopped or sits in a driver cannot be attached to; it is then read as it runs
    (``--nonblocking``), which may give torn stacks but gives them.

    Returns:
        For each of at most 16: ``pid``, ``text`` (None where there is none) and ``error`` (why, in words).
    """
    program = find_py_spy(pythons)
    chosen = list(processes)[:_MOST]
    if program is None:
        error = "py-spy is not installed on the node (`pip install py-spy` beside its Python)"
        return [{"pid": one.pid, "text": None, "error": error} for one in chosen]
    if not chosen:
        return []
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        return list(pool.map(lambda one: _dump(program, one), chosen))


def _dump(program: str, one: Process) -> Dict[str, Any]:
    error = None
    for options, limit_s in (([], _DUMP_S), (["--nonblocking"], _AGAIN_S)):
        if one.stopped and not options:
            continue  # its tracer would wait for it as long as it is stopped
        finished = run([program, "dump", "--pid", str(one.pid), *options], limit_s)
        if finished.status == 0 and finished.out.strip():
            return {"pid": one.pid, "text": finished.out[:_TEXT], "error": None}
        error = finished.trouble("py-spy") or "py-spy said nothing"
    return {"pid": one.pid, "text": None, "error": error}
