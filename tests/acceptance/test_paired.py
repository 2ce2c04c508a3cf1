"""Paired plans: two boots in succession make a pair, in ABBA order, whatever else the session boots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project


def _order(report: dict[str, Any]) -> list[tuple[str, int]]:
    boots = {(m["started"], m["server"], m["boot"]) for m in report["measured"]}
    return [(server, boot) for _, server, boot in sorted(boots)]


def test_a_paired_plan_boots_in_abba_order_and_tells_the_drift(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", plan="paired", boots=2, concurrency=[1, 8])
        def test_it(sglang_perf):
            for level in (1, 8):
                now = sglang_perf.measure(concurrency=level)
                assert now.output_throughput <= 0.9 * now.control.output_throughput
        """
    )
    result = project.run("--sglang-report", "out")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*drift of the node: * % a boot, which ABBA pairs cancel*", "*spent 4 boots in*"])
    report = project.report()
    assert _order(report) == [("base", 1), ("fusion", 1), ("fusion", 2), ("base", 2)]
    for claim in report["tests"][0]["claims"]:
        assert claim["status"] == "holds"
        assert claim["verdict"]["method"].startswith("paired t on 2 pairs of boots in ABBA order")
        assert abs(claim["verdict"]["trend"] - 1) < 0.2


def test_a_pair_is_two_neighbours_also_where_tests_share_their_control(project: Project) -> None:
    project.tests(
        """
        def test_alone(sglang_perf):
            assert sglang_perf.measure(8).output_throughput >= 1

        @pytest.mark.parametrize("concurrency", [1, 8])
        def test_fusion(sglang_perf, concurrency):
            now = sglang_perf.measure(concurrency)
            assert now.output_throughput <= 0.9 * now.control.output_throughput

        def test_mscclpp(sglang_perf):
            now = sglang_perf.measure(8)
            assert now.output_throughput >= 0.5 * now.control.output_throughput

        test_alone = pytest.mark.sglang(server="base", concurrency=8)(test_alone)
        test_fusion = pytest.mark.sglang(server="fusion", control="base", plan="paired", boots=2)(test_fusion)
        test_mscclpp = pytest.mark.sglang(server="mscclpp", control="base", plan="paired", boots=2, concurrency=8)(
            test_mscclpp
        )
        """
    )
    result = project.run("--sglang-report", "out")
    assert result.ret == 0
    report = project.report()
    assert _order(report) == [
        ("base", 1), ("fusion", 1), ("fusion", 2), ("base", 2), ("mscclpp", 1), ("mscclpp", 2), ("base", 3),
    ]  # fmt: skip
    for claim in (claim for test in report["tests"][1:] for claim in test["claims"]):
        assert claim["verdict"]["method"].startswith("paired t on 2 pairs of boots in ABBA order")
        assert claim["reference"]["boots"] == claim["candidate"]["boots"] == 2
    # Both levels of one hypothesis come out of the same pairs, and what only the other one needs is not measured.
    trials = {(one["server"], one["boot"], one["level"]): one["asked_for"] for one in report["measured"]}
    assert set(trials) == {
        ("base", 1, 1), ("base", 1, 8), ("fusion", 1, 1), ("fusion", 1, 8), ("fusion", 2, 1), ("fusion", 2, 8),
        ("base", 2, 1), ("base", 2, 8), ("mscclpp", 1, 8), ("mscclpp", 2, 8), ("base", 3, 8),
    }  # fmt: skip
    assert all(trials.values())


def test_a_running_server_owes_its_levels_to_its_own_pairs_only(project: Project) -> None:
    project.tests(
        """
        fusion = pytest.mark.sglang(server="fusion", control="base", plan="paired", workload="short")
        mscclpp = pytest.mark.sglang(server="mscclpp", control="base", plan="paired", workload="short")

        def measured(sglang_perf, level):
            now = sglang_perf.measure(level)
            return float(now.output_throughput), float(now.control.output_throughput)

        @fusion(concurrency=1)
        def test_1(sglang_perf):
            measured(sglang_perf, 1)

        @mscclpp(concurrency=8)
        def test_2(sglang_perf):
            measured(sglang_perf, 8)

        @fusion(concurrency=8)
        def test_3(sglang_perf):
            measured(sglang_perf, 8)
        """
    )
    result = project.run("--sglang-report", "out")
    result.assert_outcomes(passed=3)
    report = project.report()
    assert _order(report) == [("base", 1), ("fusion", 1), ("base", 2), ("mscclpp", 1)]
    assert {(one["server"], one["boot"], one["level"]) for one in report["measured"]} == {
        ("base", 1, 1), ("base", 1, 8), ("fusion", 1, 1), ("fusion", 1, 8), ("base", 2, 8), ("mscclpp", 1, 8),
    }  # fmt: skip


