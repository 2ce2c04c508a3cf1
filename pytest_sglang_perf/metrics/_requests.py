"""Throughput and latency, from the records of one trial or of all trials of a boot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._ingest import Request, Window, ingest, seconds
from ._quantiles import SAMPLES_NEEDED, percentile
from ._value import Absent, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["from_records", "from_trials", "steady_requests"]

_NO_COUNT = Absent("the server reports no token counts (usage), and events are not tokens")
_BAD = ("failed", "errored", "empty", "short")


def steady_requests(records: Iterable[Mapping[str, Any]], window: Window | Mapping[str, int]) -> int:
    """How many requests ended well inside the window: what percentiles are counted over."""
    inside = Window.of(window)
    return sum(1 for record in records if record["status"] == "ok" and record.get("end_ns") in inside)


def from_records(
    records: Iterable[Mapping[str, Any]], window: Window | Mapping[str, int], *, time_scale: float = 1.0
) -> dict[str, Value]:
    """The metrics of one trial.

    Args:
        records: lines of the records file, as dictionaries.
        window: the steady window of the trial's result.
        time_scale: simulated seconds in a real one; 1 on real nodes.
    """
    return from_trials([(records, window)], time_scale=time_scale)


def from_trials(
    trials: Sequence[tuple[Iterable[Mapping[str, Any]], Window | Mapping[str, int]]], *, time_scale: float = 1.0
) -> dict[str, Value]:
    """The metrics of several trials of one boot at one level taken together.

    Rates are totals over the sum of the windows. Latencies are pooled over the requests of all windows, which is
    how a percentile that one trial has too few requests for becomes available.

    Args:
        trials: records and window of each trial.
        time_scale: simulated seconds in a real one.
    """
    pool = _Pool(time_scale)
    for records, window in trials:
        pool.add(ingest(records), Window.of(window))
    return pool.metrics()


class _Pool:
    """Adds up requests of one window after the other."""

    def __init__(self, time_scale: float) -> None:
        self._scale = time_scale
        self._length_s = 0.0
        self._tokens = 0.0
        self._counted = True
        self._ended = {"ok": 0, **dict.fromkeys(_BAD, 0)}
        self._prompt = self._cached = 0
        self._cache_known = False
        self._busy_s = 0.0
        self._samples: dict[str, list[float]] = {name: [] for name in ("ttft", "ttft_scheduled", "tpot", "itl", "e2e")}

    def add(self, requests: Iterable[Request], window: Window) -> None:
        self._length_s += seconds(window.end_ns - window.start_ns, self._scale)
        for request in requests:
            end = window.end_ns if request.end_ns is None else request.end_ns
            overlap = min(end, window.end_ns) - max(request.sent_ns, window.start_ns)
            self._busy_s += seconds(max(0, overlap), self._scale)
            # Tokens of a request that went wrong are no output; those of one still running at the end are.
            if request.status in ("ok", "aborted"):
                self._tokens += sum(tokens for arrival, tokens in request.chunks if arrival in window)
                self._counted = self._counted and request.counted
            if request.status in self._ended and request.end_ns in window:
                self._ended[request.status] += 1
                if request.status == "ok":
                    self._describe(request)

    def _describe(self, request: Request) -> None:
        """The latencies of a request that ended well inside the window."""
        if request.prompt_tokens is not None:
            self._prompt += request.prompt_tokens
            if request.cached_tokens is not None:
                self._cache_known = True
                self._cached += request.cached_tokens
        if not request.chunks:
            return
        (first, first_tokens), (last, _) = request.chunks[0], request.chunks[-1]
        scale, samples = self._scale, self._samples
        samples["ttft"].append(seconds(first - request.sent_ns, scale))
        samples["ttft_scheduled"].append(seconds(first - request.scheduled_ns, scale))
        samples["e2e"].append(seconds(last - request.sent_ns, scale))
        if not request.counted:
            return
        later = request.tokens - first_tokens
        if later > 0:
            samples["tpot"].append(seconds(last - first, scale) / later)
        before = first
        for arrival, tokens in request.chunks[1:]:
            gap = seconds(arrival - before, scale) / tokens
            samples["itl"].extend([gap] * round(tokens))
            before = arrival

    def metrics(self) -> dict[str, Value]:
        ok = self._ended["ok"]
        bad = sum(self._ended[status] for status in _BAD)
        length = self._length_s
        values: dict[str, Value] = {
            "output_throughput": self._tokens / length if self._counted else _NO_COUNT,
            "request_throughput": ok / length,
            "input_throughput": self._prompt / length
            if self._prompt
            else Absent("the server does not report prompt tokens"),
            "failed_requests": float(bad),
            "failed_share": bad / (ok + bad) if ok + bad else Absent("no request ended in the window"),
            "cache_hit_rate": self._cached / self._prompt
            if self._cache_known and self._prompt
            else Absent("the server does not report cached tokens"),
            "concurrency": self._busy_s / length,
        }
        for name, samples in self._samples.items():
            values[f"{name}_mean"] = sum(samples) / len(samples) if samples else self._missing(name, ok)
            for percent in SAMPLES_NEEDED:
                values[f"{name}_p{percent}"] = (
                    percentile(samples, percent, samples=ok) if samples else self._missing(name, ok)
                )
        return values

    def _missing(self, name: str, ok: int) -> Absent:
        if not ok:
            return Absent("no request ended well inside the steady window")
        if not self._counted:
            return _NO_COUNT
        return Absent(f"no answer had a second chunk, and {name} needs two")
