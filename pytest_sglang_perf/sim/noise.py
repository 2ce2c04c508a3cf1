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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .profiles import Noise

__all__ = ["SpeedNoise", "boot_seed"]


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


class SpeedNoise:
    """The factor on the speed of steps, over simulated time."""

    def __init__(self, noise: Noise, seed: int, *, strength: float = 1.0) -> None:
        self._noise = noise
        self._strength = strength
        self._random = random.Random(seed)
        self._boot = self._random.gauss(0.0, noise.boot) * strength
        self._z = self._random.gauss(0.0, 1.0)
        self._at = 0.0

    def factor(self, now: float, running: int) -> float:
        """The factor at ``now`` (never earlier than at the call before) with ``running`` requests."""
        if self._strength == 0.0:
            return 1.0
        keep = math.exp(-max(now - self._at, 0.0) / self._noise.correlation_s)
        self._z = keep * self._z + math.sqrt(max(1.0 - keep * keep, 0.0)) * self._random.gauss(0.0, 1.0)
        self._at = now
        spread = self._noise.trial(max(running, 1)) * self._noise.drift * self._strength
        return math.exp(self._boot + spread * self._z)
