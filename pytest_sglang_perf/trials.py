"""One trial: load beside the server, power over the same window, raw records home, metrics out of them."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import metrics
from pytest_sglang_perf.errors import AgentError, ConnectionLost, TrialInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_sglang_perf.nodes.open import OpenNode
    from pytest_sglang_perf.server.attached import AttachedServer
    from pytest_sglang_perf.server.boot import Boot
    from pytest_sglang_perf.suite import ResolvedWorkload

__all__ = ["LoadEnded", "TrialRecord", "pool", "run_trial"]

#: Between the load's own deadline and ours: time to write and report what it has.
HAND_OVER_S = 60.0
#: GPU readings are taken this often in the server's seconds, and never more often than every 5 ms.
GPU_PERIOD_S = 0.1
GPU_PERIOD_LEAST_MS = 5


@dataclass
class TrialRecord:
    """The metrics of one trial, in the units of the registry, with why the others are absent.

    ``values`` are builtin floats, because they cross process borders.
    """

    level: float
    values: dict[str, float]
    absent: dict[str, str]
    counts: dict[str, int]
    audit: dict[str, Any]
    started_wall_s: float
    window_s: float
    notes: list[str] = field(default_factory=list)
    slowed: list[str] = field(default_factory=list)
    evidence: tuple[list[Any], metrics.Window] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "values": dict(self.values),
            "absent": dict(self.absent),
            "counts": dict(self.counts),
            "audit": dict(self.audit),
            "started": self.started_wall_s,
            "window_s": self.window_s,
            "notes": list(self.notes),
            "slowed": list(self.slowed),
        }


class LoadEnded(Exception):
    """The trial was ended because the server died or froze; carries how many requests had finished."""

    def __init__(self, reason: str, requests: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.requests = requests


class _Events:
    """Collects the events of one trial from the client's reader thread."""

    def __init__(self, trial: str, on_progress: Callable[[dict[str, Any]], None] | None) -> None:
        self.trial = trial
        self.end: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self.changed = threading.Event()
        self._on_progress = on_progress

    def __call__(self, event: dict[str, Any]) -> None:
        if event.get("trial") != self.trial:
            return
        if event["event"] == "trial.end":
            self.end = event
            self.changed.set()
        elif event["event"] == "trial.progress":
            self.last = event
            if self._on_progress is not None:
                self._on_progress(event)


def run_trial(
    node: OpenNode,
    server: Boot | AttachedServer,
    workload: ResolvedWorkload,
    level: float,
    *,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    keep_in: Path | None = None,
) -> TrialRecord:
    """Run one trial of ``workload`` at ``level`` against a boot of ours, or a server of others, and return its metrics.

    Raises:
        LoadEnded: the server died meanwhile, or froze.
        TrialInvalid: the client or the output was not trustworthy; the message has every reason.
        ConnectionLost, AgentError: the node is the trouble.
    """
    trial = uuid.uuid4().hex[:12]
    boot = server.boot_id or None  # a server of others has none
    spec = workload.spec(level)
    spec.update(server.order(), salt=trial, time_scale=node.time_scale)
    period_ms = max(GPU_PERIOD_LEAST_MS, round(GPU_PERIOD_S * 1000 / node.time_scale))
    events = _Events(trial, on_progress)
    unsubscribe = node.client.subscribe(events)
    started = time.time()
    try:
        node.client.request(
            "trial.start",
            timeout=60.0,
            trial=trial,
            boot=boot,
            url=spec["url"],
            spec=spec,
            gpu_period_ms=period_ms if boot is not None else None,
        )
        end = _wait(node, server, events, float(spec["limits"]["deadline_s"]) + HAND_OVER_S)
    finally:
        unsubscribe()
    result = end["result"]
    if result["ended_by"] == "server_died":
        raise LoadEnded(server.dead() or "the server died", _finished(result))
    if result["ended_by"] == "stall":
        raise LoadEnded(_stalled(result), _finished(result))
    if result["ended_by"] == "all_failed" and boot is None:  # nobody else tells of the death of a server of others
        raise LoadEnded(f"every request failed: {next(iter(result['errors']), 'no answer')}", _finished(result))
    if not result["valid"]:
        reasons = "\n".join(f"  - {check['message']}" for check in result["invalid"])
        raise TrialInvalid(
            f"the trial at concurrency {level} is invalid (which is not the same as slow):\n"
            f"{reasons or result['ended_by']}"
        )
    gpu = end.get("gpu") or {}
    with tempfile.TemporaryDirectory(prefix="sglang-perf-") as scratch:
        folder = keep_in or Path(scratch)
        records = _fetch(node, end["records_path"], folder / f"{trial}.records.jsonl")
        samples = _fetch(node, gpu["samples_path"], folder / f"{trial}.gpu.csv") if gpu.get("samples_path") else None
        return _measure(node, level, result, records, samples, gpu, started, has_node=boot is not None)


