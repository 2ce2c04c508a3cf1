"""The canary: a node that moved while the session ran voids it; one that stood still does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project

WATCHED = SUITE.replace(
    "sim: {kind: sim, profile: tiny}",
    "sim: {kind: sim, profile: tiny, canary: {server: base, concurrency: 8, margin: 0.2}}",
)
TEST = """
    @pytest.mark.sglang(server="mscclpp", concurrency=8)
    def test_it(sglang_perf):
        assert sglang_perf.measure().output_throughput >= 0.5
    """


def test_a_node_that_stands_still_is_said_to(project: Project) -> None:
    project.suite(WATCHED)
    project.tests(TEST)
    result = project.run("--sglang-report", "out")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*simulated holds*", "canary base at concurrency 8: output_throughput * before, *"])
    canary = project.report()["session"]["canary"]
    assert canary["status"] in {"steady", "cannot tell"}
    assert project.report()["session"]["spent"]["boots"] == 3


@pytest.mark.parametrize(("how", "exit_status"), [((), 1), (("--sglang-inconclusive", "warn"), 0), (("-n", "1"), 1)])
def test_a_node_that_moved_voids_the_session(project: Project, how: tuple[str, ...], exit_status: int) -> None:
    project.env.setenv("SGLANG_SIM_SLOWING", "0.01")
    project.suite(WATCHED)
    project.tests(TEST)
    result = project.run("--sglang-report", "out", "--update-baselines", *how)
    assert result.ret == exit_status
    words = "the node itself moved, so every verdict of this session is void*"
    if exit_status:
        result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", words, "*1 passed, 1 error*"])
    result.stdout.fnmatch_lines(["*simulated inconclusive*", f"*note: void: {words}", words, "*the session is void*"])
    report = project.report()
    assert report["session"]["canary"]["status"] == "moved"
    assert report["tests"][0]["outcome"] == "inconclusive"
    assert report["tests"][0]["claims"][0]["status_before_void"] == "holds"
    assert not (project.path / "baselines").exists()


def test_a_canary_that_crashes_ends_the_session_before_it_costs_hours(project: Project) -> None:
    project.suite(WATCHED.replace("canary: {server: base", "canary: {server: piecewise"))
    project.tests(TEST)
    result = project.run("--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*the canary could not be measured before the tests, so nothing of this session counts*"]
    )
    assert project.report()["session"]["spent"]["boots"] == 1


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{server: bas, concurrency: 8}", "*'bas' is not among the servers*did you mean*base*"),
        ("{server: base, concurrency: 9}", "*9 is not a level of 'short'; it has 1, 8, 32*"),
        ("{server: base}", "*nodes.sim.canary: the key 'concurrency' is missing*"),
    ],
)
def test_a_canary_that_cannot_be_is_an_error_of_the_suite(project: Project, written: str, message: str) -> None:
    project.suite(SUITE.replace("sim: {kind: sim, profile: tiny}", f"sim: {{kind: sim, canary: {written}}}"))
    project.tests(TEST)
    result = project.run()
    result.stderr.fnmatch_lines([message])
