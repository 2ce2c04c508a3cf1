"""What a user sees for each kind of outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project


def test_a_claim_against_a_control_holds_and_is_shown_with_both_sides(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="fusion", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 2.0 * now.control.output_throughput
        """
    )
    result = project.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*sglang-perf*simulated node: profile tiny*",
            "*test_it: server base, control fusion*",
            "*simulated holds*output_throughput >= 2 x control at concurrency 8*",
            "*base * [[]*] tok/s (1 boot)*against*fusion (control)*",
            "*ratio *90 % interval*",
            "*spent 2 boots in*4 trials*",
        ]
    )


def test_a_violated_claim_fails_with_an_explanation_of_eight_lines(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.97 * now.control.output_throughput
        """
    )
    result = project.run()
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    explanation = [line for line in result.outlines if line.startswith("E ")]
    assert len(explanation) <= 8
    assert "violated: output_throughput >= 0.97 x control at concurrency 8" in explanation[0]
    assert not any("truncated" in line for line in explanation)


def test_an_expected_refutation_passes_and_a_holding_one_fails(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(control="base", concurrency=8, expect="refuted", reason="2026: tried")
        @pytest.mark.parametrize("server", ["fusion", "mscclpp"])
        def test_it(sglang_perf, server):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.5 * now.control.output_throughput
        """
    )
    result = project.run("-v")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*test_it[[]fusion[]] REFUTED*", "*test_it[[]mscclpp[]] FAILED*"])
    result.stdout.fnmatch_lines(["*expected to be refuted (2026: tried), but it holds now*"])
    result.stdout.fnmatch_lines(["*1 failed, 1 refuted*"])


def test_a_blocked_config_passes_and_the_wrong_crash_class_fails(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="piecewise", expect="blocked", reason="fullgraph")
        def test_it(sglang_server): ...

        @pytest.mark.sglang(server="unknown-flag", expect="blocked", crash="cuda-oom", reason="not that one")
        def test_other(sglang_server): ...
        """
    )
    result = project.run("-v")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*test_it BLOCKED*", "*test_other ERROR*"])
    result.stdout.fnmatch_lines(['*expected to be blocked by "cuda-oom"*but the server crashed otherwise*'])


def test_a_crash_is_told_in_full_once_and_short_afterwards(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="unknown-flag")
        @pytest.mark.parametrize("n", [1, 2, 3])
        def test_it(sglang_server, n): ...
        """
    )
    result = project.run()
    assert result.ret == 1
    result.assert_outcomes(errors=3)
    text = result.stdout.str()
    assert text.count("  cause ") == 1
    assert text.count("(see test_perf.py::test_it[1])") == 2
    assert "Traceback" not in text


def test_a_crash_under_load_tells_the_level_and_lower_levels_still_count(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="ep8")
        @pytest.mark.parametrize("concurrency", [1, 32, 8])
        def test_it(sglang_perf, concurrency):
            assert sglang_perf.measure().failed_requests <= 0
        """
    )
    result = project.run("-v")
    assert result.ret == 1
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(['*sglang server "ep8" crashed under load at concurrency 32*'])


def test_an_absent_metric_is_an_error_that_says_why(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=1)
        def test_it(sglang_perf):
            assert sglang_perf.measure().ttft_p99 <= 10
        """
    )
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*ttft_p99 is absent*"])


def test_an_undeclared_level_is_refused(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=1)
        def test_it(sglang_perf):
            sglang_perf.measure(concurrency=8)
        """
    )
    result = project.run()
    result.stdout.fnmatch_lines(["*concurrency 8 was not declared by this test*"])
