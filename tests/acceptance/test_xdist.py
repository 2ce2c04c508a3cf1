"""Under -n: one worker a node, builtin types across the border, the controller alone writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Project

TESTS = """
    @pytest.mark.sglang(control="fusion", concurrency=8)
    @pytest.mark.parametrize("server", ["base", "mscclpp"])
    def test_it(sglang_perf, server, worker_id):
        now = sglang_perf.measure()
        print("worker", worker_id)
        assert now.output_throughput >= 2 * now.control.output_throughput

    @pytest.mark.parametrize("n", range(8))
    def test_plain(n, worker_id):
        print("plain", worker_id)
"""


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_all_tests_of_a_node_go_to_one_worker(project: Project, dist: str) -> None:
    project.tests(TESTS)
    result = project.run("-n", "2", "--dist", dist, "-rA", "--sglang-report", "out", "--update-baselines")
    result.assert_outcomes(passed=10)
    workers = {line for line in result.outlines if line.startswith("worker ")}
    assert len(workers) == 1
    assert project.report()["session"]["spent"]["boots"] == 3
    assert {name.rpartition("/")[2] for name in project.baselines()} == {"base.json", "mscclpp.json"}
    result.stdout.fnmatch_lines(["*sglang-perf (simulated node*", "*simulated holds*"])


def test_without_perf_tests_the_users_choice_of_distribution_is_untouched(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.parametrize("n", range(8))
        def test_plain(n): ...
        """
    )
    project.run("-n", "2", "--dist", "worksteal").assert_outcomes(passed=8)


def test_outcomes_beyond_pytests_own_cross_the_border(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_missing(sglang_perf):
            assert not sglang_perf.measure().regressions()

        @pytest.mark.sglang(server="piecewise", expect="blocked", reason="fullgraph")
        def test_blocked(sglang_server): ...
        """
    )
    result = project.run("-n", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*1 no baseline, 1 blocked*"])


def test_each_lets_workers_take_turns_on_the_node(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=1)
        def test_it(sglang_perf):
            assert sglang_perf.measure().output_throughput >= 1
        """
    )
    result = project.run("--dist", "each", "--tx", "2*popen")
    result.assert_outcomes(passed=2)
