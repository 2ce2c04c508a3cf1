"""Standard input to standard output."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from . import _sglang_bench
from ._digest import Tally
from ._result import build
from ._selftest import LEVELS, floor_for, selftest
from ._spec import Spec, SpecError, parse
from ._trial import run

if TYPE_CHECKING:
    import asyncio

MAX_ORDER = 8 << 20


class Orders:
    """Lines from standard input, read from its descriptor so that nothing is held back in a buffer."""

    def __init__(self, stdin: Any) -> None:
        self._fd = stdin.fileno()
        self._buf = b""

    def first(self) -> Optional[bytes]:
        """The first line, None at the end of input."""
        while b"\n" not in self._buf and len(self._buf) < MAX_ORDER:
            data = os.read(self._fd, 65536)
            if not data:
                break
            self._buf += data
        line, _, self._buf = self._buf.partition(b"\n")
        return line or None

    def follow(self, loop: asyncio.AbstractEventLoop, stop: Callable[[str], None]) -> None:
        """End the trial on SIGTERM, SIGINT or a cancel line. The end of input means nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, "cancelled")
        try:
            loop.add_reader(self._fd, self._more, loop, stop)
        except (OSError, PermissionError):  # a plain file cannot be waited for, and has nothing more to say
            self._take(stop)
        else:
            self._take(stop)

    def _more(self, loop: asyncio.AbstractEventLoop, stop: Callable[[str], None]) -> None:
        data = os.read(self._fd, 65536)
        if not data:
            loop.remove_reader(self._fd)
            return
        self._buf += data
        self._take(stop)

    def _take(self, stop: Callable[[str], None]) -> None:
        while b"\n" in self._buf:
            line, _, self._buf = self._buf.partition(b"\n")
            try:
                order = json.loads(line)
            except ValueError:
                continue
            if isinstance(order, dict) and "cancel" in order:
                stop(str(order["cancel"]) or "cancelled")


def main(stdin: Any = None, stdout: Any = None) -> int:
    """Run one trial. Returns 0 when a result was written, 2 when the order was wrong (``{"error": …}``)."""
    stdin = sys.stdin if stdin is None else stdin
    stdout = sys.stdout if stdout is None else stdout
    stdout = getattr(stdout, "buffer", stdout)

    def say(message: Dict[str, Any]) -> None:
        stdout.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        stdout.flush()

    orders = Orders(stdin)
    spec: Optional[Spec] = None
    signal.signal(signal.SIGTERM, _cancel)  # until the trial's loop takes over
    try:
        order = json.loads(orders.first() or b"null") or {}
        if isinstance(order, dict) and "selftest" in order:
            say({"selftest": _selftest(order["selftest"] or {}, orders, say)})
            return 0
        spec = parse(order)
        if spec.tool is not None:
            say({"result": _sglang_bench.run(spec)})
            return 0
        result = run(spec, on_progress=lambda progress: say({"progress": progress}), attach=orders.follow)
    except _Cancelled:
        if spec is None:
            return 1
        result = build(spec, Tally(), start_ns=None, end_ns=None, ended_by="cancelled", audit={}, requests=0)
    except ValueError as error:
        say({"error": {"kind": "bad_spec", "message": str(error)}})
        return 2
    except (OSError, RuntimeError) as error:
        say({"error": {"kind": "failed", "message": str(error)}})
        return 1
    result["audit"]["floor"] = floor_for(spec.arrival.max_concurrency or spec.arrival.concurrency)
    say({"result": result})
    return 0


class _Cancelled(BaseException):
    """SIGTERM before there was a trial to end."""


def _cancel(*_: Any) -> None:
    raise _Cancelled


def _selftest(order: Dict[str, Any], orders: Orders, say: Callable[[Dict[str, Any]], None]) -> Dict[str, Any]:
    """``{"selftest": {"levels": […], "event_loop": …}}``; tells each level as it ends."""
    levels = order.get("levels") or LEVELS
    if not all(isinstance(level, int) and level > 0 for level in levels):
        raise SpecError(f"selftest.levels: expected numbers of streams, got {levels!r}")
    return selftest(
        levels,
        event_loop=order.get("event_loop") or "auto",
        attach=orders.follow,
        on_level=lambda level: say({"level": level}),
    )