def _wait(node: OpenNode, server: Boot | AttachedServer, events: _Events, limit_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    cancelled_at: float | None = None
    while not events.changed.wait(0.1):
        if node.client.lost is not None:
            raise ConnectionLost(f"{node.client.describe()} during a trial: {node.client.lost}")
        now = time.monotonic()
        if cancelled_at is None and server.dead() is not None:
            # The agent cancels by itself when it sees the death first; a fatal log line is seen here.
            node.client.request("trial.cancel", timeout=10.0, trial=events.trial, reason="server_died")
            cancelled_at = now
        if now > deadline or (cancelled_at is not None and now - cancelled_at > HAND_OVER_S):
            raise AgentError(
                f"the load process on {node.name} did not report within {limit_s:.0f} s; last progress: {events.last}"
            )
    assert events.end is not None
    return events.end


def _stalled(result: dict[str, Any]) -> str:
    frozen = result.get("frozen") or {}
    if not frozen:
        return "no progress: no stream received a byte within limits.stall_s"
    text = f"no progress for {frozen['silent_s']:.0f} s: no stream received a byte, "
    stopped = [f"{one['title']} (pid {one['pid']}) is stopped (state {one['state']})" for one in frozen["stopped"]]
    return text + ("; ".join(stopped) or "and the server's log said nothing")


def _finished(result: dict[str, Any]) -> int:
    return int(result["counts"].get("ok", 0))


def _fetch(node: OpenNode, path: str, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(node.client.read_file(path))
    return to


def _measure(
    node: OpenNode,
    level: float,
    result: dict[str, Any],
    records: Path,
    samples: Path | None,
    gpu: dict[str, Any],
    started: float,
    *,
    has_node: bool,
) -> TrialRecord:
    window = metrics.Window.of(result["window"])
    requests = metrics.read_records(records)
    found = metrics.from_records(requests, window, time_scale=node.time_scale)
    length_s = (window.end_ns - window.start_ns) / 1e9 * node.time_scale
    throughput = found["output_throughput"]
    tokens = None if isinstance(throughput, metrics.Absent) else throughput * length_s
    readings = metrics.read_gpu_samples(samples) if samples is not None else []
    foreign = gpu.get("strangers") or ()
    report = metrics.gpu_report(readings, window, tokens, time_scale=node.time_scale, gpus=node.gpus, foreign=foreign)
    power = report.values
    gpu_error = gpu.get("error")
    if not has_node:
        gpu_error = "the server was started by someone else, and its node's GPUs are not ours to read"
    if gpu_error and all(isinstance(value, metrics.Absent) for value in power.values()):
        power = dict.fromkeys(power, metrics.Absent(gpu_error))
    found = {**found, **power}
    return TrialRecord(
        level=level,
        values={name: float(v) for name, v in found.items() if not isinstance(v, metrics.Absent)},
        absent={name: v.reason for name, v in found.items() if isinstance(v, metrics.Absent)},
        counts={k: int(v) for k, v in result["counts"].items()},
        audit=result.get("audit") or {},
        started_wall_s=started,
        window_s=length_s,
        slowed=list(report.slowed),
        evidence=(requests, window),
    )


def pool(trials: Sequence[TrialRecord], *, time_scale: float) -> dict[str, float]:
    """What only all trials of a boot together have enough requests for: percentiles, mostly.

    The raw requests are dropped afterwards; a hundred thousand of them are no light luggage.
    """
    together = metrics.from_trials([t.evidence for t in trials if t.evidence is not None], time_scale=time_scale)
    for trial in trials:
        trial.evidence = None
    return {
        name: float(value)
        for name, value in together.items()
        if not isinstance(value, metrics.Absent) and any(name not in trial.values for trial in trials)
    }
