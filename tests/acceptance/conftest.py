"""A user's project in a folder of its own, on the simulated node, run as a user would run it."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
default_node: sim
nodes:
  sim: {kind: sim, profile: tiny}
  other: {kind: sim, profile: tiny, seed: 5}
servers:
  base: {model: tiny/model, args: {disable-radix-cache: true}}
  mscclpp: {extends: base, args: {enable-mscclpp: true}}
  fusion: {extends: base, args: {enable-flashinfer-allreduce-fusion: true}}
  piecewise: {extends: base, args: {enforce-piecewise-cuda-graph: true}}
  ep8: {extends: base, args: {ep-size: 8}}
  unknown-flag: {extends: base, args: {no-such-flag-at-all: true}}
workloads:
  short: {input_len: 32, output_len: 32, concurrency: [1, 8, 32], requests: {1: 12, 8: 32, 32: 64}}
margins: {output_throughput: 0.10, tpot_p50: 0.15}
trials: 2
"""


class Project:
    """Writes files, runs pytest in a process of its own, reads what it left."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path: Path = pytester.path
        self.env = monkeypatch
        for name in ("CI", "GITHUB_ACTIONS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("SGLANG_PERF_SIM_SEED", "7")
        monkeypatch.setenv("SGLANG_PERF_LEASE_WAIT", "120")
        # Each project has a node of its own: tests run in parallel, and leases would make them take turns.
        monkeypatch.setenv("SGLANG_PERF_LEASE_DIR", str(pytester.path / "lease"))
        self.suite()

    def suite(self, text: str = SUITE) -> None:
        (self.path / "sglang-perf.yaml").write_text(text, encoding="utf-8")

    def tests(self, source: str, name: str = "test_perf.py") -> None:
        (self.path / name).write_text("import pytest\n\n" + textwrap.dedent(source), encoding="utf-8")

    def run(self, *args: str, timeout: float = 120.0) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=timeout)

    def record(self, *args: str, boots: int = 3) -> None:
        """Store baselines from several sessions, each with a seed of its own."""
        for seed in range(boots):
            self.env.setenv("SGLANG_PERF_SIM_SEED", str(100 + seed))
            self.run("--update-baselines", *args)
        self.env.setenv("SGLANG_PERF_SIM_SEED", "7")

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "out" / "run.json").read_text(encoding="utf-8"))
        return found

    def baselines(self) -> dict[str, bytes]:
        folder = self.path / "baselines"
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)
