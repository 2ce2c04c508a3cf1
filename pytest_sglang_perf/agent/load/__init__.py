"""The load engine: a process of its own that measures one server at one level.

``python agent.pyz load`` reads one JSON line, the order, and answers with JSON lines: ``{"progress": …}`` now and
then and ``{"result": …}`` at the end. SIGTERM, or a line ``{"cancel": reason}``, ends the trial early; the result
still comes. ``{"selftest": {"levels": […]}}`` instead of an order measures the machine itself.
"""

from __future__ import annotations

from typing import Any

__all__ = ["main"]


def main(stdin: Any = None, stdout: Any = None) -> int:
    """Carry out one order; returns 0 when a result was written, 2 when the order was wrong (``{"error": …}``)."""
    from ._main import main as run  # the agent imports this package for its name alone

    return run(stdin, stdout)
