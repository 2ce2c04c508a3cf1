"""A trial from order to result, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
from pathlib import Path
from time import monotonic_ns
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Optional

from ._closed import ClosedLoop
from ._engine import Engine
from ._guards import flush_cache
from ._requests import RequestFactory
from ._result import build
from ._window import WindowFinder

if TYPE_CHECKING:
    from ._spec import Spec

_PROGRESS_S = 0.5
_MIN_FILES = 256


class Conductor:
    """Ends the trial when the window is whole."""

    def __init__(self, spec: Spec) -> None:
        self.finder = WindowFinder(spec.warmup_requests, spec.window_requests)
        self.engine: Optional[Engine] = None

    def full(self, now_ns: int) -> None:
        """The level is reached."""
        self.finder.full(now_ns)

    def completed(self, index: int, end_ns: int) -> None:
        """A request ended."""
        if self.finder.completed(index, end_ns) and self.engine is not None:
            self.engine.stop("done")


def new_event_loop(kind: str) -> tuple[asyncio.AbstractEventLoop, str]:
    """An event loop and its name: uvloop where it can be imported, unless told otherwise."""
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise
        else:
            return uvloop.new_event_loop(), "uvloop " + str(getattr(uvloop, "__version__", ""))
    return asyncio.new_event_loop(), "asyncio {}.{}.{}".format(*sys.version_info[:3])


def allow_files(count: int) -> None:
    """Raise the limit of open files if the level needs it and the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _MIN_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == -1 else min(wanted, hard), hard))


def run(
    spec: Spec,
    *,
    on_progress: Callable[[Dict[str, int]], None],
    attach: Callable[[asyncio.AbstractEventLoop, Callable[[str], None]], None],
) -> Dict[str, Any]:
    """Run a trial and return its result.

    Args:
        spec: what to do.
        on_progress: hears ``ok``, ``failed``, ``running``, ``tokens`` twice a second.
        attach: is given the loop and a function that ends the trial early with a reason.

    Raises:
        SpecError: something the order names is not there (a key's environment variable).
    """
    salt = spec.salt or os.urandom(8).hex()
    factory = RequestFactory(spec, salt)
    notes: Dict[str, Any] = {}
    if spec.flush_cache:
        notes["flush_cache"] = flush_cache(spec)
    allow_files(spec.arrival.concurrency)
    loop, loop_name = new_event_loop(spec.event_loop)
    conductor = Conductor(spec)
    with contextlib.ExitStack() as stack:
        stack.callback(loop.close)
        records: Optional[IO[str]] = None
        if spec.records_path:
            records = stack.enter_context(Path(spec.records_path).open("w", encoding="utf-8", buffering=1 << 20))
        engine = Engine(spec, factory, loop, conductor, records=records)
        conductor.engine = engine
        attach(loop, engine.stop)
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles by the thousand, and a collection stops the clock for milliseconds
        stack.callback(gc.enable)
        ended_by = loop.run_until_complete(_conduct(engine, on_progress))
    finder = conductor.finder
    audit = dict(notes, loop=loop_name, workers=1)
    if finder.start_ns is not None:
        audit.update(engine.probe.summary(finder.start_ns, finder.end_ns or monotonic_ns()))
    audit.update(
        peak_concurrency=engine.peak_in_flight,
        reconnects=engine.reconnects,
        resent=engine.resent,
        connect_errors=engine.connect_errors,
        salt=salt,
        max_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )
    tally = engine.digester.tally
    for text, times in engine.connect_errors.items():
        tally.errors["connect: " + text] += times
    return build(
        spec,
        tally,
        start_ns=finder.start_ns,
        end_ns=finder.end_ns,
        ended_by=ended_by,
        audit=audit,
        requests=engine.sent,
    )


async def _conduct(engine: Engine, on_progress: Callable[[Dict[str, int]], None]) -> str:
    pattern = ClosedLoop(engine)
    engine.pattern = pattern
    try:
        await pattern.prepare()
    except OSError as error:
        text = error.strerror or str(error)
        engine.connect_errors[text] = engine.connect_errors.get(text, 0) + 1
        engine.stop("server_died" if isinstance(error, ConnectionRefusedError) else "all_failed")
    engine.probe.start()
    engine.spawn(engine.watch())
    engine.spawn(_report(engine, on_progress))
    if not engine.over:
        engine.spawn(pattern.start())
    ended_by = await engine.stopped
    await engine.close()
    on_progress(progress(engine))
    return ended_by


def progress(engine: Engine) -> Dict[str, int]:
    """What a progress bar shows."""
    counts = engine.digester.tally.counts
    return {
        "ok": counts["ok"],
        "failed": counts["failed"] + counts["empty"] + counts["short"] + counts["errored"],
        "running": engine.in_flight,
        "tokens": engine.digester.tally.tokens,
    }


async def _report(engine: Engine, on_progress: Callable[[Dict[str, int]], None]) -> None:
    while not engine.over:
        await asyncio.sleep(_PROGRESS_S)
        on_progress(progress(engine))
