"""The simulated GPUs as nvidia-smi sees them: their readings now, and every field that can be asked for."""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .gpus import ServerState, read_servers, temperature_c
from .profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from .profiles import Profile
    from .settings import Settings

__all__ = ["IDLE", "POWER_CAP", "GpuNow", "Node", "query_fields", "timestamp"]

IDLE, POWER_CAP, HW_THERMAL = 0x1, 0x4, 0x48  # bits of the reasons why clocks are what they are


@dataclass(frozen=True)
class GpuNow:
    """One GPU now."""

    index: int
    power_w: float
    instant_w: float
    utilization: float
    memory_mib: float
    reasons: int


class Node:
    """The GPUs of this node, read anew at each call of :meth:`gpus`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.profile: Profile = load_profile(settings.profile)
        fault, _, number = settings.smi_fail.partition(":")
        self.fault = fault
        self.fault_index = int(number) if number.isdecimal() else -1
        self._random = random.Random()

    def uuid(self, index: int) -> str:
        digest = hashlib.md5(f"{self.profile.gpu.name}{index}".encode(), usedforsecurity=False).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"

    def bus(self, index: int) -> str:
        return f"00000000:{index * 0x10 + 1:02X}:00.0"

    def servers(self) -> list[ServerState]:
        return read_servers(self.settings.state)

    def gpus(self) -> list[GpuNow]:
        gpu, used = self.profile.gpu, {}
        for server in self.servers():
            for index in server.gpus:
                used[index] = server.reading
        found = []
        for index in range(gpu.count):
            reading = used.get(index)
            # Boards differ a little for good, and every reading is a little off.
            board = 1.0 + 0.012 * ((index * 5 % 8) - 3.5) / 3.5
            watts = gpu.idle_w if reading is None else reading.power_w
            instant = watts if reading is None else reading.power_instant_w
            noise = self.profile.noise.power * self.settings.noise
            power = watts * board * (1.0 + self._random.gauss(0.0, noise / 2))
            found.append(
                GpuNow(
                    index=index,
                    power_w=power,
                    instant_w=instant * board * (1.0 + self._random.gauss(0.0, noise * 3)),
                    utilization=0.0 if reading is None else reading.utilization_pct,
                    memory_mib=4.0 if reading is None else max(reading.memory_used_mib, 4.0),
                    reasons=self._reasons(power, busy=reading is not None and reading.utilization_pct > 0),
                )
            )
        return found

    def _reasons(self, power: float, *, busy: bool) -> int:
        if self.fault == "thermal" and busy:
            return HW_THERMAL
        if power >= 0.98 * self.profile.gpu.power_limit_w:
            return POWER_CAP
        return 0x0 if busy else IDLE


# -- fields of --query-gpu: the value, and its unit


def query_fields(node: Node) -> dict[str, Callable[[GpuNow], tuple[str, str]]]:
    gpu = node.profile.gpu

    def busy(state: GpuNow) -> bool:
        return not state.reasons & IDLE

    def hexadecimal(state: GpuNow) -> tuple[str, str]:
        return f"0x{state.reasons:016X}", ""

    def active(mask: int) -> Callable[[GpuNow], tuple[str, str]]:
        return lambda state: ("Active" if state.reasons & mask else "Not Active", "")

    fields: dict[str, Callable[[GpuNow], tuple[str, str]]] = {
        "timestamp": lambda _: (timestamp(), ""),
        "index": lambda state: (str(state.index), ""),
        "name": lambda _: (gpu.name, ""),
        "uuid": lambda state: (node.uuid(state.index), ""),
        "pci.bus_id": lambda state: (node.bus(state.index), ""),
        "driver_version": lambda _: (gpu.driver, ""),
        "compute_cap": lambda _: (gpu.compute_capability, ""),
        "count": lambda _: (str(gpu.count), ""),
        "pstate": lambda state: ("P1" if busy(state) else "P8", ""),
        "power.draw": lambda state: (f"{state.power_w:.2f}", "W"),
        "power.draw.average": lambda state: (f"{state.power_w:.2f}", "W"),
        "power.draw.instant": lambda state: (f"{state.instant_w:.2f}", "W"),
        "power.limit": lambda _: (f"{gpu.power_limit_w:.2f}", "W"),
        "enforced.power.limit": lambda _: (f"{gpu.power_limit_w:.2f}", "W"),
        "power.max_limit": lambda _: (f"{gpu.power_limit_w:.2f}", "W"),
        "utilization.gpu": lambda state: (f"{state.utilization:.0f}", "%"),
        "utilization.memory": lambda state: (f"{state.utilization * 0.62:.0f}", "%"),
        "memory.total": lambda _: (f"{gpu.memory_mib}", "MiB"),
        "memory.used": lambda state: (f"{state.memory_mib:.0f}", "MiB"),
        "memory.free": lambda state: (f"{gpu.memory_mib - state.memory_mib:.0f}", "MiB"),
        "temperature.gpu": lambda state: (f"{temperature_c(gpu, state.power_w):.0f}", ""),
        "clocks.sm": lambda state: (f"{gpu.clock_busy_mhz if busy(state) else gpu.clock_idle_mhz}", "MHz"),
        "clocks.max.sm": lambda _: (f"{gpu.clock_busy_mhz + 100}", "MHz"),
        "mig.mode.current": lambda _: ("[N/A]", ""),
        "persistence_mode": lambda _: ("Enabled", ""),
        "ecc.errors.uncorrected.volatile.total": lambda _: ("0", ""),
    }
    for word in ("clocks_event_reasons", "clocks_throttle_reasons"):
        fields[f"{word}.active"] = hexadecimal
        fields[f"{word}.gpu_idle"] = active(IDLE)
        fields[f"{word}.sw_power_cap"] = active(POWER_CAP)
        fields[f"{word}.hw_slowdown"] = active(0x8)
        fields[f"{word}.hw_thermal_slowdown"] = active(0x40)
        fields[f"{word}.sw_thermal_slowdown"] = active(0x20)
        fields[f"{word}.hw_power_brake_slowdown"] = active(0x80)
    fields["gpu_name"], fields["gpu_uuid"] = fields["name"], fields["uuid"]
    fields["gpu_bus_id"], fields["clocks.current.sm"] = fields["pci.bus_id"], fields["clocks.sm"]
    return fields


def timestamp() -> str:
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
