"""The profile ``rtx-pro-6000-x8`` against the figures that it says it reproduces, in virtual time."""

from __future__ import annotations

import pytest

from ._virtual import World, closed_loop

TIER = ("--disable-cuda-graph", "--disable-radix-cache", "--max-running-requests", "2048")
EARLY = ("--disable-radix-cache", "--max-running-requests")


@pytest.fixture(scope="module")
def base():
    return {level: closed_loop(World(*TIER), level) for level in (1, 10, 256, 1024)}


def test_the_tier_baseline(base):
    assert base[1024].tokens_per_s == pytest.approx(1520, rel=0.01)
    assert base[256].tokens_per_s == pytest.approx(700, rel=0.01)
    assert base[10].tokens_per_s == pytest.approx(89.7, rel=0.01)
    assert base[1].tokens_per_s == pytest.approx(10.45, rel=0.01)


def test_power_follows_the_level_between_250_and_330_watts(base):
    watts = [base[level].watts for level in (1, 10, 256, 1024)]
    assert watts == sorted(watts)
    assert watts[0] == pytest.approx(250, abs=3)
    assert watts[-1] == pytest.approx(330, abs=4)


def test_chunks_stay_within_the_profiles_rate(base):
    for level, result in base.items():
        assert result.chunks_per_s < 1.25 * World().profile.chunks_per_s, level


@pytest.mark.parametrize("level", [1, 10, 256, 1024])
def test_mscclpp_gains_two_percent_at_every_level(base, level):
    faster = closed_loop(World(*TIER, "--enable-mscclpp"), level)
    assert faster.tokens_per_s / base[level].tokens_per_s == pytest.approx(1.02, abs=0.008)


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (("--enable-single-batch-overlap",), {}),
        (("--num-continuous-decode-steps", "16"), {}),
        ((), {"NCCL_ALGO": "Tree", "NCCL_MIN_NCHANNELS": "16"}),
    ],
)
def test_what_has_no_effect_has_none(base, flags, env):
    same = closed_loop(World(*TIER, *flags, env=env), 256)
    assert same.tokens_per_s == pytest.approx(base[256].tokens_per_s, rel=1e-9)


def test_more_running_requests_are_a_large_gain():
    few = closed_loop(World(*EARLY, "64"), 1024, waves=1)
    many = closed_loop(World(*EARLY, "1024"), 1024)
    assert 2 * few.tokens_per_s == pytest.approx(880, rel=0.03)
    assert 2 * many.tokens_per_s == pytest.approx(3740, rel=0.02)
    assert few.ttft > 20 * many.ttft  # most of a request's time is spent in the queue


def test_the_working_configuration_at_512():
    result = closed_loop(World(*EARLY, "1024"), 512)
    assert 2 * result.tokens_per_s == pytest.approx(2800, rel=0.02)
    assert result.watts == pytest.approx(330, rel=0.02)


def test_allreduce_fusion_falls_to_an_eighth_at_125_watts():
    result = closed_loop(World(*EARLY, "1024", "--enable-flashinfer-allreduce-fusion"), 1024, waves=1)
    assert result.tokens_per_s == pytest.approx(236, rel=0.02)
    assert result.watts == pytest.approx(125, abs=1)


def test_expert_parallelism_dies_under_256_but_not_under_10():
    alive = World(*TIER, "--ep-size", "8")
    closed_loop(alive, 10, waves=4)
    assert alive.doomed_at is None
    doomed = World(*TIER, "--ep-size", "8")
    result = closed_loop(doomed, 256)
    assert doomed.doomed_at is not None
    assert not result.client.done


def test_a_late_client_gains_nothing_where_others_wait():
    world = World(*EARLY, "64")
    late = closed_loop(world, 256, waves=1, lag_s=0.05 * world.scale, honest=True)
    assert late.tokens_per_s == pytest.approx(440, rel=0.02)


@pytest.mark.parametrize("level", [256, 1024])
@pytest.mark.parametrize("lag_ms", [1, 5, 60])
def test_a_clients_real_turn_around_costs_next_to_nothing(base, level, lag_ms):
    world = World(*TIER)
    late = closed_loop(world, level, lag_s=lag_ms / 1000 * world.scale, honest=True)
    assert late.tokens_per_s == pytest.approx(base[level].tokens_per_s, rel=0.03)
    if lag_ms < 10:
        assert late.ttft == pytest.approx(base[level].ttft, rel=0.1)