def test_boots_for_another_claim_do_not_part_the_pairs(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8)
        def test_store(sglang_perf):
            assert sglang_perf.measure().output_throughput >= 1
        """
    )
    project.run("--update-baselines")
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="fusion", plan="paired", boots=(1, 3), concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            ratio = float(now.output_throughput) / float(now.baseline.output_throughput)
            assert now.output_throughput >= ratio * now.baseline.output_throughput  # two more boots of base, alone
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput  # two more pairs
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn")
    report = project.report()
    # The last of the boots alone still runs when pairs are wanted again, and so it is the first of the second pair.
    assert _order(report) == [
        ("fusion", 1), ("base", 1), ("base", 2), ("base", 3), ("fusion", 2), ("fusion", 3), ("base", 4),
    ]  # fmt: skip
    alone, paired = report["tests"][0]["claims"]
    assert (alone["candidate"]["boots"], alone["looks"]["taken"]) == (3, 3)
    assert paired["verdict"]["method"].startswith("paired t on 3 pairs")
    assert (paired["candidate"]["boots"], paired["reference"]["boots"], paired["looks"]["taken"]) == (3, 3, 3)
    asked = {(one["server"], one["boot"]) for one in report["measured"] if one["asked_for"]}
    assert asked == {("fusion", 1), ("base", 1)}


def test_pairs_need_a_partner(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", plan="paired", concurrency=8)
        def test_it(sglang_perf):
            sglang_perf.measure()
        """
    )
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(['*@pytest.mark.sglang(plan="paired") needs control="...": the other config*'])


def test_a_level_that_dies_in_a_pair_is_told_once_and_leaves_the_others(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="ep8", control="base", plan="paired", concurrency=32)
        class TestPairs:
            @pytest.mark.parametrize("concurrency", [1, 32])
            def test_it(self, sglang_perf, concurrency):
                now = sglang_perf.measure(concurrency)
                assert now.output_throughput >= 0.5 * now.control.output_throughput

            def test_again(self, sglang_perf):
                sglang_perf.measure(32)
        """
    )
    result = project.run("--sglang-report", "out")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            '*sglang server "ep8" crashed under load at concurrency 32, after * finished requests: *',
            '*sglang server "ep8" crashed under load at concurrency 32: * (see test_perf.py::TestPairs::test_it?32?)*',
        ]
    )
    report = project.report()
    assert report["session"]["spent"]["boots"] == 2
    assert [(one["server"], one["level"]) for one in report["measured"]] == [("base", 1), ("base", 32), ("ep8", 1)]


def test_a_config_that_does_not_start_has_no_pair(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="piecewise", control="base", plan="paired", boots=2, concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.5 * now.control.output_throughput

        @pytest.mark.sglang(server="piecewise", control="base", plan="paired", boots=2, concurrency=8)
        def test_again(sglang_perf):
            sglang_perf.measure()
        """
    )
    result = project.run("--sglang-report", "out")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(['*sglang server "piecewise" did not start: * (see test_perf.py::test_it)*'])
    assert project.report()["session"]["spent"]["boots"] == 2  # one of the control, and the one that crashed


def test_one_content_under_two_names_makes_pairs_too(project: Project) -> None:
    """A/A: what the pairs of a node differ by where nothing differs."""
    project.suite(SUITE.replace("  mscclpp:", "  again: {extends: base}\n  mscclpp:"))
    project.tests(
        """
        @pytest.mark.sglang(server="again", control="base", plan="paired", boots=2, concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput.equals(now.control.output_throughput, within=0.5)
        """
    )
    result = project.run("--sglang-report", "out")
    assert result.ret == 0
    report = project.report()
    assert report["session"]["spent"]["boots"] == 4
    (claim,) = report["tests"][0]["claims"]
    assert claim["verdict"]["effect"] != 1.0
