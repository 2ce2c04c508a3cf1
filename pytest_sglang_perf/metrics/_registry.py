"""Every metric of this package: name, unit, direction, formula."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REGISTRY", "Metric"]


@dataclass(frozen=True)
class Metric:
    """A named figure of a trial.

    Attributes:
        name: as in ``measurement.output_throughput``.
        unit: of the value; simulated seconds on a node with a time scale.
        better: which direction is an improvement, None where neither is.
        exact: counted, not sampled: compared without statistics.
        formula: in the terms of ``docs/reference/metrics.md``.
        margin: relative change that the usual gate tolerates unless the suite says otherwise; None: not gated.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"] | None
    formula: str
    margin: float | None = None
    exact: bool = False


_LATENCIES = {
    "ttft": ("t_first - t_sent", 0.10),
    "ttft_scheduled": ("t_first - t_scheduled", None),
    "tpot": ("(t_last - t_first) / (tokens - tokens in the first chunk)", 0.05),
    "itl": ("gap between chunks / tokens in the later one, once for each of these tokens", None),
    "e2e": ("t_last - t_sent", 0.05),
}
# The gate is on medians: tails are described, and claimed by those who need them.
_GATED = ("p50",)


def _latencies() -> list[Metric]:
    return [
        Metric(
            f"{name}_{statistic}",
            "s",
            "lower",
            f"{statistic} of {formula}",
            margin=margin if statistic in _GATED else None,
        )
        for name, (formula, margin) in _LATENCIES.items()
        for statistic in ("mean", "p50", "p90", "p95", "p99")
    ]


def _build() -> dict[str, Metric]:
    metrics = [
        Metric(
            "output_throughput", "tok/s", "higher", "output tokens that arrived in the steady window / its length", 0.03
        ),
        Metric("request_throughput", "req/s", "higher", "requests that ended well in the window / its length"),
        Metric("input_throughput", "tok/s", "higher", "prompt tokens of the requests that ended well / window"),
        *_latencies(),
        Metric("failed_requests", "requests", "lower", "requests in the window that did not end well", exact=True),
        Metric("failed_share", "1", "lower", "failed_requests / requests that ended in the window", exact=True),
        Metric("cache_hit_rate", "1", None, "cached prompt tokens / prompt tokens"),
        Metric("concurrency", "requests", None, "mean number of requests in flight over the window"),
        Metric("power_draw", "W", None, "energy of all GPUs over the window / its length"),
        Metric("power_draw_per_gpu", "W", None, "power_draw / number of GPUs"),
        Metric("power_fraction", "1", None, "power_draw / sum of the GPUs' power limits"),
        Metric("power_imbalance", "1", None, "(highest - lowest energy of a GPU over the window) / mean over the GPUs"),
        Metric("energy_per_token", "J/tok", "lower", "energy of all GPUs over the window / output tokens", 0.05),
        Metric("gpu_utilization", "1", None, "mean of utilization.gpu over GPUs and window"),
        Metric("gpu_memory_free_min", "MiB", "higher", "least free memory of any GPU in the window"),
        Metric("boot_time", "s", "lower", "spawn to ready", 0.20),
    ]
    return {metric.name: metric for metric in metrics}


REGISTRY: Mapping[str, Metric] = MappingProxyType(_build())
