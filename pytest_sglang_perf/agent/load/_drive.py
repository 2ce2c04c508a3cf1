"""One engine from its first connection to its last record."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Iterator, List, Optional, Tuple, Union

from ._closed import ClosedLoop
from ._open import OpenLoop
from ._peek import Peek
from ._spec import SpecError

if TYPE_CHECKING:
    from ._digest import Tally
    from ._engine import Engine
    from ._window import WindowFinder

_PROGRESS_S = 0.5
_SPARE_FILES = 256
Progress = Dict[str, int]


def new_event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it can be imported, unless told otherwise."""
    uvloop = _uvloop(kind)
    loop: asyncio.AbstractEventLoop = asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
    return loop


def event_loop_name(kind: str) -> str:
    """What ``new_event_loop`` gives here, for the audit."""
    uvloop = _uvloop(kind)
    return "asyncio {}.{}.{}".format(*sys.version_info[:3]) if uvloop is None else f"uvloop {uvloop.__version__}"


def _uvloop(kind: str) -> Any:
    """The module, or None where it is not wanted or not there."""
    if kind == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if kind == "uvloop":
            raise SpecError("event_loop: uvloop cannot be imported by this Python") from None
        return None
    return uvloop


def allow_files(count: int) -> None:
    """Raise the limit of open files if the level needs it and the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def peak_kib() -> int:
    """Most memory that this program has had at once; the kernel's usual figure includes what it was before its exec."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def no_collections() -> Iterator[None]:
    """Nothing here makes cycles by the thousand, and a collection stops the clock for milliseconds."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def drive(
    engine: Engine,
    on_progress: Callable[[Progress], None],
    gate: Optional[Callable[[], Awaitable[None]]] = None,
) -> str:
    """Connect, send until somebody calls ``engine.stop``, clean up; return the reason.

    ``gate``, if given, is awaited between connecting and sending: workers start together.
    """
    pattern: Union[ClosedLoop, OpenLoop] = ClosedLoop(engine) if engine.spec.arrival.closed else OpenLoop(engine)
    engine.pattern = pattern
    try:
        await pattern.prepare()
    except OSError as error:
        text = error.strerror or str(error)
        engine.connect_errors[text] = engine.connect_errors.get(text, 0) + 1
        engine.stop("server_died" if isinstance(error, ConnectionRefusedError) else "all_failed")
    if gate is not None:
        await gate()
    engine.probe.start()
    engine.spawn(engine.watch())
    engine.spawn(_report(engine, on_progress))
    if engine.spec.peek_path is not None and engine.worker == 0:
        engine.peek = Peek(engine, engine.spec.peek_path)
        engine.spawn(engine.peek.run())
    if not engine.over:
        engine.spawn(pattern.start())
    reason = await engine.stopped
    await engine.close()
    on_progress(progress(engine))
    return reason


def progress(engine: Engine) -> Progress:
    """What a progress bar shows."""
    counts = engine.digester.tally.counts
    return {
        "ok": counts["ok"],
        "failed": counts["failed"] + counts["empty"] + counts["short"] + counts["errored"],
        "running": engine.in_flight,
        "tokens": engine.digester.tally.tokens,
        "silent_since_ns": engine.silent_since_ns,
    }


async def _report(engine: Engine, on_progress: Callable[[Progress], None]) -> None:
    while not engine.over:
        await asyncio.sleep(_PROGRESS_S)
        on_progress(progress(engine))


class Yield:
    """What an engine leaves behind: picklable, and additive over workers."""

    def __init__(self, engine: Engine, finder_start_ns: Optional[int], finder_end_ns: Optional[int]) -> None:
        self.tally: Tally = engine.digester.tally
        start_ns = finder_start_ns or 0
        probe = engine.probe.summary(start_ns, finder_end_ns or monotonic_ns()) if finder_start_ns is not None else {}
        self.cpu_share = probe.get("cpu_share") or 0.0
        self.worst: Dict[str, Any] = dict(probe, max_rss_mib=peak_kib() // 1024)
        self.server_seen: List[Tuple[int, float]] = engine.peek.seen if engine.peek is not None else []
        self.total: Dict[str, int] = {
            "requests": engine.sent,
            "peak_concurrency": engine.peak_in_flight,
            "reconnects": engine.reconnects,
            "resent": engine.resent,
        }
        for text, times in engine.connect_errors.items():
            self.tally.errors["connect: " + text] += times

    def merge(self, other: Yield) -> None:
        """Add another worker's: tallies and totals add up, of lateness and processor share the worst counts."""
        self.tally.merge(other.tally)
        self.cpu_share += other.cpu_share
        self.server_seen = self.server_seen or other.server_seen
        for key, value in other.total.items():
            self.total[key] += value
        for key, value in other.worst.items():
            mine = self.worst.get(key)
            if key == "max_rss_mib":
                self.worst[key] = mine + value
            elif value is not None and (mine is None or value > mine):
                self.worst[key] = value


class Conductor:
    """Ends the trial when the window is whole; for a single engine."""

    def __init__(self, finder: WindowFinder) -> None:
        self.finder = finder
        self.engine: Optional[Engine] = None

    def full(self, now_ns: int) -> None:
        """The level is reached."""
        self.finder.full(now_ns)

    def completed(self, index: int, end_ns: int) -> None:
        """A request ended."""
        if self.finder.completed(index, end_ns) and self.engine is not None:
            self.engine.stop("done")

    def exhausted(self) -> None:
        """Nothing more will come."""
        if self.engine is not None:
            self.engine.stop("done")
