"""Waiting for something with a deadline and a reason."""

from __future__ import annotations

import time


def until(condition, reason, *, timeout=15.0):
    """Return ``condition()`` once it is true; fail with the reason after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain until {reason}"
        time.sleep(0.01)
