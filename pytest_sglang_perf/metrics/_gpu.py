"""Power, energy and memory of the GPUs over the steady window, and whether the readings may be believed.

Energy is integrated GPU by GPU with the trapezoid rule over the readings, the window's two ends interpolated between
the readings around them. ``power.draw`` is the driver's average over the last second: it trails a step by half a
second, which is why the window lies inside the load and not around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ._ingest import GpuSample, Window, ingest_gpu, seconds
from ._value import Absent, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["GpuReport", "from_gpu", "gpu_report"]

MAX_GAP_S = 3.0

# Clock event reasons of NVML (nvml.h, nvmlClocksEventReason*). Being idle, at the application's clocks, at the power
# cap or in step with a sync boost group is how a GPU normally runs; these four mean that it could not run as it should.
FAULTS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
SW_POWER_CAP = 0x04


@dataclass(frozen=True)
class GpuReport:
    """What the readings say.

    Attributes:
        values: the GPU metrics; power and energy are absent with the reason if the readings are invalid.
        slowed: which GPUs could not run as they should in the window, and why (thermal slowdown, power brake, another
            process on them). It speaks against every figure of the trial, not only against power.
        invalid: why power and energy cannot be believed; empty if they can.
        facts: what is worth knowing and no fault: share of readings at the power cap, highest temperature.
    """

    values: dict[str, Value]
    invalid: tuple[str, ...] = ()
    slowed: tuple[str, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)


def from_gpu(
    samples: Iterable[Mapping[str, Any]],
    window: Window | Mapping[str, int],
    tokens: float | None,
    *,
    time_scale: float = 1.0,
    gpus: Sequence[int] | None = None,
    foreign: Sequence[str] = (),
) -> dict[str, Value]:
    """The GPU metrics of one trial: ``gpu_report(…).values``."""
    return gpu_report(samples, window, tokens, time_scale=time_scale, gpus=gpus, foreign=foreign).values


def gpu_report(
    samples: Iterable[Mapping[str, Any]],
    window: Window | Mapping[str, int],
    tokens: float | None,
    *,
    time_scale: float = 1.0,
    gpus: Sequence[int] | None = None,
    foreign: Sequence[str] = (),
) -> GpuReport:
    """Judge and integrate the readings of one trial.

    Args:
        samples: rows of the samples file (``read_gpu_samples``).
        window: the steady window.
        tokens: output tokens that arrived in the window (``output_throughput`` times its length), None if unknown.
        time_scale: simulated seconds in a real one. Power is in (simulated) watts as read; only time is scaled.
            The gap rule is about the sampler, which lives in real time.
        gpus: indices that must be there; None: those that were seen at all.
        foreign: processes of others that used one of these GPUs meanwhile, described for the user.
    """
    span = Window.of(window)
    by_gpu: dict[int, list[GpuSample]] = {}
    for sample in ingest_gpu(samples):
        if gpus is None or sample.index in gpus:
            by_gpu.setdefault(sample.index, []).append(sample)
    if not by_gpu:
        return _nothing("no GPU reading: nvidia-smi gave none, or was not asked", _shared(foreign))
    invalid = [f"GPU {index} is missing from the readings" for index in gpus or () if index not in by_gpu]
    invalid += _shared(foreign)
    energies_j: list[float] = []
    limit_w = 0.0
    for index, rows in sorted(by_gpu.items()):
        invalid += [f"GPU {index}: {problem}" for problem in _problems(rows, span)]
        energies_j.append(seconds(_integral(rows, span), time_scale))
        limit_w += next((row.power_limit_w for row in rows if row.power_limit_w), 0.0)
    inside = [row for rows in by_gpu.values() for row in rows if row.mono_ns in span]
    values = _power(energies_j, seconds(span.end_ns - span.start_ns, time_scale), limit_w, tokens)
    if invalid:
        reason = "; ".join(invalid)
        values = {name: Absent(f"the power readings are not valid: {reason}") for name in values}
    slowed = [f"GPU {index}: {text}" for index, rows in sorted(by_gpu.items()) for text in _faults(rows, span)]
    return GpuReport(values | _state(inside), tuple(invalid), (*_shared(foreign), *slowed), _facts(inside))


_POWER = ("power_draw", "power_draw_per_gpu", "power_fraction", "power_imbalance", "energy_per_token")
_STATE = ("gpu_utilization", "gpu_memory_free_min")


def _shared(foreign: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"somebody else computed there: {text}" for text in foreign)


def _nothing(reason: str, slowed: tuple[str, ...]) -> GpuReport:
    return GpuReport(dict.fromkeys(_POWER + _STATE, Absent(reason)), slowed=slowed)


def _power(energies_j: list[float], length_s: float, limit_w: float, tokens: float | None) -> dict[str, Value]:
    energy_j = sum(energies_j)
    draw, mean_j = energy_j / length_s, energy_j / len(energies_j)
    one = len(energies_j) == 1
    return {
        "power_draw": draw,
        "power_draw_per_gpu": draw / len(energies_j),
        "power_fraction": draw / limit_w if limit_w else Absent("the driver reports no power limit"),
        "power_imbalance": Absent("there is one GPU, so none to differ from it")
        if one
        else (max(energies_j) - min(energies_j)) / mean_j,
        "energy_per_token": energy_j / tokens if tokens else Absent("no output tokens are known for the window"),
    }


def _state(inside: list[GpuSample]) -> dict[str, Value]:
    utilization = [row.utilization_pct for row in inside if row.utilization_pct is not None]
    free = [
        row.memory_total_mib - row.memory_used_mib
        for row in inside
        if row.memory_total_mib is not None and row.memory_used_mib is not None
    ]
    return {
        "gpu_utilization": sum(utilization) / len(utilization) / 100
        if utilization
        else Absent("no reading of utilization in the window"),
        "gpu_memory_free_min": min(free) if free else Absent("no reading of memory in the window"),
    }


def _facts(inside: list[GpuSample]) -> dict[str, float]:
    facts = {}
    reasons = [row.throttle for row in inside if row.throttle is not None]
    if reasons:
        facts["power_cap_share"] = sum(1 for bits in reasons if bits & SW_POWER_CAP) / len(reasons)
    temperatures = [row.temperature_c for row in inside if row.temperature_c is not None]
    if temperatures:
        facts["temperature_max_c"] = max(temperatures)
    return facts


def _problems(rows: list[GpuSample], span: Window) -> list[str]:
    """Why the readings of one GPU do not carry an integral over the window."""
    known = [row for row in rows if row.power_w is not None]
    if not known:
        return ["the driver reports no power"]
    problems = []
    if known[0].mono_ns > span.start_ns or known[-1].mono_ns < span.end_ns:
        problems.append("the readings do not reach around the window")
    around = [row.mono_ns for row in known]
    gaps = [later - earlier for earlier, later in pairwise(around) if later > span.start_ns and earlier < span.end_ns]
    if gaps and max(gaps) > MAX_GAP_S * 1e9:
        problems.append(f"no reading for {max(gaps) / 1e9:.1f} s")
    problems += _faults(rows, span)
    return problems


def _faults(rows: list[GpuSample], span: Window) -> list[str]:
    bits = 0
    for row in rows:
        if row.mono_ns in span:
            bits |= row.throttle or 0
    return [text for bit, text in FAULTS.items() if bits & bit]


def _integral(rows: list[GpuSample], span: Window) -> float:
    """Watt-nanoseconds over the window; readings without power are passed over."""
    known = [(row.mono_ns, row.power_w) for row in rows if row.power_w is not None]
    total = 0.0
    for (t0, p0), (t1, p1) in pairwise(known):
        low, high = max(t0, span.start_ns), min(t1, span.end_ns)
        if high <= low:
            continue
        slope = (p1 - p0) / (t1 - t0)
        total += (p0 + slope * (low - t0) + p0 + slope * (high - t0)) / 2 * (high - low)
    return total
