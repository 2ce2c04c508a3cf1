"""Tasks that go on by themselves: the event loop only knows them weakly, so somebody has to hold them."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any, Coroutine, Set

__all__ = ["Tasks"]


class Tasks:
    """Holds tasks until they end, and tells on standard error of those that fail."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: Set[asyncio.Task[Any]] = set()

    def add(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task of its own."""
        task = self._loop.create_task(work)
        self._held.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._held.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            print("".join(traceback.format_exception(type(error), error, error.__traceback__)), file=sys.stderr)
