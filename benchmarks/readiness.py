"""How soon readiness and death are noticed, beside polling loops as other tools have them.

    scripts/bench readiness [--boots 20]

Each boot is a real process with a known moment from which it can be found ready. The agent's own stamps are
compared with it, on one clock. A loop that asks every 0.1 s, with a new connection each time, watches the same
boots from its own thread. What loops of 10 and 15 s would have seen is computed from the same moments (arithmetic,
not run): the time to the next tick, for a moment that falls anywhere between two.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport

PROBE_S = 1.0  # what a /health that generates takes
WAIT_S = 30.0


class Events:
    """The agent's events, awaited by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[int, dict[str, Any]]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._events.append((time.monotonic_ns(), event))
            self._changed.notify_all()

    def wait(self, name: str, boot: str) -> tuple[int, dict[str, Any]]:
        """When it arrived here (ns), and the event."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                for arrived, event in self._events:
                    if event["event"] == name and event.get("boot") == boot:
                        return arrived, event
                if not self._changed.wait(deadline - time.monotonic()):
                    told = [event for _, event in self._events if event.get("boot") == boot]
                    raise SystemExit(f"no {name} of {boot} within {WAIT_S:g} s, but {told[-5:]}")


class Loop(threading.Thread):
    """Asks every 0.1 s whether a server is ready, and notes when it was."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._path = path
        self.ready_ns = 0

    def run(self) -> None:
        while not self.ready_ns:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
                connection.request("GET", self._path)
                if connection.getresponse().status == 200:
                    self.ready_ns = time.monotonic_ns()
                connection.close()
            except OSError:
                pass
            time.sleep(0.1)


def boot_once(client: AgentClient, events: Events, dialect: str, folder: Path) -> dict[str, float]:
    name = uuid.uuid4().hex[:8]
    note = folder / name
    argv = [sys.executable, "-m", "benchmarks._slow_start", "{port}", f"{random.uniform(0.6, 1.6):.3f}"]
    started = client.request(
        "boot.start",
        timeout=20,
        boot=name,
        argv=[*argv, str(PROBE_S), str(note), dialect],
        cwd=str(Path(__file__).parents[1]),
        expect={"model_path": "none"},
    )
    loop = Loop(started["port"], "/ready" if dialect == "ready" else "/health")
    loop.start()
    arrived, ready = events.wait("boot.ready", name)
    truth = json.loads(note.read_text(encoding="utf-8"))
    loop.join(WAIT_S)
    figures = {
        "agent": ready["ns"] - truth["ready_ns"],
        "agent, told here": arrived - truth["ready_ns"],
        "loop of 0.1 s": loop.ready_ns - truth["ready_ns"],
    }
    for period in (10, 15):
        figures[f"loop of {period} s (arithmetic)"] = random.uniform(0, period) * 1e9
    if dialect == "health":
        figures = {key: value - PROBE_S * 1e9 * ("arithmetic" not in key) for key, value in figures.items()}
    killed = time.monotonic_ns()
    os.kill(truth["worker"], signal.SIGKILL)
    figures["worker's death"] = events.wait("boot.child_died", name)[0] - killed
    killed = time.monotonic_ns()
    os.kill(started["pid"], signal.SIGKILL)
    figures["server's death"] = events.wait("boot.exit", name)[0] - killed
    events.wait("boot.swept", name)
    return {key: value / 1e9 for key, value in figures.items()}


def table(title: str, rows: list[dict[str, float]]) -> None:
    print(f"\n{title} (s, n = {len(rows)})\n\n| | p50 | p90 | max |\n|---|---|---|---|")
    for key in rows[0]:
        values = sorted(row[key] for row in rows)
        p90 = values[min(len(values) - 1, math.ceil(0.9 * len(values)) - 1)]
        print(f"| {key} | {statistics.median(values):.3f} | {p90:.3f} | {values[-1]:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boots", type=int, default=20)
    options = parser.parse_args()
    random.seed(1)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        client = AgentClient(
            LocalTransport(env={"XDG_CACHE_HOME": folder, "SGLANG_PERF_LEASE_DIR": f"{folder}/lease"}),
            run=uuid.uuid4().hex,
            owner={"user": "benchmark", "host": "", "pid": os.getpid()},
            python=sys.executable,
        )
        with client:
            events = Events()
            client.subscribe(events)
            for dialect, title in (
                ("ready", "Noticed after the first possible 200 of /ready"),
                ("health", f"The same where only /health exists, less the {PROBE_S:g} s that its probe takes"),
            ):
                table(title, [boot_once(client, events, dialect, Path(folder)) for _ in range(options.boots)])


if __name__ == "__main__":
    main()
