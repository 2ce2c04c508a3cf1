"""Does a server under load still move? Judged by what it produces, never by whether its processes are there.

A scheduler that hangs in a collective or was stopped keeps its pid, its port and its parent; nothing dies and nothing
is logged. What it no longer does is produce: no stream receives a byte, and its log says nothing of its own. (A long
prefill is silent on every stream too, but is logged batch by batch.) Where a process of it is found stopped, there
is no doubt left to wait for.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

__all__ = ["SILENT_S", "STOPPED_S", "Pulse", "is_sign_of_life"]

SILENT_S = 20.0
STOPPED_S = 5.0

# What the HTTP front end says about others' questions, which it also does when everything behind it hangs.
_FRONT_END = re.compile(r'"[A-Z]+ \S+ HTTP/1\.[01]" \d{3}|Health check failed')


def is_sign_of_life(line: str) -> bool:
    """Whether a log line shows that more than the HTTP front end runs."""
    return _FRONT_END.search(line) is None


class Pulse:
    """What is known of the progress of one trial.

    Args:
        now_ns: the trial begins (CLOCK_MONOTONIC, as all times here).
        silent_s: seconds of silence after which a server counts as frozen.
    """

    def __init__(self, now_ns: int, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._silent_since_ns = now_ns  # before the first report: there is nothing yet, and there should be

    def report(self, progress: Dict[str, Any]) -> None:
        """The load process tells of its progress: ``silent_since_ns`` is 0 while it waits for nothing."""
        since = progress.get("silent_since_ns")
        if isinstance(since, int):
            self._silent_since_ns = since

    def frozen(self, now_ns: int, spoke_ns: int, stopped: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        """None while the server moves, else how long it has not and which of its processes are stopped.

        Args:
            now_ns: the time.
            spoke_ns: when its log last showed a sign of life.
            stopped: its processes that are stopped or traced, as {``pid``, ``title``, ``state``}.

        Returns:
            {``silent_s``, ``stopped``}.
        """
        if not self._silent_since_ns:
            return None
        streams_s = (now_ns - self._silent_since_ns) / 1e9
        # Who was stopped may have colleagues that still talk.
        silent_s = streams_s if stopped else min(streams_s, (now_ns - spoke_ns) / 1e9)
        if silent_s < (min(STOPPED_S, self._silent_s) if stopped else self._silent_s):
            return None
        return {"silent_s": round(silent_s, 1), "stopped": stopped}
