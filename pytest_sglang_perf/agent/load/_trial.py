"""A trial from order to result."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from ._crew import Crew, worker_count
from ._drive import Conductor, Progress, Yield, allow_files, drive, event_loop_name, new_event_loop, no_collections
from ._engine import Engine
from ._preflight import preflight
from ._requests import RequestFactory
from ._result import build
from ._schedule import read_trace
from ._window import WindowFinder

if TYPE_CHECKING:
    from ._spec import Spec

Attach = Callable[[asyncio.AbstractEventLoop, Callable[[str], None]], None]


def run(spec: Spec, *, on_progress: Callable[[Progress], None], attach: Attach) -> Dict[str, Any]:
    """Run a trial and return its result.

    Args:
        spec: what to do.
        on_progress: hears ``ok``, ``failed``, ``running``, ``tokens`` twice a second.
        attach: is given the loop and a function that ends the trial early with a reason.

    Raises:
        SpecError: something the order names is not there (a key's environment variable, a trace).
    """
    salt = spec.salt or os.urandom(8).hex()
    spec, notes = preflight(spec, salt)
    finder = WindowFinder(spec.warmup_requests, _window_requests(spec))
    workers = worker_count(spec)
    if workers == 1:
        reason, harvest = _alone(spec, salt, finder, on_progress, attach)
    else:
        reason, harvest = _together(spec, salt, workers, finder, on_progress, attach)
    audit = dict(notes, loop=event_loop_name(spec.event_loop), workers=workers, salt=salt)
    audit.update(harvest.worst)
    audit.update(harvest.total)
    audit["cpu_share_total"] = harvest.cpu_share
    return build(
        spec,
        harvest.tally,
        start_ns=finder.start_ns,
        end_ns=finder.end_ns,
        ended_by=reason,
        audit=audit,
        server_seen=harvest.server_seen,
        requests=audit.pop("requests"),
    )


def _window_requests(spec: Spec) -> int:
    if spec.arrival.kind != "trace":
        return spec.window_requests
    return max(1, min(spec.requests, len(read_trace(spec.arrival.path)) - spec.warmup_requests))


def _alone(
    spec: Spec, salt: str, finder: WindowFinder, on_progress: Callable[[Progress], None], attach: Attach
) -> Tuple[str, Yield]:
    """In this process."""
    allow_files(spec.arrival.most_streams)
    loop = new_event_loop(spec.event_loop)
    conductor = Conductor(finder)
    with contextlib.ExitStack() as stack:
        stack.callback(loop.close)
        records: Optional[IO[str]] = None
        if spec.records_path:
            records = stack.enter_context(Path(spec.records_path).open("w", encoding="utf-8", buffering=1 << 20))
        engine = Engine(spec, RequestFactory(spec, salt), loop, conductor, records=records)
        conductor.engine = engine
        attach(loop, engine.stop)
        with no_collections():
            reason = loop.run_until_complete(drive(engine, on_progress))
    return reason, Yield(engine, finder.start_ns, finder.end_ns)


def _together(
    spec: Spec,
    salt: str,
    workers: int,
    finder: WindowFinder,
    on_progress: Callable[[Progress], None],
    attach: Attach,
) -> Tuple[str, Yield]:
    """In several worker processes."""
    crew = Crew(spec, salt, workers, finder)
    crew.fork()
    loop = asyncio.new_event_loop()
    try:
        attach(loop, crew.stop)
        reason, harvest = loop.run_until_complete(crew.run(on_progress))
        crew.join_records()
    finally:
        loop.close()
    return reason, harvest
