"""The dead man's switch: how long we go on without a controller.

Two ways to lose one, two limits. A cut network says nothing at all: heartbeats stop, and after ``ttl_s`` we act. A
killed controller closes our input at once: it gets ``grace_s`` to come back and resume, then we act.
"""

from __future__ import annotations

import time
from typing import Optional

__all__ = ["DeadMan"]


class DeadMan:
    """Tells when to give up on the controller. Written from several threads; every field is a single value.

    Args:
        ttl_s: seconds without any line from the controller.
        grace_s: seconds after the end of input.
    """

    def __init__(self, ttl_s: float, grace_s: float) -> None:
        self.ttl_s = ttl_s
        self.grace_s = grace_s
        self._last_sign = time.monotonic()
        self._left: Optional[float] = None

    def sign_of_life(self) -> None:
        """A line came."""
        self._last_sign = time.monotonic()

    def left(self) -> None:
        """The input ended."""
        if self._left is None:
            self._left = time.monotonic()

    def back(self) -> None:
        """A controller resumed."""
        self._left = None
        self.sign_of_life()

    def reason(self) -> Optional[str]:
        """Why to stop everything now (``controller_left`` or ``heartbeat_lost``), or None to go on."""
        now = time.monotonic()
        left = self._left
        if left is not None and now - left >= self.grace_s:
            return "controller_left"
        if now - self._last_sign >= self.ttl_s:
            return "heartbeat_lost"
        return None
