"""--sglang-boots and the promise that a config boots as often as its plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project


def test_twenty_tests_over_four_configs_boot_four_times_and_measure_each_level_once(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.parametrize("concurrency", [1, 8])
        @pytest.mark.parametrize("server", ["base", "mscclpp"])
        @pytest.mark.parametrize("n", range(4))
        def test_levels(sglang_perf, server, concurrency, n):
            assert sglang_perf.measure().output_throughput >= 1

        pytestmark = pytest.mark.sglang(server="base")

        @pytest.mark.sglang(server="fusion", control="base", concurrency=8)
        @pytest.mark.parametrize("n", range(2))
        def test_control(sglang_perf, n):
            assert sglang_perf.measure().control.output_throughput >= 1

        @pytest.mark.parametrize("server", ["base", "ep8"])
        def test_server(sglang_server, server):
            assert sglang_server.server_info()["model_path"] == "tiny/model"
        """
    )
    result = project.run("--sglang-boots", "1", "--sglang-report", "out")
    result.assert_outcomes(passed=20)
    report = project.report()
    assert report["session"]["spent"]["boots"] == 4
    levels = [(m["server"], m["level"]) for m in report["measured"]]
    assert sorted(levels) == [("base", 1), ("base", 8), ("fusion", 8), ("mscclpp", 1), ("mscclpp", 8)]


def test_more_boots_are_taken_while_a_claim_is_inconclusive(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="mscclpp", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput
        """
    )
    project.run("--sglang-boots", "1-2", "--sglang-report", "out")
    assert project.report()["session"]["spent"]["boots"] == 4


def test_boots_that_another_claim_took_do_not_use_up_the_controls(project: Project) -> None:
    """Looks at a control are at pairs: many boots of one side alone have decided nothing yet."""
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="mscclpp", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= float(now.output_throughput)
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput
        """
    )
    project.run("--sglang-boots", "1-3", "--sglang-report", "out")
    report = project.report()
    boots = [m["server"] for m in report["measured"]]
    assert (boots.count("base"), boots.count("mscclpp")) == (3, 3)
    assert [claim["looks"]["taken"] for claim in report["tests"][0]["claims"]] == [3, 3]


def test_a_range_that_is_not_needed_is_not_used(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="fusion", concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 2 * now.control.output_throughput
        """
    )
    project.run("--sglang-boots", "1-5", "--sglang-report", "out")
    assert project.report()["session"]["spent"]["boots"] == 2
