"""Paired plans where pairs of one level are not those of another, and claims that rest on other sides than usual."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Project

#: In a project's conftest: the second boot of fusion has no throughput.
ABSENT = """
from pytest_sglang_perf.measured import BootRecord
known = BootRecord.values
def values(self, want, metric):
    if metric == "output_throughput" and self.number == 2 and self.server == "fusion":
        return ()
    return known(self, want, metric)
BootRecord.values = values
"""


def began(report: dict[str, Any], level: float, candidate: str) -> list[str]:
    """Which side came first in each pair that measured a level, where all boots of a session are in pairs."""
    boots = sorted({(m["started"], m["server"]) for m in report["measured"] if m["level"] == level})
    return ["candidate" if name == candidate else "reference" for _, name in boots[::2]]


def test_drift_is_told_by_the_pairs_as_they_were_begun(project: Project) -> None:
    """Level 1 is behind level 8, and level 32 comes along in the pairs of both: one of them began the other way."""
    project.tests(
        """
        fusion = pytest.mark.sglang(server="fusion", control="base", plan="paired")

        @fusion(concurrency=[1, 8], boots=(1, 2))
        def test_low(sglang_perf):
            low, high = sglang_perf.measure(1), sglang_perf.measure(8)
            for now in (high, low):  # undecided: a second pair each
                ratio = float(now.output_throughput) / float(now.control.output_throughput)
                assert now.output_throughput >= ratio * now.control.output_throughput

        @fusion(concurrency=32, boots=(1, 2))
        def test_high(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.1 * now.control.output_throughput
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn")
    report = project.report()
    (claim,) = report["tests"][1]["claims"]
    order = began(report, 32, "fusion")
    assert claim["candidate"]["boots"] == len(order)
    assert claim["verdict"]["balanced"] == (order.count("candidate") == order.count("reference"))
    assert ("which ABBA pairs cancel" in " ".join(claim["explanation"])) == claim["verdict"]["balanced"]


def test_the_next_pair_begins_the_other_way_also_when_a_boot_of_the_first_died(project: Project) -> None:
    project.tests(
        """
        ep8 = pytest.mark.sglang(server="ep8", control="base", plan="paired")

        @ep8(concurrency=1, boots=(1, 2))
        def test_1(sglang_perf):
            now = sglang_perf.measure()
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput

        @ep8(concurrency=32)
        def test_32(sglang_perf):
            sglang_perf.measure()

        @ep8(concurrency=8, boots=2)
        def test_8(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.1 * now.control.output_throughput
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn")
    report = project.report()
    (claim,) = report["tests"][2]["claims"]
    assert claim["candidate"]["boots"] == 2
    assert claim["verdict"]["balanced"]
    last = [name for _, name in sorted({(m["started"], m["server"]) for m in report["measured"] if m["level"] == 8})][
        -4:
    ]
    assert last in (["base", "ep8", "ep8", "base"], ["ep8", "base", "base", "ep8"])


def test_pairs_without_the_metric_do_not_count(project: Project) -> None:
    (project.path / "conftest.py").write_text(ABSENT)
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", plan="paired", boots=3, concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput <= 10 * now.control.output_throughput
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn")
    (claim,) = project.report()["tests"][0]["claims"]
    assert claim["candidate"]["boots"] == 2  # pairs 1 and 3, which base has begun both
    assert not claim["verdict"]["balanced"]
    assert claim["verdict"]["trend"] is None
    assert any(
        "the reference began all pairs: drift of the node is in" in text for text in claim["verdict"]["warnings"]
    )


def test_a_metric_that_further_pairs_lack_is_not_waited_for(project: Project) -> None:
    (project.path / "conftest.py").write_text(ABSENT)
    project.tests(
        """
        @pytest.mark.sglang(server="fusion", control="base", plan="paired", boots=(1, 2), concurrency=8)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn")
    assert project.report()["session"]["spent"]["boots"] <= 4


CLAIMS = {
    "a limit for the control": "assert now.control.output_throughput >= float(now.control.output_throughput)",
    "a limit for the baseline": "assert now.baseline.output_throughput >= float(now.baseline.output_throughput)",
    "against another level's control": """
            ratio = float(now.output_throughput) / float(low.control.output_throughput)
            assert now.output_throughput >= ratio * low.control.output_throughput""",
}


@pytest.mark.parametrize("plan", ["paired", "gate"])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_boots_that_do_not_help_a_claim_are_not_taken_for_ever(project: Project, claim: str, plan: str) -> None:
    project.tests(
        f"""
        @pytest.mark.sglang(server="fusion", control="base", plan="{plan}", concurrency=[1, 8], boots=(1, 2))
        def test_it(sglang_perf):
            now, low = sglang_perf.measure(8), sglang_perf.measure(1)
            {claim}
        """
    )
    if "baseline" in claim:
        project.run("--update-baselines")
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn", timeout=90)
    report = project.report()
    assert report["tests"][0]["error"] is None
    assert report["tests"][0]["claims"][0]["status"] == "inconclusive"
    assert report["session"]["spent"]["boots"] <= 4


def stored(project: Project, server: str) -> list[int]:
    (text,) = [data for name, data in project.baselines().items() if name.endswith(f"{server}.json")]
    workloads = json.loads(text)["workloads"]
    return [boot["boot"] for levels in workloads.values() for boot in levels["8"]]


def test_only_boots_asked_for_arestored(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=8, boots=(1, 3))
        def test_alone(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= float(now.output_throughput)

        @pytest.mark.sglang(server="base", control="fusion", plan="paired", concurrency=8)
        def test_pair(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.1 * now.control.output_throughput
        """
    )
    project.run("--update-baselines", "--sglang-report", "out", "--sglang-inconclusive", "warn")
    asked = [m["boot"] for m in project.report()["measured"] if m["server"] == "base" and m["asked_for"]]
    assert asked == [1, 4]
    assert stored(project, "base") == asked


def test_a_baseline_against_the_control_is_what_it_says(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base", control="fusion", plan="paired", concurrency=8, boots=2)
        def test_it(sglang_perf):
            now = sglang_perf.measure()
            now.baseline.output_throughput >= 0.1 * now.control.output_throughput
        """
    )
    project.run("--update-baselines")
    project.run("--sglang-report", "out")
    (claim,) = project.report()["tests"][0]["claims"]
    assert claim["candidate"]["label"] == "baseline"


def test_a_first_pair_that_was_asked_for_is_stored_where_an_earlier_boot_died(project: Project) -> None:
    project.tests(
        """
        fusion = pytest.mark.sglang(server="fusion", control="base", plan="paired", boots=(1, 2))

        @fusion(concurrency=8)
        def test_8(sglang_perf):
            now = sglang_perf.measure()
            sglang_perf.session.bench.current.dead = lambda: "killed while idle"
            ratio = float(now.output_throughput) / float(now.control.output_throughput)
            assert now.output_throughput >= ratio * now.control.output_throughput

        @fusion(concurrency=1)
        def test_1(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput <= 1.1 * now.control.output_throughput
        """
    )
    project.run("--sglang-report", "out", "--sglang-inconclusive", "warn", "--update-baselines")
    report = project.report()
    assert [m["asked_for"] for m in report["measured"] if (m["server"], m["level"]) == ("fusion", 1)] == [True]
