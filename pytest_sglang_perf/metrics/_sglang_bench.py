"""Metrics from the line that ``sglang.benchmark.serving`` writes, under our names.

Latencies come from its details and follow our formulas and our rule for percentiles. Rates are the tool's own: its
duration runs from the first request to the last answer and one more question to the server, ramp and drain included, so
they lie below those of a steady window by about the share that these have in the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.agent.load._sglang_bench import records

from ._ingest import Window
from ._requests import from_records
from ._value import Absent, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["from_sglang_bench"]

_ALL = Window(-1, 1 << 62)
_NO_CLOCK = Absent("sglang's benchmark records no time that is common to all requests")


def from_sglang_bench(line: Mapping[str, Any], *, time_scale: float = 1.0) -> dict[str, Value]:
    """The metrics of one run of the tool, from its last JSON line with ``--output-details``.

    Args:
        line: the ``tool`` of a result, or a line of the tool's output file.
        time_scale: simulated seconds in a real one.
    """
    values = from_records(records(dict(line)), _ALL, time_scale=time_scale)
    values["output_throughput"] = line["output_throughput"] / time_scale
    values["request_throughput"] = line["request_throughput"] / time_scale
    values["input_throughput"] = line["input_throughput"] / time_scale
    values["concurrency"] = float(line["concurrency"])
    for name in values:
        if name.startswith("ttft_scheduled"):
            values[name] = _NO_CLOCK
    return values
