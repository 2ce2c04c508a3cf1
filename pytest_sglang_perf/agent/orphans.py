"""What dead sessions left on this node: found by run id and start time, never by name or port."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from . import procfs
from .procfs import Process
from .sweep import AGENT_VARIABLE, RUN_VARIABLE, kill_until_gone

__all__ = ["find", "reap", "stamp"]


def stamp() -> str:
    """Who supervises: this agent and its guardian, as ``pid:start`` pairs."""
    pairs = []
    for pid in (os.getppid(), os.getpid()):
        one = procfs.process(pid)
        if one is not None:
            pairs.append(f"{pid}:{one.start}")
    return ",".join(pairs)


def find(own_run: str) -> List[Process]:
    """Processes of runs whose agent and guardian are both gone."""
    found = []
    for one in procfs.all_processes().values():
        if one.dead:
            continue
        run = procfs.variable(one.pid, RUN_VARIABLE)
        if run is None or run == own_run:
            continue
        agents = procfs.variable(one.pid, AGENT_VARIABLE)
        if agents and not any(_lives(pair) for pair in agents.split(",")):
            found.append(one)
    return found


def describe(one: Process) -> Dict[str, Any]:
    """A process for people."""
    return {
        "pid": one.pid,
        "run": procfs.variable(one.pid, RUN_VARIABLE),
        "command": procfs.command(one.pid)[:200],
    }


def reap(own_run: str) -> List[Dict[str, Any]]:
    """Kill them, and say what they were."""
    told = [describe(one) for one in find(own_run)]
    if told:
        kill_until_gone(lambda: find(own_run), timeout=15.0)
    return told


def _lives(pair: str) -> bool:
    pid, _, start = pair.partition(":")
    return pid.isdigit() and start.isdigit() and procfs.lives(int(pid), int(start))
