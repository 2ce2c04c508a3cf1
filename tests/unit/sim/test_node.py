"""What a node is told and is like: settings, profiles, faults, effects, noise, GPU readings."""

from __future__ import annotations

import math
import os
import statistics
from importlib import resources

import pytest

from pytest_sglang_perf.sim.boot import PHASES
from pytest_sglang_perf.sim.clock import SimClock
from pytest_sglang_perf.sim.crashes import KINDS, PHASE_OF, describe
from pytest_sglang_perf.sim.faults import parse_faults
from pytest_sglang_perf.sim.flags import parse_flags
from pytest_sglang_perf.sim.gpus import GpuFile, PowerMeter, Reading, read_servers
from pytest_sglang_perf.sim.noise import SpeedNoise, boot_seed
from pytest_sglang_perf.sim.performance import resolve
from pytest_sglang_perf.sim.profiles import Curve, load_profile
from pytest_sglang_perf.sim.settings import VERSIONS, read_settings

PROFILES = ["rtx-pro-6000-x8", "tiny"]


# -- settings


def test_settings_have_defaults():
    settings = read_settings({})
    assert settings.profile == "rtx-pro-6000-x8"
    assert settings.noise == 1.0
    assert settings.state.is_absolute()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_SIM_TIME_SCALE", "0"),
        ("SGLANG_SIM_TIME_SCALE", "fast"),
        ("SGLANG_SIM_TIME_SCALE", "inf"),
        ("SGLANG_SIM_NOISE", "-1"),
        ("SGLANG_SIM_NOISE", "nan"),
        ("SGLANG_SIM_VERSION", "0.4"),
        ("SGLANG_SIM_CACHE", "lukewarm"),
    ],
)
def test_a_setting_without_meaning_is_named(name, value):
    with pytest.raises(SystemExit, match=f"{name}={value}: expected"):
        read_settings({name: value})


# -- profiles


@pytest.mark.parametrize("name", PROFILES)
def test_every_effect_of_a_profile_names_real_fields_and_crashes(name):
    profile = load_profile(name)
    fields = parse_flags(["--model-path", "m"], profile.version).fields
    for effect in profile.effects:
        assert effect.why
        assert set(effect.when) <= set(fields), effect.name
        assert effect.crash is None or effect.crash in PHASE_OF
        assert effect.dies is None or effect.dies in KINDS
    assert set(PHASE_OF.values()) <= set(PHASES)
    assert profile.version in VERSIONS


def test_an_unknown_profile_lists_those_there_are():
    with pytest.raises(SystemExit, match="rtx-pro-6000-x8, tiny"):
        load_profile("h100")


def test_a_profile_can_be_a_file_and_its_mistakes_are_named(tmp_path):
    text = (resources.files("pytest_sglang_perf.sim") / "profiles" / "tiny.toml").read_text()
    good = tmp_path / "mine.toml"
    good.write_text(text)
    assert load_profile(str(good)).name == "mine"
    good.write_text(text.replace("driver =", "drivr ="))
    with pytest.raises(ValueError, match="Gpu in a profile: unknown drivr"):
        load_profile(str(good))


def test_a_curve_is_straight_between_its_points_and_flat_before():
    curve = Curve([[1, 10.0], [3, 20.0], [5, 80.0]])
    assert [curve(x) for x in (0, 1, 2, 3, 4, 6)] == [10, 10, 15, 20, 50, 110]
    with pytest.raises(ValueError, match="rising"):
        Curve([[2, 1.0], [1, 1.0]])


def test_the_warm_boot_of_the_campaign_takes_45_seconds():
    boot = load_profile("rtx-pro-6000-x8").boot
    parts = (boot.imports_s, boot.distributed_s, boot.weights_s, boot.kv_s, boot.autotune_s, boot.http_s)
    assert sum(parts) + boot.warmup_s == pytest.approx(45, abs=0.5)
    assert 180 <= 45 + boot.cold_s <= 300


# -- faults


def test_faults_are_read():
    faults = parse_faults("crash:weights, oom_under_load:64,error_after_200,garbage", PHASES)
    assert (faults.crash, faults.oom_under_load, faults.error_after_200) == ("weights", 64, 1)
    assert faults.garbage
    assert not faults.nan
    assert parse_faults("", PHASES) == parse_faults(" , ", PHASES)


@pytest.mark.parametrize("text", ["crash", "crash:lunch", "oom_under_load", "frozen:x", "garbage:1", "meteor"])
def test_a_fault_without_meaning_is_named(text):
    with pytest.raises(SystemExit, match="SGLANG_SIM_FAIL="):
        parse_faults(text, PHASES)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_crash_ends_with_its_exception(kind):
    text = describe(kind, rank=3)
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert "Error" in text or "Unsupported" in text


# -- effects


def args(*flags):
    return parse_flags(["--model-path", "m", *flags], "0.5.10")


