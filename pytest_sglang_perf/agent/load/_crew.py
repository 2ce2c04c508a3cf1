"""Several workers: one engine for each spare core, one window for all of them.

Workers report completions every few milliseconds together with a watermark, the time up to which they have reported
everything. The window is found on the merged order of completions, as if one engine had sent them all; its ends are
exact, only the order to stop comes a few milliseconds late. Raw records are merged, never percentiles.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection as Channel
from multiprocessing.connection import Pipe
from pathlib import Path
from time import monotonic_ns
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from ._drive import Progress, Yield, allow_files, drive, new_event_loop, no_collections
from ._engine import Engine
from ._requests import RequestFactory
from ._spec import Spec, SpecError

if TYPE_CHECKING:
    from ._window import WindowFinder

STREAMS_PER_WORKER = 1024
_REPORT_S = 0.02


def worker_count(spec: Spec) -> int:
    """One worker up to 1,024 streams; above that as many as needed, but one core stays free for the server."""
    if spec.workers is not None:
        return min(spec.workers, spec.arrival.concurrency) if spec.arrival.closed else spec.workers
    level = spec.arrival.concurrency if spec.arrival.closed else spec.arrival.max_concurrency or spec.arrival.size
    cores = len(os.sched_getaffinity(0))
    return max(1, min(-(-level // STREAMS_PER_WORKER), cores - 1))


class _Remote:
    """A worker's conductor: passes on what it hears."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._done: List[Tuple[int, int]] = []
        self.go: asyncio.Future[None] = loop.create_future()
        self.window: Tuple[Optional[int], Optional[int]] = (None, None)
        self.engine: Optional[Engine] = None

    def full(self, now_ns: int) -> None:
        self._say(("full", now_ns))

    def completed(self, index: int, end_ns: int) -> None:
        self._done.append((end_ns, index))

    def exhausted(self) -> None:
        self._say(("exhausted", None))

    def report(self) -> None:
        """Every few milliseconds: what has ended, and that nothing older is still to come."""
        done, self._done = self._done, []
        self._say(("done", (monotonic_ns(), done)))
        self._loop.call_later(_REPORT_S, self.report)

    def listen(self) -> None:
        """An order from the parent; its disappearance is one as well."""
        assert self.engine is not None
        try:
            kind, value = self._channel.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._channel.fileno())
            self.engine.stop("cancelled")
            kind = "go"
        if kind == "stop":
            reason, self.window = value
            self.engine.stop(reason)
        if not self.go.done():
            self.go.set_result(None)

    def _say(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except OSError:
            if self.engine is not None:
                self.engine.stop("cancelled")


def together(parts: Sequence[Progress]) -> Progress:
    """The progress of all workers: counts add up, and silence lasts since the last of them heard something."""
    total = {key: sum(part[key] for part in parts) for key in parts[0]}
    total["silent_since_ns"] = max(part["silent_since_ns"] for part in parts)
    return total


def _part(path: str, worker: int) -> Path:
    return Path(f"{path}.{worker}")


def _work(spec: Spec, salt: str, share: Tuple[int, int], channel: Channel) -> None:
    """A worker's life, in a process of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, and tells us
    allow_files(spec.arrival.most_streams)
    loop = new_event_loop(spec.event_loop)
    records: Optional[IO[str]] = None
    if spec.records_path:
        records = _part(spec.records_path, share[0]).open("w", encoding="utf-8", buffering=1 << 20)
    remote = _Remote(channel, loop)
    engine = Engine(spec, RequestFactory(spec, salt), loop, remote, records=records, share=share)
    remote.engine = engine
    loop.add_reader(channel.fileno(), remote.listen)

    async def gate() -> None:
        channel.send(("ready", engine.stopped.result() if engine.over else None))
        await remote.go
        remote.report()

    with no_collections():
        reason = loop.run_until_complete(drive(engine, lambda progress: channel.send(("progress", progress)), gate))
    if records is not None:
        records.close()
    channel.send(("end", (reason, Yield(engine, *remote.window))))


class Crew:
    """The parent of the workers: finds the window, ends the trial, puts their results together."""

    def __init__(self, spec: Spec, salt: str, workers: int, finder: WindowFinder) -> None:
        self._spec = spec
        self._finder = finder
        self._salt = salt
        self._workers = workers
        self._channels: List[Channel] = []
        self._pids: List[int] = []
        self._waiting: List[Tuple[int, int]] = []
        self._marks: Dict[int, int] = dict.fromkeys(range(workers), 0)
        self._progress: Dict[int, Progress] = {}
        self._ready = self._full = self._exhausted = 0
        self._full_ns = 0
        self._reason: Optional[str] = None
        self._yields: Dict[int, Yield] = {}
        self._finished: Optional[asyncio.Future[None]] = None
        self._lost: List[int] = []

    def fork(self) -> None:
        """Start the workers; call before any event loop or thread exists."""
        sys.stdout.flush()
        sys.stderr.flush()
        for worker in range(self._workers):
            ours, theirs = Pipe()
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    for channel in (*self._channels, ours):
                        channel.close()
                    _work(self._spec, self._salt, (worker, self._workers), theirs)
                    status = 0
                except SpecError as error:
                    theirs.send(("wrong", str(error)))
                except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
                    traceback.print_exc()
                finally:
                    os._exit(status)
            theirs.close()
            self._channels.append(ours)
            self._pids.append(pid)

    async def run(self, on_progress: Callable[[Progress], None]) -> Tuple[str, Yield]:
        """Conduct the workers to the end.

        Raises:
            SpecError: a worker found the order wrong.
            RuntimeError: every worker died.
        """
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        for worker, channel in enumerate(self._channels):
            loop.add_reader(channel.fileno(), self._hear, worker, on_progress)
        if self._reason is not None:
            self.stop(self._reason, again=True)
        try:
            await self._finished
        finally:
            for channel in self._channels:
                loop.remove_reader(channel.fileno())
                channel.close()
            self._reap()
        if not self._yields:
            raise RuntimeError("every load worker died; their tracebacks are on standard error")
        first, *others = (self._yields[worker] for worker in sorted(self._yields))
        for other in others:
            first.merge(other)
        return self._reason or "cancelled", first

    def _reap(self) -> None:
        """They have said their last word, or lost their parent's ear: both end them."""
        for pid in self._pids:
            os.waitpid(pid, 0)

    def stop(self, reason: str, *, again: bool = False) -> None:
        """End the trial on every worker; the first reason stands."""
        if self._reason is not None and not again:
            return
        self._reason = self._reason or reason
        order = ("stop", (self._reason, (self._finder.start_ns, self._finder.end_ns)))
        for worker, channel in enumerate(self._channels):
            if worker not in self._yields and worker not in self._lost:
                try:
                    channel.send(order)
                except OSError:
                    pass

    def _hear(self, worker: int, on_progress: Callable[[Progress], None]) -> None:
        try:
            kind, value = self._channels[worker].recv()
        except (EOFError, OSError):
            kind, value = "lost", None
        if kind == "done":
            self._marks[worker], done = value
            self._merge(done)
        elif kind == "progress":
            self._progress[worker] = value
            on_progress(together(list(self._progress.values())))
        elif kind in ("ready", "full", "exhausted"):
            getattr(self, "_on_" + kind)(value)
        elif kind == "wrong":
            self._end(SpecError(value))
        else:
            self._over(worker, kind, value)

    def _on_ready(self, trouble: Optional[str]) -> None:
        """All start together, once the last has opened its connections."""
        self._ready += 1
        if trouble is not None:
            self.stop(trouble)
        elif self._ready == self._workers and self._reason is None:
            for channel in self._channels:
                channel.send(("go", None))

    def _on_full(self, full_ns: int) -> None:
        self._full += 1
        self._full_ns = max(self._full_ns, full_ns)
        if self._full == self._workers:
            self._finder.full(self._full_ns)

    def _on_exhausted(self, _: None) -> None:
        self._exhausted += 1
        if self._exhausted == self._workers:
            self.stop("done")

    def _over(self, worker: int, kind: str, value: Any) -> None:
        if kind == "end":
            reason, self._yields[worker] = value
            self._marks.pop(worker, None)
            self.stop(reason)
        elif worker not in self._yields:
            self._lost.append(worker)
            self.stop("worker_died")
        asyncio.get_running_loop().remove_reader(self._channels[worker].fileno())
        if len(self._yields) + len(self._lost) == self._workers:
            self._end(None)

    def _end(self, error: Optional[Exception]) -> None:
        if self._finished is not None and not self._finished.done():
            if error is None:
                self._finished.set_result(None)
            else:
                self._finished.set_exception(error)

    def _merge(self, done: List[Tuple[int, int]]) -> None:
        for item in done:
            heapq.heappush(self._waiting, item)
        mark = min(self._marks.values(), default=0)
        while self._waiting and self._waiting[0][0] <= mark:
            end_ns, index = heapq.heappop(self._waiting)
            if self._finder.completed(index, end_ns):
                self.stop("done")

    def join_records(self) -> None:
        """Put the workers' record files together."""
        path = self._spec.records_path
        if not path:
            return
        with Path(path).open("wb") as whole:
            for worker in range(self._workers):
                part = _part(path, worker)
                if part.exists():
                    with part.open("rb") as source:
                        while True:
                            block = source.read(1 << 20)
                            if not block:
                                break
                            whole.write(block)
                    part.unlink()
