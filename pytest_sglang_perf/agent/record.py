"""Which processes a run has started, on disk: for whoever cleans up after guardian and agent have both died.

The environment that a process was started with names its run, but a process that gives itself a title (as sglang's
workers do) overwrites that memory. So pids with start times are kept in the run's folder as well, together with
who supervises them and with the kernel's boot id, without which start times mean nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

from . import procfs

__all__ = ["Record", "read"]

_NAME = "processes.json"


class Record:
    """The file of one run; written atomically, and only when something changed.

    Args:
        run_dir: the folder of the run.
        agents: who supervises, as ``pid:start`` pairs.
    """

    def __init__(self, run_dir: Path, agents: str) -> None:
        self._path = run_dir / _NAME
        self._agents = agents
        self._written: Any = None

    def write(self, processes: Dict[int, int]) -> None:
        """Record exactly these processes (pid to start time) as ours."""
        if processes == self._written:
            return
        content = {"boot_id": procfs.boot_id(), "agents": self._agents, "processes": sorted(processes.items())}
        temporary = self._path.with_suffix(".new")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(json.dumps(content))
            temporary.replace(self._path)
        except OSError:
            return  # a full disk must not end supervision; the other ways to find our processes remain
        self._written = dict(processes)


def read(run_dir: Path) -> Tuple[str, List[Tuple[int, int]]]:
    """Who supervised (``pid:start`` pairs) and what a run recorded; empty unless valid since this machine's start."""
    try:
        content: Dict[str, Any] = json.loads((run_dir / _NAME).read_text(encoding="ascii"))
        if content["boot_id"] != procfs.boot_id():
            return "", []
        return str(content["agents"]), [(int(pid), int(start)) for pid, start in content["processes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "", []
