"""The result of a trial: counts, the engine's judgement of itself, and whether the figures may be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ._digest import STATUSES, Tally
from ._judge import Judge, judge_client, judge_requests
from ._probe import quantile

if TYPE_CHECKING:
    from ._spec import Spec


def build(
    spec: Spec,
    tally: Tally,
    *,
    start_ns: Optional[int],
    end_ns: Optional[int],
    ended_by: str,
    audit: Dict[str, Any],
    requests: int,
    server_seen: Sequence[Tuple[int, float]] = (),
) -> Dict[str, Any]:
    """Put the result together.

    Args:
        spec: what was asked.
        tally: every finished request.
        start_ns: beginning of the steady window, None if it was never reached.
        end_ns: its end, None if the trial ended before.
        ended_by: why the trial ended.
        audit: figures of the engine about itself (lag, processor share and so on); extended here.
        requests: how many were sent.
        server_seen: moments and how many requests the server then said it had.
    """
    judge = Judge()
    whole = start_ns is not None and end_ns is not None
    if ended_by != "done":
        judge.check("ended_by", 1.0, 0.0, _ENDINGS.get(ended_by, "the trial ended early: " + ended_by))
    if not whole and ended_by == "done":
        judge.check("window", 1.0, 0.0, "no steady window was found")
    inside = Inside(tally, start_ns, end_ns)
    total = sum(inside.counts[status] for status in STATUSES if status != "aborted")
    audit = dict(audit, **inside.audit(spec))
    if whole:
        seen = [count for at, count in server_seen if (start_ns or 0) < at <= (end_ns or 0)]
        audit["server_running_mean"] = sum(seen) / len(seen) if seen else None
        audit["server_running_samples"] = len(seen)
    if whole:
        judge_requests(judge, spec.limits, inside, total, tally)
        judge_client(judge, spec, audit, inside)
    cached = inside.cached_share
    if whole and not spec.shared_prefix and cached is not None:
        judge.check(
            "cached_share",
            cached,
            spec.limits.max_cached_share,
            "%.1f %% of the prompt tokens came from the prefix cache although prompts are all different: "
            "was the cache flushed (flush_cache) and is the vocabulary large enough?" % (100 * cached),
        )
    return {
        "valid": not judge.invalid,
        "invalid": judge.invalid,
        "window": {"start_ns": start_ns, "end_ns": end_ns} if whole else None,
        "counts": inside.counts,
        "counts_all": {status: tally.counts[status] for status in STATUSES},
        "errors": dict(tally.errors.most_common()),
        "ended_by": ended_by,
        "audit": audit,
        "cached_share": cached,
        "requests": requests,
        "clock": "CLOCK_MONOTONIC",
    }


_ENDINGS = {
    "deadline": "the trial did not finish before its deadline",
    "stall": "no stream received a byte for the stall limit: the server hangs",
    "server_died": "the server went away during the trial",
    "cancelled": "the trial was cancelled",
    "all_failed": "no request succeeded; see errors",
}


class Inside:
    """The requests that ended inside the window (all of them where there is no window)."""

    def __init__(self, tally: Tally, start_ns: Optional[int], end_ns: Optional[int]) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self._tally = tally
        whole = start_ns is not None and end_ns is not None
        low, high = (start_ns or 0, end_ns or 0) if whole else (-1, 1 << 62)
        end = tally.end
        self.rows = [i for i in range(len(end)) if low < end[i] <= high]
        self.counts = dict.fromkeys(STATUSES, 0)
        for i in self.rows:
            self.counts[STATUSES[tally.status[i]]] += 1
        self.counts["aborted"] = tally.counts["aborted"]

    @property
    def cached_share(self) -> Optional[float]:
        """Cached over all prompt tokens; None where the server reports none of them."""
        tally = self._tally
        rows = [i for i in self.rows if tally.prompt[i] > 0 and tally.cached[i] >= 0]
        prompt = sum(tally.prompt[i] for i in rows)
        return sum(tally.cached[i] for i in rows) / prompt if prompt else None

    def ttft_ms(self, q: float) -> Optional[float]:
        """A quantile of the time to first token, in real milliseconds."""
        tally = self._tally
        values = [(tally.first[i] - tally.sent[i]) / 1e6 for i in self.rows if tally.first[i] and tally.sent[i]]
        return quantile(values, q)

    def schedule_lag_ms(self, q: float) -> Optional[float]:
        """A quantile of how late requests were sent."""
        tally = self._tally
        return quantile([(tally.sent[i] - tally.scheduled[i]) / 1e6 for i in self.rows if tally.sent[i]], q)

    def delivered(self) -> Optional[float]:
        """Mean number of requests in flight over the window."""
        start, end, tally = self.start_ns, self.end_ns, self._tally
        if start is None or end is None or end <= start:
            return None
        busy = 0
        for i in range(len(tally.end)):
            busy += max(0, min(tally.end[i], end) - max(tally.sent[i], start)) if tally.sent[i] else 0
        return busy / (end - start)

    def _stamp_lag(self) -> Dict[str, Any]:
        """How late events were stamped, by a stamped server's own clock: the truth that the loop's lag estimates."""
        late = _inside_ms(self._tally.lags, self.start_ns or 0, self.end_ns or 0)
        return {
            "stamp_lag_p50_ms": quantile(late, 0.5),
            "stamp_lag_p99_ms": quantile(late, 0.99),
            "stamp_lag_max_ms": late[-1] if late else None,
            "stamp_events": len(late),
        }

    def audit(self, spec: Spec) -> Dict[str, Any]:
        """Delivered against asked load, and the client's clock against the server's."""
        window_s = ((self.end_ns or 0) - (self.start_ns or 0)) / 1e9
        audit: Dict[str, Any] = {
            "delivered_concurrency": self.delivered(),
            "ttft_p50_ms": self.ttft_ms(0.5),
            "schedule_lag_p50_ms": self.schedule_lag_ms(0.5),
            "schedule_lag_p99_ms": self.schedule_lag_ms(0.99),
            "client_minus_server_ttft_p50_ms": _ms(quantile(self._tally.server_first_gap_s, 0.5)),
            "client_minus_server_e2e_p50_ms": _ms(quantile(self._tally.server_gap_s, 0.5)),
        }
        gap_s = quantile(self._tally.server_gap_s, 0.5)
        delivered = self.delivered()
        if gap_s is not None and delivered is not None and window_s > 0:
            # Little's law: what is in flight here and not yet, or no longer, with the server by its own stamps.
            audit["server_held_mean"] = max(0.0, delivered - gap_s * self.counts["ok"] / window_s)
        if spec.stamped:
            audit.update(self._stamp_lag())
        if spec.arrival.closed:
            audit["asked_concurrency"] = spec.arrival.concurrency
        elif spec.arrival.rate:
            sent = [1 for at in self._tally.sent if (self.start_ns or 0) < at <= (self.end_ns or 0)]
            audit["asked_rate"] = spec.arrival.rate
            audit["sent_rate"] = len(sent) / window_s if window_s > 0 else None
        return audit


def _inside_ms(flat: Sequence[int], low: int, high: int) -> List[float]:
    return sorted(flat[i + 1] / 1e6 for i in range(0, len(flat), 2) if low < flat[i] <= high)


def _ms(seconds: Optional[float]) -> Optional[float]:
    return None if seconds is None else seconds * 1e3