def test_effects_multiply_and_the_worst_fate_counts():
    profile = load_profile("rtx-pro-6000-x8")
    both = resolve(profile, args("--enable-mscclpp", "--ep-size", "8", "--enable-single-batch-overlap"), {})
    assert both.speed == pytest.approx(1.02)
    assert both.dies_at == 200
    assert both.free_gb < profile.model.free_gb
    assert both.applied == ("mscclpp", "single-batch overlap", "expert parallelism 8")
    tree = resolve(profile, args(), {"NCCL_ALGO": "Tree"})
    assert tree.applied == ("NCCL tree",)
    assert resolve(profile, args(), {"NCCL_ALGO": "Ring"}).applied == ()
    assert resolve(profile, args("--enforce-piecewise-cuda-graph"), {}).crash == "piecewise_fullgraph"


def test_power_goes_with_speed_and_never_above_the_limit():
    profile = load_profile("rtx-pro-6000-x8")
    performance = resolve(profile, args(), {})
    assert performance.watts(0, 1.0) == profile.gpu.loaded_idle_w
    assert performance.watts(256, 1.05) > performance.watts(256, 1.0) > performance.watts(256, 0.95)
    assert performance.watts(4096, 50.0) == profile.gpu.power_limit_w


# -- noise


def test_boots_of_one_seed_differ_and_repeat(tmp_path):
    config = {"argv": ["--tp", "8"]}
    first = [boot_seed("7", tmp_path / "a", config) for _ in range(5)]
    again = [boot_seed("7", tmp_path / "b", config) for _ in range(5)]
    assert first == again
    assert len(set(first)) == 5
    assert boot_seed("8", tmp_path / "c", config) not in first
    assert boot_seed("7", tmp_path / "d", {"argv": []}) not in first
    assert boot_seed(None, tmp_path, config) != boot_seed(None, tmp_path, config)


def trial_means(noise, level, seconds, boots=300):
    means = []
    for seed in range(boots):
        speed = SpeedNoise(noise, seed)
        steps = [math.log(speed.factor(second, level)) for second in range(seconds)]
        means.append(statistics.fmean(steps))
    return statistics.stdev(means)


@pytest.mark.parametrize(("level", "seconds"), [(1, 95), (10, 95), (256, 95), (1024, 172)])
def test_a_trials_mean_moves_by_what_the_profile_says(level, seconds):
    noise = load_profile("rtx-pro-6000-x8").noise
    expected = math.hypot(noise.boot, noise.trial(level))
    assert trial_means(noise, level, seconds) == pytest.approx(expected, rel=0.15)


def test_noise_can_be_switched_off():
    noise = load_profile("tiny").noise
    quiet = SpeedNoise(noise, 1, strength=0.0)
    assert [quiet.factor(t, 8) for t in range(5)] == [1.0] * 5


def test_the_same_seed_gives_the_same_noise():
    noise = load_profile("tiny").noise
    one, other = SpeedNoise(noise, 3), SpeedNoise(noise, 3)
    assert [one.factor(t, 8) for t in range(50)] == [other.factor(t, 8) for t in range(50)]


# -- GPU readings


def test_the_meter_integrates_between_readings():
    clock = SimClock(1000.0)
    performance = resolve(load_profile("tiny"), args(), {})
    meter = PowerMeter(clock, performance)
    meter.read()
    start = clock.now()
    meter.work(start, 8, 1.0)
    meter.work(start + 1.0, 0, 1.0)
    while clock.now() < start + 2.0:
        pass
    reading = meter.read()
    assert performance.watts(0, 1.0) < reading.power_w < performance.watts(8, 1.0)
    assert reading.power_instant_w == performance.watts(0, 1.0)
    assert 0 < reading.utilization_pct < 97


def test_a_state_file_is_read_back_and_those_of_dead_servers_are_removed(tmp_path):
    file = GpuFile(tmp_path, [2, 3])
    file.pids, file.titles = [11, 12], ["sglang::scheduler_TP0", "sglang::scheduler_TP1"]
    reading = Reading(100.0, 101.0, 50.0, 1000.0)
    file.write(Reading(1.0, 1.0, 1.0, 1.0))
    file.write(reading)
    (state,) = read_servers(tmp_path)
    assert (state.pid, state.gpus, state.pids, state.reading) == (os.getpid(), [2, 3], [11, 12], reading)

    own = tmp_path / f"gpus-{os.getpid()}.json"
    dead = own.read_bytes().replace(f'"started": {state.started}'.encode(), b'"started": 1')
    (tmp_path / "gpus-1.json").write_bytes(dead)
    assert len(read_servers(tmp_path)) == 1
    assert not (tmp_path / "gpus-1.json").exists()
    file.remove()
    assert read_servers(tmp_path) == []
    assert read_servers(tmp_path / "nowhere") == []
