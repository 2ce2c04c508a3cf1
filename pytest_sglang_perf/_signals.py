"""SIGTERM and SIGHUP end the session in order, as Ctrl-C does: CI systems and closed terminals send them.

Left alone, Python dies of them at once; the node would be cleaned up all the same, but only after the agent's grace,
and without a report.
"""

from __future__ import annotations

import signal

import pytest

__all__ = ["stop_in_order"]


def stop_in_order() -> None:
    """Handle both from now on, where nobody else does. For the main thread of the process that pytest runs in."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _frame: object) -> None:
    # A second one, while servers are being stopped, is for the impatient.
    signal.signal(number, signal.SIG_DFL)
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)
