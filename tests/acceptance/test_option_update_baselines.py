"""--update-baselines: what is written, what is judged, and what is left alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

TESTS = """
    @pytest.mark.sglang(server="base", concurrency=8)
    def test_base(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 0.6 * now.baseline.output_throughput

    @pytest.mark.sglang(server="mscclpp", control="fusion", concurrency=8)
    def test_mscclpp(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 2 * now.control.output_throughput
"""


def test_without_a_baseline_the_outcome_is_its_own_and_names_the_command(project: Project) -> None:
    project.tests(TESTS)
    result = project.run("-v", "-k", "base")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*test_base NO BASELINE*",
            "*= NO BASELINE =*",
            '*no baseline is stored for server config "base" at concurrency 8*',
            '*pytest "test_perf.py::test_base" --update-baselines*',
            "*1 no baseline*",
        ]
    )
    assert project.baselines() == {}


def test_the_first_run_records_and_the_second_is_judged(project: Project) -> None:
    project.tests(TESTS)
    first = project.run("-v", "--update-baselines")
    assert first.ret == 0
    first.stdout.fnmatch_lines(["*test_base RECORDED*", "*test_mscclpp PASSED*", "*1 passed, 1 recorded*"])
    stored = {name.rpartition("/")[2] for name in project.baselines()}
    assert stored == {"base.json", "mscclpp.json"}  # a control alone is never written
    project.env.setenv("SGLANG_PERF_SIM_SEED", "8")
    second = project.run("-v", "-k", "base", "--sglang-boots", "1-3")
    assert second.ret == 0, second.stdout.str()
    second.stdout.fnmatch_lines(["*simulated holds*output_throughput >= 0.6 x baseline at concurrency 8*"])


def test_boots_are_added_up_to_five_and_then_nothing_changes(project: Project) -> None:
    project.tests(TESTS)
    project.record("-k", "base", "--sglang-boots", "2")
    (name,) = project.baselines()
    levels = json.loads(project.baselines()[name])["workloads"]["short"]
    assert len(levels["8"]) == 5
    before = project.baselines()
    result = project.run("--update-baselines", "-k", "base")
    assert "unchanged" in result.stdout.str()
    assert project.baselines() == before


def test_raw_trials_are_kept_with_their_provenance(project: Project) -> None:
    project.tests(TESTS)
    project.run("--update-baselines", "-k", "base")
    (text,) = project.baselines().values()
    (boot,) = json.loads(text)["workloads"]["short"]["8"]
    assert len(boot["trials"]["output_throughput"]) == 2
    assert boot["sglang"]
    assert len(boot["config"]) == 16
    assert boot["session"]


def test_a_crashed_config_is_not_written(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="ep8", concurrency=[1, 32])
        def test_it(sglang_perf):
            sglang_perf.measure(1)
            sglang_perf.measure(32)
        """
    )
    result = project.run("--update-baselines")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the server crashed at concurrency 32*"])
    assert project.baselines() == {}


def test_a_crash_of_the_control_is_not_held_against_the_server(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="piecewise", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.5 * now.control.output_throughput
        """
    )
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*sglang server "piecewise" did not start*', "*base.json: written"])
    assert [name.rsplit("/", 1)[-1] for name in project.baselines()] == ["base.json"]
