"""The figures of ``/metrics``, in Prometheus' text format."""

from __future__ import annotations

import bisect

__all__ = ["Figures"]

_BUCKETS = [0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400]
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "e2e_request_latency_seconds": "Histogram of End-to-end request latency in seconds.",
}
_COUNTERS = {
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "generation_tokens_total": "Number of generation tokens processed.",
    "cached_tokens_total": "Number of cached prompt tokens.",
    "num_requests_total": "Number of requests processed.",
    "num_aborted_requests_total": "Number of requests aborted.",
    "num_retracted_requests_total": "Number of requests retracted.",
}
_GAUGES = {
    "num_running_reqs": "The number of running requests.",
    "num_queue_reqs": "The number of requests in the waiting queue.",
    "num_used_tokens": "The number of used tokens.",
    "token_usage": "The token usage.",
    "gen_throughput": "The generation throughput (token/s).",
    "max_total_num_tokens": "Maximum total number of tokens in the KV cache pool.",
    "cache_hit_rate": "The prefix cache hit rate.",
}


class Figures:
    """Counters and histograms since the start. Seconds are simulated."""

    def __init__(self, model: str) -> None:
        self._labels = f'{{model_name="{model}",engine_type="unified",tp_rank="0",pp_rank="0"}}'
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self._buckets = {name: [0] * (len(_BUCKETS) + 1) for name in _HISTOGRAMS}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)

    def observe(self, name: str, seconds: float) -> None:
        """Add one value to a histogram."""
        self._buckets[name][bisect.bisect_left(_BUCKETS, seconds)] += 1
        self._sums[name] += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Everything, with the gauges' values as they are now."""
        lines = []
        for name, told in _GAUGES.items():
            lines += [f"# HELP sglang:{name} {told}", f"# TYPE sglang:{name} gauge"]
            lines.append(f"sglang:{name}{self._labels} {float(gauges[name])}")
        for name, told in _COUNTERS.items():
            lines += [f"# HELP sglang:{name} {told}", f"# TYPE sglang:{name} counter"]
            lines.append(f"sglang:{name}{self._labels} {float(self.counters[name])}")
        for name, told in _HISTOGRAMS.items():
            lines += [f"# HELP sglang:{name} {told}", f"# TYPE sglang:{name} histogram"]
            total = 0
            for bound, count in zip([*map(str, _BUCKETS), "+Inf"], self._buckets[name], strict=True):
                total += count
                lines.append(f'sglang:{name}_bucket{{le="{bound}",{self._labels[1:]} {float(total)}')
            lines.append(f"sglang:{name}_sum{self._labels} {self._sums[name]}")
            lines.append(f"sglang:{name}_count{self._labels} {float(total)}")
        return "\n".join(lines) + "\n"
