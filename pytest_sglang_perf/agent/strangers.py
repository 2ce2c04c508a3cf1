"""Who computes on our GPUs without a lease: told by name, never touched.

Whoever started a server by hand knows nothing of leases. To measure beside it would yield figures of two servers and
might crash both for want of memory, so the lease is refused, and people are told whom to ask.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from . import facts
from .protocol import OrderError

__all__ = ["refuse"]

_GOING_S = 5.0  # a driver names a process for a moment after its end
_PAUSE_S = 0.25
_SERVICES = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")  # they compute for others, who are named as well


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


def _on(gpus: Optional[List[int]], processes: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [
        one
        for one in processes
        if (gpus is None or one["gpu"] is None or one["gpu"] in gpus)
        and not str(one["command"]).split(" ")[0].endswith(_SERVICES)
    ]


def _told(processes: List[Dict[str, Any]]) -> str:
    lines = [
        f"GPU {'?' if one['gpu'] is None else one['gpu']} is used by pid {one['pid']} "
        f"of {one['user'] or 'a user we cannot see'}: {str(one['command'])[:200]}"
        for one in processes
    ]
    advice = "It holds no lease. Ask its user to end it, or name other GPUs in the suite (gpus: [...])"
    return "; ".join(lines) + ". " + advice
