"""Tensor parallel over the GPUs of one host: how the ranks talk, and whether the flags of the campaign matter here."""

from __future__ import annotations

import pytest

LEVELS = [1, 64]
pytestmark = pytest.mark.sglang(workload="rounds")


@pytest.mark.sglang(server="tp")
def test_tensor_parallel_boots_and_every_rank_is_watched(sglang_server):
    watched = {child.partition("::")[2] for child in sglang_server.children}
    ranks = int(sglang_server.server_info()["tp_size"])
    assert {f"scheduler_TP{rank}" for rank in range(ranks)} <= watched


@pytest.mark.sglang(server="tp")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_the_ranks_draw_the_same_power(sglang_perf, concurrency):
    """A rank that waits for another draws less; in one host they should stay within a tenth of each other."""
    assert sglang_perf.measure(concurrency).power_imbalance <= 0.10


@pytest.mark.sglang(server="tp-sbo", control="tp", plan="paired", boots=(2, 3))
@pytest.mark.parametrize("concurrency", LEVELS)
def test_single_batch_overlap_does_nothing_for_a_dense_model(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput.equals(now.control.output_throughput, within=0.10)


@pytest.mark.sglang(server="tp-nccl", control="tp", plan="paired", boots=(2, 3))
@pytest.mark.sglang(expect="refuted", reason="the custom all-reduce exists because NCCL is slower on small messages")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_the_custom_all_reduce_can_be_spared(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.95 * now.control.output_throughput


@pytest.mark.sglang(server="tp-ring", control="tp-nccl")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_ring_is_what_nccl_chooses_itself(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput.equals(now.control.output_throughput, within=0.10)


@pytest.mark.sglang(server="tp-tree", control="tp-nccl")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_tree_with_wide_channels_does_no_harm(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.90 * now.control.output_throughput


@pytest.mark.sglang(server="tp-mscclpp", control="tp")
@pytest.mark.parametrize("concurrency", LEVELS)
def test_mscclpp_does_no_harm(sglang_perf, concurrency):
    now = sglang_perf.measure(concurrency)
    assert now.output_throughput >= 0.90 * now.control.output_throughput
