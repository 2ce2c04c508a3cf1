"""Fused allreduce removes the communication wait: kernel sources patched to admit SM120.

Refuted, spectacularly: 1,867 to 236 tok/s with the GPUs at 125 W. `cudaGridDependencySynchronize()` stalls on SM120.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sglang(server="allreduce-fusion", control="autotuned", concurrency=1024)


@pytest.mark.sglang(expect="refuted", reason="2026-02-17: collapses to an eighth of the throughput")
def test_allreduce_fusion_pays(sglang_perf):
    now = sglang_perf.measure()
    assert now.output_throughput >= 1.05 * now.control.output_throughput


def test_allreduce_fusion_stalls_the_gpus(sglang_perf):
    """What low power meant: the GPUs wait. Power has no better direction, so this is claimed, never gated."""
    now = sglang_perf.measure()
    assert now.power_draw <= 0.5 * now.control.power_draw
    assert now.energy_per_token >= 2.0 * now.control.energy_per_token
