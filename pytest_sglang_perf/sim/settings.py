"""What the environment says about the simulated node. Read once, here, by both programs.

SGLANG_SIM_PROFILE      name of a profile, or the path of a TOML file          rtx-pro-6000-x8
SGLANG_SIM_TIME_SCALE   simulated seconds in one real second                   the profile's
SGLANG_SIM_SEED         an integer or any word; nothing: a new one each boot
SGLANG_SIM_STATE        folder for GPU readings and boot counters              <tmp>/sglang-sim-<uid>
SGLANG_SIM_VERSION      log, flag and HTTP dialect: 0.5.10 or 0.5.23           the profile's
SGLANG_SIM_NOISE        factor on all noise; 0 switches it off                 1
SGLANG_SIM_SLOWING      what a simulated second adds to the length of steps    0
SGLANG_SIM_CACHE        warm or cold: what JIT builds cost at boot             warm
SGLANG_SIM_FAIL         faults, see ``faults.py``
SGLANG_SIM_SMI_FAIL     faults of nvidia-smi, see ``nvidia_smi.py``
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VERSIONS", "Settings", "read_settings"]

VERSIONS = ("0.5.10", "0.5.23")


@dataclass(frozen=True)
class Settings:
    """The node's settings, checked."""

    profile: str
    time_scale: float | None
    seed: str | None
    state: Path
    version: str | None
    noise: float
    slowing: float
    cold: bool
    fail: str
    smi_fail: str


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Raises:
        SystemExit: one of them has no meaning; says which and what is expected.
    """
    env = os.environ if environment is None else environment
    state = env.get("SGLANG_SIM_STATE") or f"{tempfile.gettempdir()}/sglang-sim-{os.getuid()}"
    version = env.get("SGLANG_SIM_VERSION") or None
    if version is not None and version not in VERSIONS:
        raise SystemExit(f"SGLANG_SIM_VERSION={version}: expected one of {', '.join(VERSIONS)}")
    cache = env.get("SGLANG_SIM_CACHE") or "warm"
    if cache not in {"warm", "cold"}:
        raise SystemExit(f"SGLANG_SIM_CACHE={cache}: expected warm or cold")
    scale = _number(env, "SGLANG_SIM_TIME_SCALE", above=0.0)
    noise = _number(env, "SGLANG_SIM_NOISE", above=None)
    return Settings(
        profile=env.get("SGLANG_SIM_PROFILE") or "rtx-pro-6000-x8",
        time_scale=scale,
        seed=env.get("SGLANG_SIM_SEED") or None,
        state=Path(state),
        version=version,
        noise=1.0 if noise is None else noise,
        slowing=_number(env, "SGLANG_SIM_SLOWING", above=None) or 0.0,
        cold=cache == "cold",
        fail=env.get("SGLANG_SIM_FAIL", ""),
        smi_fail=env.get("SGLANG_SIM_SMI_FAIL", ""),
    )


def _number(env: Mapping[str, str], name: str, *, above: float | None) -> float | None:
    text = env.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value >= 0 or (above is not None and not value > above) or value == float("inf"):
        raise SystemExit(f"{name}={text}: expected a number {'>' if above is not None else '>='} 0")
    return value
