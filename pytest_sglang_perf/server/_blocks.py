"""Which lines belong together: a log line and what hangs below it, or a traceback that stands alone."""

from __future__ import annotations

import re

from .benign import is_benign

__all__ = ["TRACEBACK", "Blocks"]

TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_SURVIVED = ("Exception in thread", "Exception ignored in", "Task exception was never retrieved")
# The outermost frame of an exception that nobody caught; where one is caught and logged, it begins further in.
_OUTERMOST = re.compile(
    r'"<frozen runpy>"|/runpy\.py", line \d+, in _run|, in <module>'
    r'|multiprocessing/process\.py", line \d+, in _bootstrap|, in run_\w+_process$'
)


class Blocks:
    """Fed every line in order; describes the last one.

    Attributes:
        number: counts blocks; a chain of exceptions is one.
        ignored: the line belongs to something benign.
        uncaught: the line belongs to a traceback that ended its process.
        frame: the last frame seen in this block.
    """

    def __init__(self) -> None:
        self.number = 0
        self.ignored = False
        self.uncaught = False
        self.frame: tuple[int, str] | None = None
        self._after_head = False
        self._benign_head = False
        self._benign = False
        self._chained = False
        self._survived = False
        self._at_outermost = False

    def log_line(self, message: str) -> None:
        """A stamped line: begins a block."""
        self._begin()
        self.ignored = self._benign_head = is_benign(message)
        self._benign = self.ignored and TRACEBACK in message
        self._after_head = True
        self._chained = self._survived = False

    def continuation(self, text: str, number: int) -> None:
        """A line without a stamp."""
        after_head, self._after_head = self._after_head, False
        if text == TRACEBACK:
            if not self._chained:
                self._begin()
                self._benign = self._survived or (after_head and self._benign_head)
            self._at_outermost = not self._survived
            self._chained = self._survived = False
        elif text.startswith(_CHAIN):
            self._chained = True
        elif text.startswith(_SURVIVED):
            self._survived = True
        elif text.startswith("  File "):
            self.frame_line(text, number)
            return
        self.ignored = self._benign or (not text.startswith("  ") and is_benign(text))

    def frame_line(self, text: str, number: int) -> None:
        """A line that is known to name a frame."""
        self._after_head = False
        self.frame = (number, text)
        if self._at_outermost:
            if _OUTERMOST.search(text):
                self.uncaught, self._benign = True, False
            self._at_outermost = False
        self.ignored = self._benign

    def _begin(self) -> None:
        self.number += 1
        self.frame = None
        self.uncaught = self._benign = self._at_outermost = False
