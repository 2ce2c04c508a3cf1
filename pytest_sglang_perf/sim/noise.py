"""How a boot differs from the last, and how its speed drifts.

White noise on every step would average out within a trial and make the simulated machine look perfectly
steady. Real ones are not: the mean over a whole trial moves. So the factor on speed is

    exp(boot + spread(n) * z(t))

with ``boot`` drawn once a boot, ``spread`` by the number of running requests, and ``z`` an Ornstein-Uhlenbeck
process of unit variance whose correlation time is about a trial's length.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .profiles import Noise

__all__ = ["Slowing", "SpeedNoise", "boot_seed", "node_age"]


def boot_seed(seed: str | None, state: Path, config: Mapping[str, object]) -> int:
    """A seed for this boot: the node's seed, the configuration, and how often it has booted before.

    The same seed and history give the same boots; no two boots of a node share one. Without ``seed``, chance.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8), "big")
    text = json.dumps(config, sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(state / f"boots-{key}", "a+", encoding="ascii") as counter:  # noqa: PTH123 (append and read)
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        count = 0
        with contextlib.suppress(ValueError):
            count = int(counter.read())
        counter.truncate(0)
        counter.write(str(count + 1))
    digest = hashlib.sha256(f"{seed}|{key}|{count}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def node_age(state: Path) -> float:
    """Real seconds since the first server of this node asked."""
    born = state / "born"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = time.monotonic()
    with contextlib.suppress(FileExistsError), born.open("x", encoding="ascii") as file:
        file.write(repr(now))
    with contextlib.suppress(ValueError):  # another server is writing it at this moment
        return max(now - float(born.read_text(encoding="ascii")), 0.0)
    return 0.0


@dataclass(frozen=True)
class Slowing:
    """A node that gets slower, whichever server runs on it: each simulated second adds ``share`` to what a step takes.

    ``age_s`` is how old the node was, in simulated seconds, when this server's clock began.
    """

    share: float = 0.0
    age_s: float = 0.0

    def factor(self, now: float) -> float:
        """What is left of the speed."""
        return 1 / (1 + self.share * max(self.age_s + now, 0.0))


class SpeedNoise:
    """The factor on the speed of steps, over simulated time."""

    def __init__(self, noise: Noise, seed: int, *, strength: float = 1.0, slowing: Slowing = Slowing()) -> None:
        self._slowing = slowing
        self._noise = noise
        self._strength = strength
        self._random = random.Random(seed)
        self._boot = self._random.gauss(0.0, noise.boot) * strength
        self._z = self._random.gauss(0.0, 1.0)
        self._at = 0.0

    def factor(self, now: float, running: int) -> float:
        """The factor at ``now`` (never earlier than at the call before) with ``running`` requests."""
        slowing = self._slowing.factor(now)
        if self._strength == 0.0:
            return slowing
        keep = math.exp(-max(now - self._at, 0.0) / self._noise.correlation_s)
        self._z = keep * self._z + math.sqrt(max(1.0 - keep * keep, 0.0)) * self._random.gauss(0.0, 1.0)
        self._at = now
        spread = self._noise.trial(max(running, 1)) * self._noise.drift * self._strength
        return slowing * math.exp(self._boot + spread * self._z)
