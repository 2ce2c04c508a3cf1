"""Whether the figures of a trial may be believed: what came of its requests, and whether the client was slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from ._digest import Tally
    from ._result import Inside
    from ._spec import Limits, Spec

_MIN_SAMPLED = 4
_MIN_SEEN = 5
_MIN_IN_FLIGHT = 8
_MOST_P50_MS = 20.0
_MOST_P99_MS = 100.0
# Figure and bound of the same name, the bound's share of the time to first token, its cap, and what would be wrong.
_LAGS = (
    ("lag_p50_ms", "median", "lag_p50_share", _MOST_P50_MS, "Medians"),
    ("lag_p99_ms", "p99", "lag_share", _MOST_P99_MS, "Tails"),
)


class Judge:
    """Collects what makes a trial invalid."""

    def __init__(self) -> None:
        self.invalid: List[Dict[str, Any]] = []

    def check(self, name: str, value: Optional[float], bound: float, message: str, *, least: bool = False) -> None:
        """Note ``message`` if the value is beyond its bound (below it for ``least``). None is no evidence."""
        if value is None or (value >= bound if least else value <= bound):
            return
        self.invalid.append({"check": name, "value": value, "bound": bound, "message": message})


def judge_requests(judge: Judge, limits: Limits, inside: Inside, total: int, tally: Tally) -> None:
    """Failed, empty, short and constant answers."""
    counts = inside.counts
    bad = counts["failed"] + counts["errored"] + counts["empty"]
    short = counts["short"]
    if total:
        judge.check(
            "failed_share",
            bad / total,
            limits.max_failed_share,
            f"{bad} of {total} requests gave no usable answer ({counts['failed']} failed, {counts['errored']} errored, "
            f"{counts['empty']} empty); see errors",
        )
        judge.check(
            "short_share",
            short / total,
            limits.max_short_share,
            f"{short} of {total} answers were shorter than ordered although ignore_eos was set: figures of different "
            "lengths cannot be compared",
        )
    if tally.sampled >= _MIN_SAMPLED and tally.constant:
        (content, times) = tally.constant.most_common(1)[0]
        judge.check(
            "constant_output",
            times / tally.sampled,
            limits.max_constant_share,
            f"{times} of {tally.sampled} sampled answers consist of {content!r} over and over: the model computes "
            "garbage",
        )


def judge_client(judge: Judge, spec: Spec, audit: Dict[str, Any], inside: Inside) -> None:
    """Was it the client that was slow?

    Lag is judged in real time against what it distorts: 5 ms are nothing beside a time to first token of a second and
    everything beside one of 5 ms. What was measured has the lag in it already, so the lag is taken off first, and the
    tolerance is capped: a client must not be excused by the slowness that it causes.
    """
    limits = spec.limits
    used, waited = audit.get("cpu_share") or 0.0, audit.get("cpu_wait_share") or 0.0
    judge.check(
        "cpu_share",
        used + waited,
        limits.cpu_share,
        f"the load generator needed {100 * (used + waited):.0f} % of its core ({100 * used:.0f} % used, "
        f"{100 * waited:.0f} % spent waiting behind other programs): it, not the server, was the limit",
    )
    measured = inside.ttft_ms(0.5) or 0.0
    for name, at, share, most_ms, whose in _LAGS:
        late, least_ms, of_ttft = audit.get(name) or 0.0, getattr(limits, name), getattr(limits, share)
        ttft = max(0.0, measured - late)
        bound = max(least_ms, min(most_ms, of_ttft * ttft))
        judge.check(
            name,
            late,
            bound,
            f"the load generator was {late:.1f} ms late ({at}, real time); tolerated are {bound:.1f} ms: "
            f"{least_ms:g} ms, or {100 * of_ttft:.0f} % of the median time to first token ({ttft:.1f} ms in real time) "
            f"up to {most_ms:g} ms. {whose} would be its own",
        )
    delivered = audit.get("delivered_concurrency") or 0.0
    asked = float(spec.arrival.concurrency) if spec.arrival.closed else None
    if asked is not None:
        judge.check(
            "delivered_concurrency",
            delivered,
            limits.delivered_share * asked,
            f"only {delivered:.1f} of {asked:g} requests were in flight on average: the level was not held",
            least=True,
        )
    # An open pattern asks for a rate; what it then had in flight, the server should have as well.
    there = asked if asked is not None else delivered
    if (audit.get("server_running_samples") or 0) >= _MIN_SEEN and (asked is not None or there >= _MIN_IN_FLIGHT):
        # A scheduler does not count what the server's own front end is still taking in, at some levels half of all; the
        # server's stamps of each request do. Only what neither has seen was held back on the way.
        seen = max(audit["server_running_mean"], audit.get("server_held_mean") or 0.0)
        judge.check(
            "server_running",
            seen,
            limits.server_share * there,
            f"the server says it had {seen:.1f} requests on average (running and waiting), while {there:.1f} were "
            "in flight: something between us and the server holds them back",
            least=True,
        )
    if asked is None and spec.arrival.max_concurrency is None:
        late = audit.get("schedule_lag_p99_ms") or 0.0
        ttft = max(0.0, measured - (audit.get("lag_p99_ms") or 0.0))
        bound = max(limits.schedule_lag_p99_ms, min(_MOST_P99_MS, limits.lag_share * ttft))
        judge.check(
            "schedule_lag_p99_ms",
            late,
            bound,
            f"requests left {late:.1f} ms after their time (p99, real time); at most {bound:.1f} ms is tolerated: the "
            "arrival pattern was not the one asked for",
        )
