"""What sglang decides by itself can be asserted on, and is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

SUITE = """
nodes:
  sim: {kind: sim, profile: tiny}
servers:
  base: {model: tiny/model, env: {SGLANG_SIM_VERSION: "0.5.23"}}
workloads:
  short: {input_len: 8, output_len: 8, concurrency: 1, requests: {1: 8}}
trials: 1
"""


def test_facts_reach_tests_and_reports(project: Project) -> None:
    project.suite(SUITE)
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=1)
        def test_it(sglang_server, sglang_perf):
            facts = sglang_server.facts
            assert facts["max_total_num_tokens"] == 65536
            assert facts["disabled"] == []
            assert facts["backends"][0].startswith("Tree cache initialized:")
            assert "weights" in facts["phases"]
            sglang_perf.measure()
        """
    )
    result = project.run("--sglang-report", "out")
    result.assert_outcomes(passed=1)
    (one,) = project.report()["measured"]
    assert one["facts"]["max_total_num_tokens"] == 65536
    assert one["facts"]["backends"]
    told = f"base, chosen: {one['facts']['backends'][0]}"
    assert told in (project.path / "out" / "report.md").read_text()
    assert "base, chosen: Tree cache initialized:" in (project.path / "out" / "report.html").read_text()


def test_phases_are_told_in_order_with_the_nodes_own_times(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base")
        def test_it(sglang_server):
            assert sglang_server.boot_time > 0
        """
    )
    result = project.run("-s")
    assert result.ret == 0
    told = re.findall(r"base: boot 1: (\w+) \(([0-9.]+) s\)", result.stderr.str())
    assert [phase for phase, _ in told][:2] == ["spawn", "imports"]
    assert {"weights", "kv_cache", "http", "warmup"} <= {phase for phase, _ in told}
    times = [float(at) for _, at in told]
    assert times == sorted(times)
    assert not {phase for phase, _ in told} & {"ready", "running"}  # the line below is the one that says so
    result.stderr.fnmatch_lines(["*base: boot 1 ready after * s*"])
