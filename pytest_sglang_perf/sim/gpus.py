"""The simulated GPUs: what the server makes them do, and the file through which nvidia_smi sees it.

Each server keeps one file ``gpus-<pid>.json`` in the state folder and rewrites it some tens of times a
second: a fixed-size page written in one call, its length first, so that a reader never meets half of it. A
reader ignores files whose process is gone: a killed server's GPUs are idle at once, its memory free.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .clock import SimClock
    from .performance import Performance
    from .profiles import Gpu

__all__ = ["GpuFile", "PowerMeter", "Reading", "ServerState", "process_started", "read_servers"]

_PAGE = 4096
_BUSY_PCT = 97.0


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment. ``power_w`` is the mean over the last simulated second."""

    power_w: float
    power_instant_w: float
    utilization_pct: float
    memory_used_mib: float


@dataclass(frozen=True)
class ServerState:
    """What one server does to its GPUs: ``pids`` are those of its scheduler processes, one a GPU."""

    pid: int
    started: int
    gpus: list[int]
    pids: list[int]
    titles: list[str]
    reading: Reading


class PowerMeter:
    """Integrates watts over simulated time between two readings."""

    def __init__(self, clock: SimClock, performance: Performance) -> None:
        self._clock = clock
        self._performance = performance
        self._watts = performance.profile.gpu.idle_w
        self._busy = False
        self._since = 0.0
        self._joules = self._busy_s = 0.0
        self._read_at = 0.0
        self.memory_mib = 0.0

    def work(self, now: float, requests: int, factor: float) -> None:
        """From simulated ``now`` on ``requests`` are served at ``factor`` times the usual speed."""
        self._until(now)
        self._watts = self._performance.watts(requests, factor)
        self._busy = requests > 0

    def loading(self, watts: float) -> None:
        """Boot phases draw ``watts``."""
        self._until(self._clock.now())
        self._watts = watts

    def read(self) -> Reading:
        """The mean since the last reading, and the state now."""
        now = self._clock.now()
        self._until(now)
        span = now - self._read_at
        mean = self._joules / span if span > 0 else self._watts
        busy = self._busy_s / span if span > 0 else 0.0
        self._joules = self._busy_s = 0.0
        self._read_at = now
        return Reading(mean, self._watts, busy * _BUSY_PCT, self.memory_mib)

    def _until(self, now: float) -> None:
        span = max(now - self._since, 0.0)
        self._joules += span * self._watts
        self._busy_s += span if self._busy else 0.0
        self._since = max(now, self._since)


class GpuFile:
    """The file of one server."""

    def __init__(self, folder: Path, gpus: list[int]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / f"gpus-{os.getpid()}.json"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._gpus = gpus
        self._started = process_started(os.getpid()) or 0
        self.pids: list[int] = []
        self.titles: list[str] = []

    def write(self, reading: Reading) -> None:
        """Publish a reading."""
        state = ServerState(os.getpid(), self._started, self._gpus, self.pids, self.titles, reading)
        data = json.dumps(asdict(state)).encode()
        os.pwrite(self._file, (b"%08d" % len(data) + data).ljust(_PAGE), 0)

    def remove(self) -> None:
        """The server ends."""
        self._path.unlink(missing_ok=True)


def read_servers(folder: Path) -> list[ServerState]:
    """The servers that live and use the GPUs of this node. Files of dead ones are removed."""
    servers = []
    for path in sorted(folder.glob("gpus-*.json")) if folder.is_dir() else ():
        state = _read(path)
        if state is None:
            continue
        if process_started(state.pid) != state.started:
            path.unlink(missing_ok=True)
            continue
        servers.append(state)
    return servers


def _read(path: Path) -> ServerState | None:
    for _ in range(5):
        try:
            page = path.read_bytes()
            length = int(page[:8])
            values = json.loads(page[8 : 8 + length])
            return ServerState(**(values | {"reading": Reading(**values["reading"])}))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # just created, or another version's
            time.sleep(0.002)
    return None


def process_started(pid: int) -> int | None:
    """When a process was started, in clock ticks of the machine; None for none, or for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (hot path)
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in {b"Z", b"X"} else int(words[19])


def temperature_c(gpu: Gpu, watts: float) -> float:
    """The temperature that ``watts`` settle at."""
    return gpu.temperature_idle_c + max(watts - gpu.idle_w, 0.0) * gpu.degrees_per_watt
