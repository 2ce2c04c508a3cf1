"""Tier 1.3: overlap hides communication: `--enable-single-batch-overlap` on top of `--enable-mscclpp`.

Refuted: same figures as without it.
"""

from __future__ import annotations

import pytest


@pytest.mark.sglang(server="sbo")
@pytest.mark.parametrize("concurrency", [1, 10, 256, 1024])
def test_sbo_keeps_its_figures(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.95 * now.baseline.output_throughput
    assert now.ttft_p50 <= 1.25 * now.baseline.ttft_p50
    assert now.energy_per_token <= 1.05 * now.baseline.energy_per_token


@pytest.mark.sglang(server="sbo", control="mscclpp", concurrency=1024)
@pytest.mark.sglang(expect="refuted", reason="2026-02-19: no effect")
def test_sbo_pays(sglang_perf):
    now = sglang_perf.measure()
    assert now.output_throughput >= 1.05 * now.control.output_throughput
