"""A run that should not be judged is inconclusive with the reason, whatever its figures say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project

TEST = """
    @pytest.mark.sglang(server="base", control="fusion", concurrency=8)
    def test_it(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 2 * now.control.output_throughput
    """


def test_a_gpu_in_thermal_slowdown_is_never_judged(project: Project) -> None:
    project.env.setenv("SGLANG_SIM_SMI_FAIL", "thermal")
    project.tests(TEST)
    result = project.run("--sglang-boots", "1-3", "--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*simulated inconclusive*", "*note: unstable: base: GPU 0: *slowdown*", "*1 inconclusive*"]
    )
    report = project.report()
    assert report["session"]["spent"]["boots"] == 2, "more boots of an unstable run settle nothing"
    assert report["tests"][0]["claims"][0]["verdict"]["more_boots"] is None


def test_a_gpu_that_somebody_else_uses_is_never_judged(project: Project) -> None:
    project.env.setenv("SGLANG_SIM_SMI_FAIL", "latecomer:0")
    project.tests(TEST)
    result = project.run("--update-baselines", "--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*note: unstable: base: somebody else computed there: GPU 0 is used by pid 1 of root: *",
            "*base.json: unchanged",
            "*short at 8: refused: unstable: somebody else computed there: *",
        ]
    )
    for one in project.report()["measured"]:
        for trial in one["trials"]:
            assert "output_throughput" in trial["values"]
            assert "is used by pid 1 of root" in trial["absent"]["energy_per_token"]


def test_power_without_one_of_the_gpus_is_no_power(project: Project) -> None:
    project.suite(SUITE.replace("profile: tiny}", "profile: rtx-pro-6000-x8}", 1))
    project.env.setenv("SGLANG_SIM_SMI_FAIL", "falls:5")
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 1
            assert now.energy_per_token <= 1e9
        """
    )
    result = project.run("--sglang-report", "out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*now.energy_per_token is absent*: the power readings are not valid: GPU 5 is missing*"]
    )
    (one,) = project.report()["measured"]
    assert "output_throughput" in one["columns"]
    assert "power_draw" not in one["columns"]


def test_a_run_that_had_not_settled_is_never_judged(project: Project) -> None:
    project.env.setenv("SGLANG_SIM_SLOWING", "0.004")
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_perf):
            assert sglang_perf.measure().output_throughput >= 1
        """
    )
    result = project.run("--sglang-trials", "8", "--update-baselines")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*unstable: base: trend within the run: -*%*it had not settled*"])
    result.stdout.fnmatch_lines(["*base.json: unchanged", "*short at 8: refused: unstable: trend within the run*"])
    assert not project.baselines()
