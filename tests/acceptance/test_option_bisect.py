"""--sglang-bisect: from a crash to the flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
