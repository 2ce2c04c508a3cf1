from __future__ import annotations

import json

import pytest

from pytest_sglang_perf.server.facts import BootFacts

from .recorded import RECORDED, lines_of


def facts_of(name: str) -> BootFacts:
    facts = BootFacts()
    for _, text in lines_of(name):
        facts.feed(text)
    return facts


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_facts_are_builtin_types(case) -> None:
    facts = facts_of(case.name)
    assert json.loads(json.dumps(facts)) == facts


def test_a_gpu_boot_with_graphs_under_load() -> None:
    facts = facts_of("cuda_0.5.16_healthy_under_load.log.gz")
    assert facts["max_total_num_tokens"] == 572948
    assert facts["max_running_requests"] == 4096
    assert facts["context_len"] == 8192
    assert facts["available_gpu_mem_gb"] == 53.81
    assert facts["kv_cache"] == {"tokens": 572948, "dtype": "torch.bfloat16", "k_gb": 34.97, "v_gb": 34.97}
    assert facts["weights"]["type"] == "LlamaForCausalLM"
    assert facts["weights"]["used_gb"] == 13.51
    assert facts["cuda_graphs"]["target decode"] == {
        "backend": "full",
        "elapsed_s": 5.55,
        "used_gb": 0.18,
        "avail_gb": 53.81,
    }
    assert facts["decode_batches"] > 400
    assert facts["decode_without_graph"] == 0
    assert facts["disabled"] == []


def test_graphs_switched_off_show_in_every_batch_and_in_words() -> None:
    facts = facts_of("cuda_0.5.16_no_cuda_graph.log.gz")
    assert facts["decode_without_graph"] == facts["decode_batches"] == 191
    assert facts["cuda_graphs"] == {}
    assert any(text.startswith("Disable prefill CUDA graph because") for text in facts["disabled"])
    assert any("--disable-cuda-graph" in text for text in facts["changed"])


def test_each_data_parallel_rank_tells_its_capacity() -> None:
    facts = facts_of("cpu_0.5.23_dp_rank_sigkill.stderr.log")
    assert set(facts["capacity"]) == {"DP0", "DP1"}
    assert facts["capacity"]["DP1"]["available_cpu_mem_gb"] == 17.61
    assert facts["startup_s"]["scheduler_e2e"] == 6.12
    assert facts["startup_s"]["cuda_graph.decode"] == 0.0
    assert "Cuda graph is disabled because of using torch native attention backend" in facts["disabled"]


@pytest.mark.parametrize(
    ("text", "retractions"),
    [
        ("KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 9", 3),
        ("KV cache pool is full. Retract requests. #retracted-req: 2", 2),
        ("KV cache pool is full. Retract requests. ", 1),
    ],
)
def test_retractions_are_counted(text: str, retractions: int) -> None:
    facts = BootFacts()
    facts.feed("[2026-02-12 11:38:29 TP0] " + text)
    assert facts["retractions"] == retractions


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("PyMscclpp is disabled due to an unsupported world size", "disabled"),
        ("Breakable CUDA graph is incompatible with DP attention; disabling prefill CUDA graph.", "disabled"),
        ("Mixed chunked prefill is disabled because of using EAGLE", "disabled"),
        ("Max running requests is reset to 48 for speculative decoding.", "changed"),
        ("--disable-priority-preemption has no effect without --enable-priority-scheduling", "changed"),
        ("Attention backend not specified. Use flashinfer backend by default.", "backends"),
        ("Use dsa attention backend for DeepSeek with DSA.", "backends"),
    ],
)
def test_what_sglang_decided_by_itself(text: str, key: str) -> None:
    facts = BootFacts()
    for rank in range(8):  # all of them say it
        facts.feed(f"[2026-02-12 11:38:29 TP{rank}] {text}")
    assert facts[key] == [text]


def test_nccl_version() -> None:
    facts = BootFacts()
    facts.feed("[2026-02-12 11:38:29 TP0] sglang is using nccl==2.30.7")
    assert facts["nccl"] == "2.30.7"
