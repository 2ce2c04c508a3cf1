"""Power and energy: by hand, on what an H200 really reported, and every reason not to believe it."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pytest_sglang_perf.metrics import REGISTRY, Absent, from_gpu, gpu_report, read_gpu_samples

DATA = Path(__file__).parents[2] / "data" / "h200"
S = 1_000_000_000
WINDOW = {"start_ns": 2 * S, "end_ns": 6 * S}


def sample(at_s, power, *, index=0, throttle="0x0000000000000000", **more):
    return {
        "mono_ns": str(int(at_s * S)),
        "index": str(index),
        "power_w": "" if power is None else str(power),
        "power_instant_w": "",
        "utilization_pct": "50",
        "memory_used_mib": "1000",
        "memory_total_mib": "1500",
        "power_limit_w": "700",
        "temperature_c": "60",
        "clock_sm_mhz": "1980",
        "throttle_hex": throttle,
    } | more


def constant(power, *, index=0, **more):
    return [sample(at, power, index=index, **more) for at in range(9)]


def test_the_ends_of_the_window_are_interpolated():
    ramp = [sample(at, 100 * at) for at in (0, 1, 2.5, 4, 5.5, 7)]  # a straight line, never read at 2 s or 6 s
    values = from_gpu(ramp, WINDOW, 800)
    assert values["power_draw"] == pytest.approx(400)
    assert values["energy_per_token"] == pytest.approx(1600 / 800)
    assert values["power_fraction"] == pytest.approx(400 / 700)


def test_gpus_add_up():
    values = from_gpu(constant(300) + constant(100, index=1), WINDOW, 100)
    assert values["power_draw"] == 400
    assert values["power_draw_per_gpu"] == 200
    assert values["power_fraction"] == pytest.approx(400 / 1400)
    assert values["energy_per_token"] == 16
    assert values["power_imbalance"] == 1  # (300 - 100) / 200
    assert values["gpu_utilization"] == 0.5
    assert values["gpu_memory_free_min"] == 500


def test_one_gpu_has_no_imbalance():
    imbalance = from_gpu(constant(300), WINDOW, 100)["power_imbalance"]
    assert isinstance(imbalance, Absent)
    assert "one GPU" in imbalance.reason


def test_only_the_leased_gpus_count():
    assert from_gpu(constant(300) + constant(100, index=1), WINDOW, 100, gpus=[1])["power_draw"] == 100


def test_scaled_time_scales_energy_and_not_power():
    values = from_gpu(constant(300), WINDOW, 100, time_scale=10)
    assert values["power_draw"] == 300
    assert values["energy_per_token"] == 120


@pytest.mark.parametrize(
    ("samples", "options", "reason"),
    [
        (constant(300), {"gpus": [0, 1]}, "GPU 1 is missing"),
        ([s for s in constant(300) if not 3 * S <= int(s["mono_ns"]) <= 5 * S], {}, "no reading for 4.0 s"),
        (constant(300)[3:], {}, "do not reach around the window"),
        (constant(300)[:6], {}, "do not reach around the window"),
        (constant(None), {}, "reports no power"),
        (constant(300, throttle="0x0000000000000008"), {}, "hardware slowdown"),
        (constant(300, throttle="0x0000000000000024"), {}, "thermal slowdown by the driver"),
        (constant(300, throttle="0x0000000000000040"), {}, "thermal slowdown by the hardware"),
        (constant(300, throttle="0x0000000000000080"), {}, "power brake"),
        (constant(300), {"foreign": ["pid 7 (python, root) on GPU 0"]}, "pid 7"),
    ],
)
def test_reasons_not_to_believe_power(samples, options, reason):
    report = gpu_report(samples, WINDOW, 100, **options)
    assert any(reason in text for text in report.invalid)
    for name in ("power_draw", "power_draw_per_gpu", "power_fraction", "energy_per_token"):
        value = report.values[name]
        assert isinstance(value, Absent)
        assert reason in value.reason


def test_somebody_else_on_a_gpu_speaks_against_every_figure_also_where_there_is_no_reading():
    nothing: list[dict[str, str]] = []
    for samples in (constant(300), nothing):
        assert gpu_report(samples, WINDOW, 100, foreign=["pid 7 (python, root) on GPU 0"]).slowed == (
            "somebody else computed there: pid 7 (python, root) on GPU 0",
        )


@pytest.mark.parametrize("bits", ["0x0000000000000000", "0x0000000000000001", "0x0000000000000004", ""])
def test_idle_and_the_software_power_cap_are_no_faults(bits):
    report = gpu_report(constant(300, throttle=bits), WINDOW, 100)
    assert not report.invalid
    assert report.values["power_draw"] == 300


def test_a_fault_outside_the_window_is_not_held_against_it():
    samples = constant(300)
    samples[0]["throttle_hex"] = samples[8]["throttle_hex"] = "0x0000000000000040"
    assert not gpu_report(samples, WINDOW, 100).invalid


def test_a_gap_outside_the_window_is_not_held_against_it():
    assert not gpu_report([sample(-9, 300), *constant(300), sample(20, 300)], WINDOW, 100).invalid


def test_no_reading_at_all():
    for value in from_gpu([], WINDOW, 100).values():
        assert isinstance(value, Absent)


def test_what_the_driver_does_not_say_is_absent_alone():
    rows = constant(300, utilization_pct="", memory_total_mib="", power_limit_w="")
    values = from_gpu(rows, WINDOW, None)
    assert values["power_draw"] == 300
    for name in ("gpu_utilization", "gpu_memory_free_min", "power_fraction", "energy_per_token"):
        assert isinstance(values[name], Absent)


def recorded():
    """The H200's readings in our own columns; node time starts at the first."""
    rows: list[str] = []
    zero: float = 0.0
    with gzip.open(DATA / "nvidia-smi_100ms.csv.gz", "rt") as lines:
        for line in lines:
            stamp, index, draw, instant, utilization, _, used, temperature, clock, reasons = line.strip().split(", ")
            at = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
            zero = zero or at
            values = [str(round((at - zero) * 1e9)), index, draw, instant, utilization, used, "143771", "700"]
            rows.append(",".join([*values, temperature, clock, reasons]))
    return rows, zero


