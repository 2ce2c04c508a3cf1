"""From raw records to metrics: every figure named by its formula.

``from_records`` and ``from_gpu`` are pure functions of what a trial left behind. A metric that cannot be had is an
:class:`Absent` with the reason, never a zero and never missing.
"""

from __future__ import annotations

from ._gpu import GpuReport, from_gpu, gpu_report
from ._ingest import Window, read_gpu_samples, read_records
from ._quantiles import SAMPLES_NEEDED, percentile
from ._registry import REGISTRY, Metric
from ._requests import from_records, from_trials, steady_requests
from ._sglang_bench import from_sglang_bench
from ._value import Absent, Value

__all__ = [
    "REGISTRY",
    "SAMPLES_NEEDED",
    "Absent",
    "GpuReport",
    "Metric",
    "Value",
    "Window",
    "from_gpu",
    "from_records",
    "from_sglang_bench",
    "from_trials",
    "gpu_report",
    "percentile",
    "read_gpu_samples",
    "read_records",
    "steady_requests",
]
