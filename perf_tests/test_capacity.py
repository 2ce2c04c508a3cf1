"""More requests in flight fill the GPUs: `--max-running-requests` 64 to 1024 after the CUTLASS MoE autotune.

Holds: total throughput went from about 880 to 3,740 tok/s at 1,024 concurrent requests.
"""

from __future__ import annotations

import pytest


@pytest.mark.sglang(server="autotuned", control="autotuned-64", concurrency=1024)
def test_more_running_requests_pay(sglang_perf):
    now = sglang_perf.measure()
    assert now.output_throughput >= 3.0 * now.control.output_throughput
    assert now.energy_per_token <= 0.5 * now.control.energy_per_token
