"""One look at the GPUs: the fields asked for, as far as this driver knows them, as text."""

from __future__ import annotations

import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from .command import Finished, missing, run

__all__ = ["GpuState", "gpu_state"]


class GpuState(NamedTuple):
    """Rows of {field: text} by GPU, and what was wrong in words: a lost GPU is told there and has no row."""

    gpus: List[Dict[str, str]]
    error: Optional[str]


def gpu_state(nvidia_smi: Optional[Sequence[str]], fields: Sequence[str], timeout_s: float) -> GpuState:
    """Ask once; fields that this nvidia-smi does not know are left out. Never raises.

    A node without nvidia-smi has no GPUs to tell of, which is no error.
    """
    if not nvidia_smi or missing(nvidia_smi) is not None:
        return GpuState([], None)
    asked = list(fields)
    deadline = time.monotonic() + timeout_s
    finished = Finished(None, "", "")
    while asked and time.monotonic() < deadline:
        query = f"--query-gpu={','.join(asked)}"
        finished = run([*nvidia_smi, query, "--format=csv,noheader,nounits"], deadline - time.monotonic())
        unknown = [field for field in asked if f'"{field}"' in finished.out + finished.err]
        if finished.status == 0 or not unknown:
            break
        asked = [field for field in asked if field not in unknown]
    gpus, odd = [], []
    for line in finished.out.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(asked):
            gpus.append(dict(zip(asked, cells)))
        elif line.strip():
            odd.append(line.strip())
    error = finished.trouble("nvidia-smi")
    if error is None and odd:
        error = "nvidia-smi says: " + "; ".join(odd)[:400]
    return GpuState(gpus, error)
