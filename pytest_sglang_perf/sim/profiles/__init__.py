"""Profiles: what a simulated machine is like, as data.

A profile is a TOML file beside this module (or anywhere, given by its path). Times are simulated seconds,
power is watts per GPU, memory is MiB per GPU.
"""

from __future__ import annotations

import bisect
import math
import tomllib
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

__all__ = ["Boot", "Curve", "Effect", "Gpu", "Model", "Noise", "Profile", "load_profile"]


class Curve:
    """A figure that depends on the number of running requests: straight lines between known points."""

    def __init__(self, points: list[list[float]]) -> None:
        self._x = [float(x) for x, _ in points]
        self._y = [float(y) for _, y in points]
        if not self._x or sorted(set(self._x)) != self._x:
            raise ValueError(f"a curve needs points with rising first numbers, not {points}")

    def __call__(self, x: float) -> float:
        """The value at ``x``; flat before the first point, on along the last line after the last."""
        xs, ys = self._x, self._y
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        right = min(bisect.bisect_left(xs, x), len(xs) - 1)
        share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
        return ys[right - 1] + share * (ys[right] - ys[right - 1])


@dataclass(frozen=True)
class Gpu:
    """The GPUs of the machine, all alike."""

    name: str
    count: int
    memory_mib: int
    power_limit_w: float
    idle_w: float
    loaded_idle_w: float
    clock_idle_mhz: int
    clock_busy_mhz: int
    temperature_idle_c: float
    degrees_per_watt: float
    driver: str
    cuda: str
    compute_capability: str


@dataclass(frozen=True)
class Model:
    """The model that the machine was measured with."""

    architecture: str
    model_type: str
    shards: int
    weights_gb: float
    context_len: int
    vocab_size: int
    eos_token: int
    max_total_tokens: int
    kv_gb: float
    free_gb: float
    eos_mean_tokens: float


@dataclass(frozen=True)
class Boot:
    """Simulated seconds of each phase of a boot with warm caches; ``cold_s`` is added for JIT builds."""

    imports_s: float
    distributed_s: float
    weights_s: float
    kv_s: float
    autotune_s: float
    graphs_s: float
    http_s: float
    warmup_s: float
    cold_s: float


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the logarithm of speed.

    ``boot`` is drawn once a boot. ``trial`` gives, by running requests, what the mean over one trial shows;
    ``drift`` is how much wider the process behind it is, whose correlation time is ``correlation_s``.
    """

    boot: float
    trial: Curve
    drift: float
    correlation_s: float
    power: float


@dataclass(frozen=True)
class Effect:
    """What one flag (or environment variable) does on this machine.

    It applies when every field of ``when`` and variable of ``when_env`` has the value given. ``speed``
    multiplies the speed of every step. ``crash`` names a crash at boot, ``dies`` one under load as soon as
    ``dies_at`` requests run at once.
    """

    name: str
    why: str
    when: dict[str, Any] = field(default_factory=dict)
    when_env: dict[str, str] = field(default_factory=dict)
    speed: float = 1.0
    power_w: float | None = None
    free_gb: float | None = None
    crash: str | None = None
    dies: str | None = None
    dies_at: int | None = None


@dataclass(frozen=True)
class Profile:
    """One simulated machine."""

    name: str
    description: str
    version: str
    time_scale: float
    chunks_per_s: float
    max_running_requests: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    prefill_max_requests: int
    entry_s: float
    prefill_tokens_per_s: float
    decode_eager_s: Curve
    decode_graph_s: Curve
    watts: Curve
    watts_exponent: float
    gpu: Gpu
    model: Model
    boot: Boot
    noise: Noise
    effects: tuple[Effect, ...]


def load_profile(name: str) -> Profile:
    """Load a profile by name or path.

    Raises:
        SystemExit: there is none of that name; lists those that there are.
        ValueError: the file is not a profile; says which key.
    """
    if name.endswith(".toml"):
        text = Path(name).read_text("utf-8")
    else:
        source = resources.files(__package__) / f"{name}.toml"
        if not source.is_file():
            known = sorted(
                entry.name[:-5] for entry in resources.files(__package__).iterdir() if entry.name[-5:] == ".toml"
            )
            raise SystemExit(f"no simulated profile {name!r}; there are {', '.join(known)}, or give a .toml file")
        text = source.read_text("utf-8")
    raw = tomllib.loads(text)
    noise = raw.pop("noise")
    curves = {key: Curve(raw.pop(key)) for key in ("decode_eager_s", "decode_graph_s", "watts")}
    profile: Profile = _record(
        Profile,
        {
            **raw,
            **curves,
            "name": Path(name).stem if name.endswith(".toml") else name,
            "gpu": _record(Gpu, raw.pop("gpu")),
            "model": _record(Model, raw.pop("model")),
            "boot": _record(Boot, raw.pop("boot")),
            "noise": _record(Noise, {**noise, "trial": Curve(noise["trial"])}),
            "effects": tuple(_record(Effect, effect) for effect in raw.pop("effects", [])),
        },
    )
    return profile


def _record(cls: type[Any], values: dict[str, Any]) -> Any:
    known = {f.name for f in fields(cls)}
    if unknown := sorted(values.keys() - known):
        raise ValueError(f"{cls.__name__} in a profile: unknown {', '.join(unknown)}")
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{cls.__name__} in a profile: {key} is {value}")
    return cls(**values)
