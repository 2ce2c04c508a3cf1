"""This machine's floor: how late the engine is here, with a server that is known never to be the cause.

The bundled stamped server runs in a process of its own beside the engine, as a server under test would. What comes out
is kept in the user's cache folder, and every later result carries the figures of the nearest level in its audit.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from ._drive import event_loop_name
from ._spec import parse
from ._trial import Attach, run
from .stamped import Shape, StampedServer

LEVELS = (64, 256, 1024, 2048)
RATE = 20.0
TTFT_MS = 75.0
_TOKENS = 40


def floor_path() -> Path:
    """Where the floor of this machine is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "sglang-perf" / "load-floor.json"


def floor_for(streams: int) -> Optional[Dict[str, Any]]:
    """The stored figures of the smallest level of at least ``streams``; None without a self-test of this machine."""
    try:
        stored = json.loads(floor_path().read_text(encoding="utf-8"))
        if stored["host"] != socket.gethostname():
            return None
        levels = [level for level in stored["levels"] if level["streams"] >= streams]
        return dict(min(levels, key=lambda level: int(level["streams"])), when=stored["when"]) if levels else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def selftest(
    levels: Sequence[int] = LEVELS,
    *,
    event_loop: str = "auto",
    attach: Attach = lambda loop, stop: None,
    on_level: Callable[[Dict[str, Any]], None] = lambda level: None,
) -> Dict[str, Any]:
    """Measure each level and store the outcome.

    Args:
        levels: numbers of streams.
        event_loop: as in a trial's order.
        attach: is given the loop and a function that ends the running level.
        on_level: hears the figures of each level as it ends.
    """
    measured: List[Dict[str, Any]] = []
    outcome: Dict[str, Any] = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "loop": event_loop_name(event_loop),
        "cpus": len(os.sched_getaffinity(0)),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rate": RATE,
        "levels": measured,
    }
    for streams in levels:
        level = _measure(streams, event_loop, attach)
        measured.append(level)
        on_level(level)
        if level["ended_by"] == "cancelled":
            return outcome
    good = [level["streams"] for level in measured if level["valid"]]
    outcome["max_streams"] = max(good) if good else 0
    path = floor_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
    return outcome


def _measure(streams: int, event_loop: str, attach: Attach) -> Dict[str, Any]:
    with _stamped() as port:
        spec = parse(
            {
                "url": f"http://127.0.0.1:{port}",
                "arrival": {"kind": "closed", "concurrency": streams},
                "input": 128,
                "output": _TOKENS,
                "requests": streams,
                "event_loop": event_loop,
                "stamped": True,
                "probe_server": False,
                "flush_cache": False,
                "limits": {"deadline_s": 120},
            }
        )
        result = run(spec, on_progress=lambda progress: None, attach=attach)
    audit = result["audit"]
    window = result["window"] or {"start_ns": 0, "end_ns": 0}
    events = audit.get("stamp_events") or 0
    busy_s = (audit.get("cpu_share_total") or 0.0) * (window["end_ns"] - window["start_ns"]) / 1e9
    return {
        "streams": streams,
        "workers": audit["workers"],
        "valid": result["valid"],
        "invalid": [item["message"] for item in result["invalid"]],
        "ended_by": result["ended_by"],
        "lag_p50_ms": audit.get("stamp_lag_p50_ms"),
        "lag_p99_ms": audit.get("stamp_lag_p99_ms"),
        "ttft_p50_error_ms": None if audit.get("ttft_p50_ms") is None else audit["ttft_p50_ms"] - TTFT_MS,
        "cpu_share": audit.get("cpu_share"),
        "cpu_us_per_event": busy_s / events * 1e6 if events else None,
    }


@contextmanager
def _stamped() -> Iterator[int]:
    """The bundled server in a child process; gives its port."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = StampedServer(Shape(rate=RATE, ttft_ms=TTFT_MS))
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGTERM, server.stop)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.serve(parent=os.getppid())
        finally:
            os._exit(0)
    server.close()
    try:
        yield server.port
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
