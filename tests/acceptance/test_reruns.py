"""Reruns by other plugins are switched off for these tests, and only for these."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project


def test_a_perf_test_is_never_rerun_and_others_are(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", concurrency=8)
        def test_perf(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= now.control.output_throughput

        def test_plain():
            assert False
        """
    )
    result = project.run("--reruns", "2")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*2 failed, 2 rerun*"])


def test_xfail_and_skip_stay_pytests_own(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", concurrency=8)
        @pytest.mark.xfail(strict=True)
        def test_perf(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= now.control.output_throughput

        @pytest.mark.sglang(server="base")
        @pytest.mark.skip
        def test_skipped(sglang_perf): ...
        """
    )
    project.run().assert_outcomes(xfailed=1, skipped=1)


def test_without_a_rerun_plugin_strict_markers_are_kept(project: Project) -> None:
    """The mark that keeps reruns away is declared by us where no plugin declares it."""
    project.tests(
        """
        @pytest.mark.sglang(server="base")
        def test_boots(sglang_server): ...
        """
    )
    result = project.run("--strict-markers", "-p", "no:rerunfailures")
    result.assert_outcomes(passed=1)
