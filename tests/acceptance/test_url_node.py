"""A server that somebody else started, measured at its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.sim._node import Node, Server, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Project

SUITE = """
default_node: theirs
nodes:
  theirs: {{kind: url, url: "http://127.0.0.1:{port}"{more}}}
servers:
  base: {{model: tiny/model}}
  mscclpp: {{extends: base, args: {{enable-mscclpp: true}}}}
workloads:
  short: {{input_len: 32, output_len: 16, concurrency: [4], requests: 24}}
margins: {{output_throughput: 0.5}}
trials: 2
boots: [1, 3]
"""
TEST = """
@pytest.mark.sglang(server="base")
def test_it_serves(sglang_server):
    assert sglang_server.url.startswith("http://127.0.0.1:")
    assert sglang_server.server_info()["model_path"] == "m"

@pytest.mark.sglang(server="base", concurrency=4)
def test_it_keeps_its_figures(sglang_perf):
    now = sglang_perf.measure()
    assert now.output_throughput >= 0.5 * now.baseline.output_throughput
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Server]:
    with Node(tmp_path, time_scale="1").server() as running:
        yield running


def test_a_server_of_others_is_measured_and_left_running(project: Project, theirs: Server) -> None:
    project.suite(SUITE.format(port=theirs.port, more=""))
    project.tests(TEST)
    recorded = project.run("--update-baselines")
    recorded.stderr.fnmatch_lines(["*attached to http://127.0.0.1:*"])
    assert list(project.baselines()) == [f"url-127-0-0-1-{theirs.port}/base.json"]
    project.run("--sglang-report", "out").assert_outcomes(passed=2)
    assert project.report()["session"]["spent"]["boots"] == 0
    assert theirs.get("/health")[0] == 200


def test_an_openai_like_api_is_measured_with_the_model_that_it_names(project: Project, theirs: Server) -> None:
    project.suite(SUITE.format(port=theirs.port, more=", api: completions"))
    project.tests(TEST)
    project.run("--update-baselines", "-k", "figures")
    assert list(project.baselines()) == [f"url-127-0-0-1-{theirs.port}/base.json"]


def test_power_of_a_machine_that_is_not_shown_is_absent_with_the_reason(project: Project, theirs: Server) -> None:
    project.suite(SUITE.format(port=theirs.port, more=""))
    project.tests(
        """
        @pytest.mark.sglang(server="base", concurrency=4)
        def test_power(sglang_perf):
            assert sglang_perf.measure().power_draw <= 100
        """
    )
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*power_draw*started by someone else*"])


def test_a_server_of_others_that_dies_under_load_is_told_with_the_level(project: Project, theirs: Server) -> None:
    project.suite(SUITE.format(port=theirs.port, more="").replace("requests: 24", "requests: 4000"))
    project.tests(
        f"""
        import os, signal, threading

        @pytest.mark.sglang(server="base", concurrency=4)
        def test_it(sglang_perf):
            threading.Timer(2, os.killpg, ({theirs.process.pid}, signal.SIGKILL)).start()
            sglang_perf.measure()
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the server at http://127.0.0.1:*failed at concurrency 4, after * finished*"])


def test_tests_of_a_second_config_are_refused_before_anything_runs(project: Project) -> None:
    project.suite(SUITE.format(port=free_port(), more=""))
    project.tests(
        """
        @pytest.mark.sglang(server="mscclpp", control="base", concurrency=4)
        def test_it_pays(sglang_perf): ...
        """
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*one running server at http://127.0.0.1:*need 2: base, mscclpp*"])


def test_nobody_answers(project: Project) -> None:
    project.suite(SUITE.format(port=free_port(), more=""))
    project.tests(TEST)
    result = project.run()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*no server answers at http://127.0.0.1:*start it there*"])
    result.stdout.no_fnmatch_line("*Traceback*")
