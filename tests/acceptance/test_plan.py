"""The sequential plan and its cost are told beforehand, and what was spent after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project


def test_looks_and_time_are_told_before_and_the_error_spent_after(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 1.0 * now.baseline.output_throughput
        """
    )
    first = project.run("--update-baselines", "-s")
    first.stderr.fnmatch_lines(["*plan: how long this takes is not known before boots of it are stored*"])
    result = project.run("--sglang-boots", "1-2", "--sglang-inconclusive", "warn", "-s", "--sglang-report", "out")
    result.stdout.fnmatch_lines(
        [
            "*looks: up to 2 boots against 5 stored, stopping when decided; looks at 1 (3.*%), 2 (*%) one-sided*",
            "*look 2 of 2, 5.0 of 5 % error spent*",
            "*spent 2 boots in*4 trials*planned:*about * at first*",
        ]
    )
    result.stderr.fnmatch_lines(["*plan: about * at first, * at most*"])
    (claim,) = project.report()["tests"][0]["claims"]
    assert claim["looks"]["taken"] == 2


def test_a_second_claim_starts_at_the_look_that_its_boots_belong_to(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="mscclpp", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            for _ in range(3):
                ratio = float(now.output_throughput) / float(now.control.output_throughput)
                assert now.output_throughput >= ratio * now.control.output_throughput
        """
    )
    project.run("--sglang-boots", "1-2", "--sglang-report", "out")
    report = project.report()
    assert report["session"]["spent"]["boots"] == 4
    assert [claim["looks"]["taken"] for claim in report["tests"][0]["claims"]] == [2, 2, 2]


def test_further_boots_of_a_claim_against_the_control_alternate(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="mscclpp", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput
        """
    )
    project.run("--sglang-boots", "1-3", "--sglang-report", "out")
    boots = sorted((one["started"], one["server"]) for one in project.report()["measured"])
    assert [server for _, server in boots] == ["base", "mscclpp", "base", "mscclpp", "mscclpp", "base"]


@pytest.mark.parametrize(("precision", "trials"), [(0.5, 3), (0.000001, 5)])
def test_trials_end_once_their_mean_is_known_well_enough(project: Project, precision: float, trials: int) -> None:
    project.suite(SUITE.replace("trials: 2", f"trials: 5\nprecision: {precision}"))
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_perf):
            assert sglang_perf.measure().output_throughput >= 1
        """
    )
    project.run("--sglang-report", "out")
    assert project.report()["session"]["spent"]["trials"] == trials
