"""--sglang-inconclusive: a gate that cannot tell says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

# The bound is the ratio that was measured a line above: no number of boots decides that.
TESTS = """
    @pytest.mark.sglang(server="base", control="mscclpp", concurrency=8)
    def test_undecidable(sglang_perf):
        now = sglang_perf.measure()
        ratio = float(now.output_throughput) / float(now.control.output_throughput)
        assert now.output_throughput >= ratio * now.control.output_throughput
        assert now.output_throughput >= 0.5 * now.control.output_throughput

    @pytest.mark.sglang(server="base", control="fusion", concurrency=8)
    def test_decidable(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 2 * now.control.output_throughput
"""


def test_it_fails_by_default_with_its_own_letter_and_word(project: Project) -> None:
    project.tests(TESTS)
    result = project.run("--sglang-boots", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*= INCONCLUSIVE =*",
            "*cannot tell yet, and here is what would settle it:*",
            "*simulated inconclusive*",
            "*simulated holds*output_throughput >= 0.5 x control*",  # the later claim was heard
            "*1 passed, 1 inconclusive*",
        ]
    )


def test_warn_reports_it_and_exits_0(project: Project) -> None:
    project.tests(TESTS)
    result = project.run("--sglang-inconclusive=warn", "-v", "--sglang-boots", "1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*test_undecidable INCONCLUSIVE*", "*test_decidable PASSED*", "*1 passed, 1 inconclusive*"]
    )


def test_last_failed_and_exitfirst_treat_it_as_a_failure(project: Project) -> None:
    project.tests(TESTS)
    first = project.pytester.runpytest_subprocess("-x", "--sglang-boots", "1", timeout=120)
    assert first.ret == 1
    first.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    again = project.pytester.runpytest_subprocess("--lf", "-v", "--sglang-boots", "1", timeout=120)
    again.stdout.fnmatch_lines(["*test_undecidable INCONCLUSIVE*"])
    assert "test_decidable" not in again.stdout.str()
