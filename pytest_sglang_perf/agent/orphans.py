"""What dead sessions left on this node: found by run id and start time, never by name or port."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from . import procfs, record, rundir
from .procfs import Process
from .sweep import AGENT_VARIABLE, RUN_VARIABLE, kill_until_gone

__all__ = ["find", "live_sessions", "reap", "stamp"]


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
    return [one for one, _ in _find(own_run)]


def _find(own_run: str) -> List[Tuple[Process, str]]:
    """Each with its run. None of another pid namespace: there an agent that lives would look dead to us."""
    processes = {pid: one for pid, one in procfs.all_processes().items() if not one.dead}
    found = {}
    for one in processes.values():
        run = procfs.variable(one.pid, RUN_VARIABLE)
        if run is None or run == own_run:
            continue
        agents = procfs.variable(one.pid, AGENT_VARIABLE)
        if agents and _all_gone(agents) and procfs.same_pid_namespace(one.pid):
            found[one.pid] = (one, run)
    for folder in rundir.root().glob("runs/*"):
        agents, recorded = record.read(folder)
        if folder.name == own_run or not recorded or not _all_gone(agents):
            continue
        for pid, start in recorded:
            left = processes.get(pid)
            if left is not None and left.start == start:
                found.setdefault(pid, (left, folder.name))
    return list(found.values())


def describe(one: Process, run: Optional[str] = None) -> Dict[str, Any]:
    """A process for people."""
    return {
        "pid": one.pid,
        "run": run or procfs.variable(one.pid, RUN_VARIABLE),
        "command": procfs.command(one.pid)[:200],
    }


def reap(own_run: str) -> List[Dict[str, Any]]:
    """Kill them, and say what they were."""
    told = [describe(one, run) for one, run in _find(own_run)]
    if told:
        kill_until_gone(lambda: find(own_run), timeout=15.0)
    return told


def live_sessions(
    on_gpus: List[Dict[str, Any]], leases: List[Dict[str, Any]]
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """Sort what computes on the GPUs into running sessions of ours, and everybody else.

    Args:
        on_gpus: processes as from `facts.gpu_processes`.
        leases: who holds what, as from `lease.holders`.

    Returns:
        The sessions, each as its lease describes it ({``run``} alone where there is none to see) with its
        ``processes``; and the processes that are not ours.
    """
    sessions = {str(holder.get("run")): {**holder, "processes": []} for holder in leases}
    foreign = []
    for one in on_gpus:
        run = procfs.variable(one["pid"], RUN_VARIABLE)
        agents = procfs.variable(one["pid"], AGENT_VARIABLE)
        if run is None or not agents or _all_gone(agents):
            foreign.append(one)
        else:
            sessions.setdefault(run, {"run": run, "processes": []})["processes"].append(one)
    return list(sessions.values()), foreign


def _all_gone(agents: str) -> bool:
    return not any(_lives(pair) for pair in agents.split(","))


def _lives(pair: str) -> bool:
    pid, _, start = pair.partition(":")
    return pid.isdigit() and start.isdigit() and procfs.lives(int(pid), int(start))
