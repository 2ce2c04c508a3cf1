"""The simulated node against the figures that it says it reproduces, and what it costs to run it.

    scripts/bench sim_node

Real processes and real time, noise off, a client of its own (``tests/integration/sim/_client.py``).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.sim._client import closed_loop
from tests.integration.sim._node import Node

TIER = ["--disable-cuda-graph", "--disable-radix-cache", "--num-continuous-decode-steps", "16"]
TIER += ["--max-running-requests", "2048"]
EARLY = ["--disable-radix-cache", "--max-running-requests"]
# name, flags, time scale (None: the profile's), {level: (waves, output tokens per second that are due)}
RUNS: list[tuple[str, list[str], int | None, dict[int, tuple[float, float]]]] = [
    ("tier baseline", TIER, None, {1: (4, 10.45), 10: (2, 89.7), 256: (2, 700), 1024: (2, 1520)}),
    ("mscclpp", [*TIER, "--enable-mscclpp"], None, {1: (4, 10.66), 10: (2, 91.5), 256: (2, 714), 1024: (2, 1550)}),
    ("64 running at most", [*EARLY, "64"], 90, {1024: (1, 440)}),
    ("1024 running at most", [*EARLY, "1024"], None, {512: (2, 1400), 1024: (2, 1870)}),
    ("allreduce fusion", [*EARLY, "1024", "--enable-flashinfer-allreduce-fusion"], 200, {1024: (1, 236)}),
]


def main() -> None:
    load = os.getloadavg()[0]
    busy = " (busy: figures are noisy)" if load > 1 else ""
    print(f"load average at the start {load:.1f} on {os.cpu_count()} CPUs{busy}")
    heads = ("configuration", "level", "due", "shown", "off", "TTFT p50", "W/GPU", "window", "all", "chunks/s", "CPU")
    print("{:<22} {:>5} {:>7} {:>7} {:>6} {:>9} {:>6} {:>7} {:>6} {:>8} {:>5}".format(*heads))
    for name, flags, scale, levels in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"profile": "rtx-pro-6000-x8", "noise": "0"} | ({"time_scale": str(scale)} if scale else {})
            node = Node(Path(folder), **settings)
            began = time.monotonic()
            with node.server("--tp", "8", *flags) as server:
                boot = time.monotonic() - began
                for level, (waves, due) in levels.items():
                    t = asyncio.run(closed_loop(node, server, level, waves))
                    print(f"{name:<22} {level:>5} {due:>7} {t.tokens_per_s:>7.1f}", end=" ")
                    print(f"{t.tokens_per_s / due - 1:>+6.1%} {t.ttft_p50_s:>7.2f} s {t.watts or 0:>6.0f}", end=" ")
                    print(f"{t.window_real_s:>5.2f} s {t.total_real_s:>4.1f} s", end=" ")
                    print(f"{t.chunks_per_real_s:>8.0f} {t.server_cpu_share:>5.0%}")
                    sys.stdout.flush()
        print(f"{name:<22} booted in {boot:.2f} s")


if __name__ == "__main__":
    main()
