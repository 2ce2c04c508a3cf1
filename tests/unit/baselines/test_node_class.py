from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.baselines import comparable, node_class


def gpu(index: int, **changes):
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA RTX PRO 6000 Blackwell",
        "memory_total_mib": 97887,
        "power_limit_w": 600.0,
        "driver": "580.95.05",
    } | changes


FACTS = {
    "cpu_model": "AMD EPYC 9575F 64-Core Processor",
    "cpus": 128,
    "memory_bytes": 1 << 40,
    "kernel": "6.8.0",
    "gpus": [gpu(i) for i in range(8)],
    "gpu_error": None,
}


@pytest.mark.parametrize(
    ("facts", "simulated", "slug"),
    [
        (FACTS, None, "8x-nvidia-rtx-pro-6000-blackwell-600w-driver580-amd-epyc-9575f"),
        (FACTS, "rtx-pro-6000-x8", "sim-rtx-pro-6000-x8"),
        ({"cpu_model": "AMD EPYC 7763 64-Core Processor", "cpus": 2, "gpus": []}, None, "cpu-amd-epyc-7763-2c"),
        (
            {"cpu_model": "Intel(R) Xeon(R) Platinum 8480+ @ 2.00GHz", "cpus": 4},
            None,
            "cpu-intel-xeon-platinum-8480+-4c",
        ),
        ({"cpu_model": None, "cpus": 1, "gpus": None}, None, "cpu-unknown-1c"),
        (
            {"cpu_model": "x", "gpus": [gpu(0, power_limit_w=None, driver=None)]},
            None,
            "1x-nvidia-rtx-pro-6000-blackwell-x",
        ),
        (
            {"cpu_model": "x", "gpus": [gpu(0), gpu(1, name="NVIDIA H200", power_limit_w=700.2)]},
            None,
            "1x-nvidia-h200-1x-nvidia-rtx-pro-6000-blackwell-600w-700w-driver580-x",
        ),
    ],
)
def test_slugs(facts: dict, simulated: str | None, slug: str) -> None:
    assert node_class(facts, simulated=simulated).slug == slug


def test_only_the_gpus_in_use_count() -> None:
    assert node_class(FACTS, gpus=[0, 1]).slug.startswith("2x-")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"gpus": [gpu(i) for i in range(4)]}, "GPUs: 8 x NVIDIA RTX PRO 6000 Blackwell here, 4 x"),
        ({"gpus": [gpu(i, power_limit_w=450.0) for i in range(8)]}, "power limit (W): 600 here, 450 there"),
        ({"gpus": [gpu(i, driver="590.1") for i in range(8)]}, "driver branch: 580 here, 590 there"),
        ({"cpu_model": "AMD EPYC 7763"}, "CPU model: AMD EPYC 9575F here, AMD EPYC 7763 there"),
    ],
)
def test_what_sets_classes_apart(change: dict, difference: str) -> None:
    one, other = node_class(FACTS), node_class(FACTS | change)
    assert one.slug != other.slug
    (line,) = comparable(one, other)
    assert line.startswith(difference)


def test_what_does_not() -> None:
    patched = [gpu(i, driver="580.99", uuid="other") for i in range(8)]
    one, other = node_class(FACTS), node_class(FACTS | {"gpus": patched, "kernel": "7", "memory_bytes": 1})
    assert one.slug == other.slug
    assert comparable(one, other) == []


def test_a_simulation_is_never_comparable_with_a_machine() -> None:
    assert comparable(node_class(FACTS, simulated="p"), node_class(FACTS))[0] == "simulated profile: p here, none there"


_GPU = st.fixed_dictionaries(
    {
        "index": st.integers(0, 9),
        "name": st.text(max_size=20),
        "power_limit_w": st.none() | st.floats(1, 2000),
        "driver": st.none() | st.text(max_size=8),
    }
)
_FACTS = st.fixed_dictionaries({"cpu_model": st.text(max_size=30), "cpus": st.integers(1, 999), "gpus": st.lists(_GPU)})


@given(_FACTS)
def test_any_slug_is_a_harmless_folder_name(facts: dict) -> None:
    slug = node_class(facts).slug
    assert re.fullmatch(r"[a-z0-9][a-z0-9+-]*", slug)
    assert len(slug) <= 120


@given(_FACTS, _FACTS)
def test_equal_details_mean_equal_slugs(one: dict, other: dict) -> None:
    left, right = node_class(one), node_class(other)
    if not comparable(left, right):
        assert left.slug == right.slug
