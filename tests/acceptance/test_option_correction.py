"""--sglang-correction: what remains of the session's regressions when their number is allowed for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

#: A single new boot would accuse only at a lower p than the one that is asked for here.
TWO = ("--sglang-boots", "2")
#: The second claim asks for just more than the 90 % interval of the ratio: it is violated with p just below 5 %.
BARELY = """
    @pytest.mark.sglang(server="base", concurrency=8)
    def test_it(sglang_perf):
        now = sglang_perf.measure()
        first = now.output_throughput >= 0.01 * now.baseline.output_throughput
        assert first
        assert now.output_throughput >= 1.002 * first.verdict.interval[1] * now.baseline.output_throughput
    """


def test_a_regression_that_does_not_survive_is_inconclusive_for_the_session(project: Project) -> None:
    project.tests(BARELY)
    project.record(boots=2)
    result = project.run(*TWO, "--sglang-inconclusive", "warn", "--sglang-report", "out")
    lines = [
        "*simulated violated*",
        "*p 0.0* alone, 0.0* among the session's 2 claims against baselines (holm): does not survive*",
        "regressions: 1 of 2 claims against baselines violated, 0 of them after the correction*(holm, 5 %)",
    ]
    result.stdout.fnmatch_lines([*lines, "exit status 0: all that failed are regressions that do not survive*"])
    assert result.ret == 0
    report = project.report()
    assert report["regressions"] == {"how": "holm", "claims": 2, "violated": 1, "surviving": 0}
    violated = report["tests"][0]["claims"][1]
    assert violated["verdict"]["p_value"] < 0.05 < violated["verdict"]["p_corrected"]
    by_default = project.run(*TWO, "-n", "1")
    by_default.stdout.fnmatch_lines(lines)
    assert by_default.ret == 1
    uncorrected = project.run(*TWO, "--sglang-inconclusive", "warn", "--sglang-correction", "none")
    uncorrected.stdout.no_fnmatch_line("*regressions: *")
    assert uncorrected.ret == 1


def test_a_real_regression_survives_either_correction(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.01 * now.baseline.output_throughput
            assert now.output_throughput >= 30 * now.baseline.output_throughput
        """
    )
    project.record(boots=2)
    result = project.run("--sglang-correction", "bh", "--sglang-inconclusive", "warn")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*(bh): survives*", "regressions: 1 of 2 *, 1 of them after the correction*"])
