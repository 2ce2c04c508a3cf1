"""--sglang-bisect: from a crash, or a claim that is violated, to the flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Project

SUITE = """
nodes:
  sim: {kind: sim, profile: tiny}
servers:
  base: {model: tiny/model, args: {disable-radix-cache: true}}
  changed:
    extends: base
    args:
      chunked-prefill-size: 1024
      cuda-graph-max-bs: 64
      decode-log-interval: 20
      disable-radix-cache: null
      enforce-piecewise-cuda-graph: true
      log-level: info
      max-prefill-tokens: 2048
      max-running-requests: 128
      num-continuous-decode-steps: 4
      schedule-policy: fcfs
      stream-interval: 2
      watchdog-timeout: 200
workloads:
  short: {input_len: 8, output_len: 8, concurrency: 1}
"""


def test_the_culprit_among_twelve_flags_is_named_in_at_most_eight_boots(project: Project) -> None:
    project.suite(SUITE)
    project.tests(
        """
        @pytest.mark.sglang(server="changed")
        def test_it(sglang_server): ...
        """
    )
    result = project.run("--sglang-bisect", "--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*blame   args.enforce-piecewise-cuda-graph (* boots; base boots without)*"])
    # the crash itself, the parent, and the search
    assert project.report()["session"]["spent"]["boots"] <= 2 + 8


SLOW = SUITE.replace("enforce-piecewise-cuda-graph: true", "disable-cuda-graph: true").replace(
    "max-running-requests: 128", "max-running-requests: 1"
)
CLAIM = """
    @pytest.mark.sglang(server="changed", control="base", concurrency=8{more})
    def test_it(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= {factor} * now.control.output_throughput
    """


def slow_suite(project: Project) -> None:
    project.suite(SLOW.replace("concurrency: 1}", "concurrency: [8], requests: {8: 200}}\ntrials: 2"))


@pytest.mark.parametrize("plan", ["", ', plan="paired", boots=2'])
def test_what_makes_a_config_slow_is_named_in_at_most_eight_boots(project: Project, plan: str) -> None:
    """Two of its changes cost throughput; only one of them as much as the claim allows."""
    slow_suite(project)
    project.tests(CLAIM.format(factor=0.4, more=plan))
    result = project.run("--sglang-bisect", "--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*violated: output_throughput >= 0.4 x control*"])
    result.stdout.fnmatch_lines(["*blame: args.max-running-requests (* boots; base meets it without)*"])
    report = project.report()
    assert report["session"]["spent"]["boots"] <= (4 if plan else 2) + 8
    (test,) = report["tests"]
    assert test["claims"][0]["blame"].startswith("blame: args.max-running-requests (")
    result.stderr.fnmatch_lines(["*bisecting the regression at concurrency 8 of changed: 12 changes against base*"])


def test_nothing_is_searched_for_what_was_expected_to_be_refuted(project: Project) -> None:
    slow_suite(project)
    project.tests(CLAIM.format(factor=0.4, more=', expect="refuted", reason="known"'))
    result = project.run("--sglang-bisect", "--sglang-report", "out")
    assert result.ret == 0, result.stdout.str()
    assert project.report()["session"]["spent"]["boots"] == 2
