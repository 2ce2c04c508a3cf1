"""A server that silently stops producing: told as a crash with its level, and the session goes on with a fresh boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project


def test_a_frozen_server_is_told_and_the_next_level_gets_a_fresh_boot(project: Project) -> None:
    # It freezes at its 31st request: in the trial of level 8, and not in that of level 1 on a server of its own.
    suite = SUITE.replace("profile: tiny}", 'profile: tiny, fail: "frozen:30"}', 1).replace("trials: 2", "trials: 1")
    project.suite(suite.replace("requests: {", "limits: {silent_s: 2}, requests: {", 1))
    project.tests(
        """
        @pytest.mark.sglang(server="base")
        @pytest.mark.parametrize("concurrency", [8, 1])
        def test_it(sglang_perf, concurrency):
            assert sglang_perf.measure().output_throughput.value > 0
        """
    )
    result = project.run("-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*1*PASSED*",
            '*"base" crashed under load at concurrency 8, after [1-9]* finished requests: scheduler-hang*',
            "*no progress for * s: no stream received a byte, and the server's log said nothing*",
            "*| *batch*",
            "*spent 2 boots*",
        ]
    )