def test_on_what_an_h200_reported(tmp_path):
    rows, zero = recorded()
    file = tmp_path / "gpu.csv"
    file.write_text("\n".join(rows) + "\n")
    samples = read_gpu_samples(file)
    assert len(samples) == 6069
    at = np.array([int(s["mono_ns"]) / 1e9 for s in samples])
    watts = np.array([float(s["power_w"]) for s in samples])
    trials = [json.loads(line) for line in (DATA / "trials.jsonl").read_text().splitlines()]
    shares = []
    for trial in trials:
        start, end = trial["start"] - zero, trial["end"] - zero
        window = {"start_ns": round(start * 1e9), "end_ns": round(end * 1e9)}
        report = gpu_report(samples, window, trial["out_tok"])
        assert not report.invalid
        inside = (at > start) & (at < end)
        grid = np.concatenate(([start], at[inside], [end]))
        energy = np.trapezoid(np.interp(grid, at, watts), grid)
        assert report.values["power_draw"] == pytest.approx(energy / (end - start), rel=1e-6)
        assert report.values["energy_per_token"] == pytest.approx(energy / trial["out_tok"], rel=1e-6)
        draw = report.values["power_draw"]
        assert isinstance(draw, float)
        shares.append((trial["label"], trial["c"], draw, report.facts["power_cap_share"]))
    loaded = [draw for label, c, draw, _ in shares if label == "default" and c == 256]
    host_bound = [draw for label, c, draw, _ in shares if label == "nocudagraph" and c == 1]
    assert 490 < min(loaded) < max(loaded) < 640  # as recorded: 500 W at 9.3k tok/s, 634 W at 13.5k tok/s
    assert 180 < min(host_bound) < max(host_bound) < 210
    assert max(share for *_, share in shares) > 0.5  # at its power cap for most of the time, and valid


def test_the_registry_has_a_direction_for_energy_and_none_for_power():
    assert REGISTRY["energy_per_token"].better == "lower"
    assert REGISTRY["power_draw"].better is None
