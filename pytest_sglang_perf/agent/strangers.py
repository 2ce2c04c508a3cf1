"""Who computes on our GPUs beside us: told by name, never touched.

Whoever started a server by hand knows nothing of leases. To measure beside it would yield figures of two servers and
might crash both for want of memory, so the lease is refused, and people are told whom to ask.

Who comes later, while a trial runs, is told with the trial, whose figures are then of both.

Only a process that the driver names is a reason to refuse. Memory in use with nobody's name to it (inside a container
the driver names nobody) may also be the driver's own, so that is a warning.
"""

from __future__ import annotations

import time
from typing import Any, Container, Dict, List, Optional

from . import facts
from .protocol import OrderError

__all__ = ["beside", "refuse", "unexplained_memory"]

_GOING_S = 5.0  # a driver names a process for a moment after its end, and frees its memory within seconds
_PAUSE_S = 0.25
_SERVICES = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")  # they compute for others, who are named as well
_IDLE_MIB = 2048.0  # an idle GPU shows up to some hundred MiB of the driver's own


def refuse(nvidia_smi: Optional[List[str]], gpus: Optional[List[int]]) -> None:
    """Return when nobody computes on these GPUs (None: on any); nothing of ours may run yet. Blocks.

    Raises:
        OrderError: ``gpu_in_use`` with ``processes`` as from `facts.gpu_processes`.
    """
    deadline = time.monotonic() + _GOING_S
    while True:
        found = _on(gpus, facts.gpu_processes(nvidia_smi))
        if not found:
            return
        if time.monotonic() > deadline:
            raise OrderError("gpu_in_use", _told(found), processes=found)
        time.sleep(_PAUSE_S)


def beside(processes: List[Dict[str, Any]], ours: Container[int]) -> List[str]:
    """Those of the processes on our GPUs (`facts.gpu_processes`) that are not ours, in words.

    One that is not visible from here is not told: in a container our own server is not visible either.
    """
    others = [one for one in processes if one["user"] is not None and one["pid"] not in ours]
    return [_named(one) for one in _on(None, others)]


def unexplained_memory(nvidia_smi: Optional[List[str]]) -> Optional[str]:
    """A warning where GPUs have memory in use though nobody is named; ``nvidia_smi`` shows ours only. Blocks."""
    deadline = time.monotonic() + _GOING_S
    while True:
        used = facts.gpu_memory_used(nvidia_smi) or []
        high = [mib for mib in used if mib > _IDLE_MIB]
        if not high:
            return None
        if time.monotonic() > deadline:
            return (
                f"{len(high)} of {len(used)} GPUs have up to {max(high):.0f} MiB in use and nvidia-smi names no "
                "process (in a container it cannot): if somebody computes there, the figures are of both"
            )
        time.sleep(_PAUSE_S)


def _on(gpus: Optional[List[int]], processes: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [
        one
        for one in processes
        if (gpus is None or one["gpu"] is None or one["gpu"] in gpus)
        and not str(one["command"]).split(" ")[0].endswith(_SERVICES)
    ]


def _told(processes: List[Dict[str, Any]]) -> str:
    return "; ".join(_named(one) for one in processes)


def _named(one: Dict[str, Any]) -> str:
    gpu = "a GPU" if one["gpu"] is None else f"GPU {one['gpu']}"
    whose = f"of {one['user']}" if one["user"] else "(of another container or pid namespace: not visible from here)"
    return f"{gpu} is used by pid {one['pid']} {whose}: {str(one['command'])[:200]}"
