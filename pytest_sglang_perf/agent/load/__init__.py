"""The load engine: a process of its own that measures one server at one level.

``python agent.pyz load`` reads one JSON line, the order, and answers with JSON lines: ``{"progress": …}`` now and
then and ``{"result": …}`` at the end. SIGTERM, or a line ``{"cancel": reason}``, ends the trial early; the result
still comes.
"""

from __future__ import annotations

from ._main import main

__all__ = ["main"]
