"""What only the node can tell about the end of a server: the kernel's word, the GPUs, its processes and stacks.

Taken once, when the first process of a server dies, before anything is swept away; or when a controller asks about
a server that hangs. Everything here is bounded in time and runs beside the loop: nothing waits for it but its reader.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from . import kernel_log, procfs, stacks
from .gpu_state import gpu_state
from .procfs import Process
from .redact import Redactor

__all__ = ["PostMortem"]

_NVIDIA_SMI_S = 5.0
_NAMES_AGAIN = 20  # of the looks for new processes, which come every 0.25 s
_GPU_FIELDS = (
    "index",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "clocks_event_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
)


class PostMortem:
    """Collects the evidence about one server.

    Args:
        loop: the running event loop.
        nvidia_smi: gives the command that shows the GPUs under lease, or None.
        redactor: keeps the server's secrets out of titles and stacks.
        pythons: interpreters beside which py-spy may be.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        nvidia_smi: Callable[[], Optional[List[str]]],
        redactor: Redactor,
        pythons: Sequence[str],
    ) -> None:
        self._loop = loop
        self._nvidia_smi = nvidia_smi
        self._redactor = redactor
        self._pythons = list(pythons)
        self._names: Dict[int, str] = {}
        self._notes = 0
        self._kernel_killed = kernel_log.oom_kills()
        self._before = loop.run_in_executor(None, lambda: kernel_log.last_stamp(kernel_log.read()))
        self._at_death: Optional[asyncio.Task[Dict[str, Any]]] = None

    def note(self, processes: Iterable[Process]) -> None:
        """Remember the server's processes; the kernel may speak of them when they are gone."""
        again = self._notes % _NAMES_AGAIN == 0  # a process may name itself later
        self._notes += 1
        for one in processes:
            if again or one.pid not in self._names:
                self._names[one.pid] = procfs.short_name(one.pid) or self._names.get(one.pid, "")

    def on_death(self, below: Sequence[Process]) -> None:
        """A process of the server died: look now. Only the first death counts."""
        if self._at_death is None:
            self._at_death = self._loop.create_task(self._look(below))

    async def report(self, below: Sequence[Process], *, want_stacks: bool) -> Dict[str, Any]:
        """What was seen at the first death, or is to be seen now.

        Args:
            below: the server's processes that are there now.
            want_stacks: whether to ask py-spy, which holds each process up for a moment.

        Returns:
            See ``boot.evidence`` in the description of the protocol.
        """
        seen = self._at_death
        found = dict(await (asyncio.shield(seen) if seen is not None else self._look(below)))
        if want_stacks:
            dumped = await self._loop.run_in_executor(None, stacks.dump, below, self._pythons)
            found["stacks"] = [
                {**one, "text": None if one["text"] is None else self._redactor.text(one["text"])} for one in dumped
            ]
        return found

    async def _look(self, below: Sequence[Process]) -> Dict[str, Any]:
        before = await self._before
        taken_ns = time.monotonic_ns()
        gpus, kernel = await asyncio.gather(
            self._loop.run_in_executor(None, gpu_state, self._nvidia_smi(), _GPU_FIELDS, _NVIDIA_SMI_S),
            self._loop.run_in_executor(None, kernel_log.read),
        )
        names = set(self._names.values()) - {""}
        return {
            "ns": taken_ns,
            "kernel_readable": kernel.readable,
            "kernel_log": kernel_log.notable(kernel, before, self._names.keys(), names) + self._limit_kills(),
            "gpus": gpus.gpus,
            "gpu_error": gpus.error,
            "processes": [{**one, "title": self._redactor.text(one["title"])} for one in stacks.describe(below)],
            "stacks": [],
        }

    def _limit_kills(self) -> List[str]:
        """What a container can learn of an out-of-memory kill where the kernel's log is not for its eyes."""
        before, now = self._kernel_killed, kernel_log.oom_kills()
        if before is None or now is None or now <= before:
            return []
        return [f"memory cgroup: oom_kill went from {before} to {now} while the server ran"]
