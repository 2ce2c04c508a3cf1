"""What one real GPU can show: an A/A pair, a large loss, a cap, a dead flag and a crash."""

from __future__ import annotations

import pytest

LEVELS = [1, 16, 64, 256]


@pytest.mark.sglang(server="default")
def test_a_first_boot_warms_the_caches(sglang_server):
    """Kernels are compiled by whoever boots first; run this before anything that is measured."""
    assert sglang_server.facts["max_running_requests"] >= 256


@pytest.mark.sglang(server="default")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_default_keeps_its_figures(sglang_perf, concurrency):
    assert not sglang_perf.measure(concurrency).regressions()


@pytest.mark.sglang(server="default-again", control="default")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_an_unchanged_config_neither_gains_nor_loses(sglang_perf, concurrency):
    """A/A: the second boot of the same content. A verdict of "violated" either way would be a false alarm."""
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.90 * now.control.output_throughput
    assert now.output_throughput <= 1.10 * now.control.output_throughput


@pytest.mark.sglang(server="no-cuda-graph", control="default")
@pytest.mark.sglang(expect="refuted", reason="launches from the host are the bottleneck without graphs")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_cuda_graphs_can_be_spared(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.95 * now.control.output_throughput


@pytest.mark.sglang(server="no-cuda-graph", control="default", concurrency=64)
def test_without_cuda_graphs_the_gpu_waits_for_the_host(sglang_perf):
    """The diagnosis: fewer tokens at less power means that the GPU idles between launches."""
    now = sglang_perf.measure()
    assert now.power_draw <= 0.8 * now.control.power_draw


@pytest.mark.sglang(server="no-radix-cache", control="default")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_the_radix_cache_costs_nothing_without_shared_prefixes(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.90 * now.control.output_throughput


@pytest.mark.sglang(server="running-16", control="default", concurrency=256)
@pytest.mark.sglang(expect="refuted", reason="16 running requests cannot feed the GPU that 256 clients ask for")
def test_sixteen_running_requests_are_enough(sglang_perf):
    now = sglang_perf.measure()
    assert now.output_throughput >= 0.95 * now.control.output_throughput


@pytest.mark.sglang(server="decode-steps-16", control="default")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_continuous_decode_steps_have_no_effect(sglang_perf, concurrency):
    """The flag has no reader in this version: equivalence, or inconclusive with few boots, but never an effect."""
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput.equals(now.control.output_throughput, within=0.10)


@pytest.mark.sglang(server="kv-too-small")
@pytest.mark.sglang(expect="blocked", crash="kv-budget-too-small", reason="the weights alone need more than 5 %")
def test_a_tiny_memory_fraction_is_refused(sglang_server): ...
