"""``sglang-perf reap`` with a real agent and real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_sglang_perf.agent import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = """
nodes: {sim: {kind: sim, profile: tiny}}
servers: {base: {model: m}}
workloads: {short: {input_len: 8, output_len: 8, concurrency: [1]}}
"""


@contextmanager
def sleeper(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as a server is."""
    argv = [sys.executable, "-c", "import time; time.sleep(120)"]
    with subprocess.Popen(argv, env={**os.environ, **variables}, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def dead_stamp() -> str:
    """What names an agent that has been and is no more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = procfs.process(process.pid)
        assert found is not None
        pair = f"{process.pid}:{found.start}"
        process.kill()
    return pair


def living_stamp() -> str:
    found = procfs.process(os.getpid())
    assert found is not None
    return f"{os.getpid()}:{found.start}"


def test_only_what_a_dead_session_left_is_ended(tmp_path: Path) -> None:
    suite = tmp_path / "sglang-perf.yaml"
    suite.write_text(SUITE, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest_sglang_perf.cli", "reap", "sim", "--suite", str(suite), "--json"]
    with (
        sleeper(SGLANG_PERF_RUN="a" * 32, SGLANG_PERF_AGENT=dead_stamp()) as left,
        sleeper(SGLANG_PERF_RUN="b" * 32, SGLANG_PERF_AGENT=living_stamp()) as running,
        sleeper() as foreign,
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        # A session that takes its lease meanwhile, in a test beside this one, may have been quicker to end it.
        assert left.wait(timeout=20) < 0
        assert running.poll() is None
        assert foreign.poll() is None
    assert {one["pid"] for one in document["killed"]} & {running.pid, foreign.pid} == set()
    assert document["simulated"] is True
    assert document["left_alone"] == []
