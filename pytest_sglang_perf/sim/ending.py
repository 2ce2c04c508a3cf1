"""How a server ends: when told to, when a child dies, when a rank hits an exception."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .clock import SimClock
    from .gpus import GpuFile
    from .log import Log
    from .processes import Child, Children
    from .scheduler import Scheduler

__all__ = ["Ending"]

# Simulated seconds, as observed on sglang: its watchdog's period, the pause before crash diagnostics (0.5.23),
# how long a dead detokenizer goes unnoticed (the front end's loop is stuck in a send to it), how often a stop looks
# whether requests are left.
_WATCHDOG_S = 1.0
_DIAGNOSTICS_S = 5.0
_DETOKENIZER_S = 60.0
_DRAIN_S = 5.0


class Ending:
    """The ways out of one server process. ``status`` is done when the process may return from its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        clock: SimClock,
        children: Children,
        gpu_file: GpuFile,
        *,
        old: bool,
    ) -> None:
        self._loop = loop
        self._log = log
        self._clock = clock
        self._children = children
        self._gpu_file = gpu_file
        self._old = old
        self._tasks: set[asyncio.Task[Any]] = set()
        self.status: asyncio.Future[int] = loop.create_future()
        self.begun = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``; a fault in it ends the program loudly."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.status.done():
            self.status.set_exception(error)

    def end(self, status: int) -> None:
        """Let the process return ``status``."""
        self.begun = True
        if not self.status.done():
            self.status.set_result(status)

    def cleanup(self) -> None:
        """Leave nothing behind. Idempotent."""
        self._children.kill()
        self._gpu_file.remove()
        self._log.flush()

    async def drain(self, scheduler: Scheduler) -> None:
        """Wait until no request is left, then stop in order: what SIGTERM asks for."""
        for _ in itertools.count():
            await asyncio.sleep(self._clock.real(_DRAIN_S))
            if scheduler.idle or scheduler.frozen:
                break
        self._log.say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        if self._old:  # that version ends a clean stop by killing itself too
            self.kill_tree(include_parent=True)
        self.kill_tree(include_parent=False)
        for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self._log.uvicorn(line)
        self._log.uvicorn(f"Finished server process [{os.getpid()}]")
        self.end(0)

    async def child_died(self, child: Child, code: int) -> None:
        """The watchdog of the running phase sees a dead child."""
        late = _DETOKENIZER_S if child.name == "detokenizer" else 0.0
        await asyncio.sleep(self._clock.real(_WATCHDOG_S + late))
        self._log.shout(
            f"Subprocess {child.name} (pid={child.pid}) crashed with exit code {code}. "
            "Triggering SIGQUIT for cleanup..."
        )
        await self.crash()

    async def crash(self) -> None:
        """SIGQUIT in the running phase."""
        if self.begun:
            return
        self.begun = True
        self._log.shout("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        if not self._old:
            self._log.say(f"Sleeping {_DIAGNOSTICS_S:.0f} seconds before crash diagnostics to let GPU activity settle.")
            await asyncio.sleep(self._clock.real(_DIAGNOSTICS_S))
            self._log.say("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self.kill_tree(include_parent=True)

    def crash_in_boot(self) -> NoReturn:
        """SIGQUIT in the launch phase."""
        self._log.shout("Received sigquit from a child process. It usually means the child failed.")
        self.kill_tree(include_parent=True)
        raise AssertionError("unreachable: the process has killed itself")

    def kill_tree(self, *, include_parent: bool) -> None:
        """Kill the children and, as sglang does on every way out but one, this process: exit code -9."""
        self.begun = True
        pid = os.getpid()
        if not self._old:
            self._log.say(f"kill_process_tree called: parent_pid={pid}, include_parent={include_parent}, pid={pid}")
        self._children.kill()
        if include_parent:
            self.cleanup()
            os.kill(pid, signal.SIGKILL)
