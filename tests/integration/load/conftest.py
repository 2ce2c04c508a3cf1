"""Real servers in processes of their own, and the load process as the agent starts it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

# The machine that runs the tests is busy with other tests: how late we are is not what they are about.
BUSY = {"lag_p50_ms": 5000, "lag_p99_ms": 5000, "schedule_lag_p99_ms": 5000, "cpu_share": 5}


@pytest.fixture
def stamped():
    """Start stamped servers; each call returns a URL."""
    started = []

    def start(*arguments):
        argv = [sys.executable, "-m", "pytest_sglang_perf.agent.load.stamped", *map(str, arguments)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"

    yield start
    for process in started:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def load(tmp_path):
    """Run the load process on an order; returns its messages and, with ``records``, the records."""

    def run(url, *, timeout=60, python=sys.executable, **order):
        records = tmp_path / "records.jsonl"
        spec = {
            "url": url,
            "arrival": {"kind": "closed", "concurrency": 4},
            "input": {"kind": "fixed", "value": 16},
            "output": {"kind": "fixed", "value": 8},
            "requests": 8,
            "records_path": str(records),
            "limits": BUSY | order.pop("limits", {}),
        } | order
        done = subprocess.run(
            [python, "-m", "pytest_sglang_perf.agent", "load"],
            input=json.dumps(spec) + "\n",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        assert messages, done.stderr
        assert done.stderr == ""
        lines = records.read_text().splitlines() if records.exists() else []
        return messages[-1].get("result", messages[-1]), [json.loads(line) for line in lines]

    return run


@pytest.fixture
def free_port():
    """A port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
