"""Secrets end to end: with HF_TOKEN and an API key set to markers, no marker is found anywhere afterwards."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tests._markers import WATCH_COMMAND_LINES, found_in_files, found_in_text, markers

from .conftest import SUITE

if TYPE_CHECKING:
    from .conftest import Project

TESTS = """
    def authorized(server):
        import urllib.error, urllib.request
        def status(headers):
            try:
                request = urllib.request.Request(server.url + "/get_model_info", headers=headers)
                return urllib.request.urlopen(request, timeout=30).status
            except urllib.error.HTTPError as error:
                return error.code
        return status({}), status({"Authorization": "Bearer " + os.environ["MY_API_KEY"]})

    @pytest.mark.sglang(server="base", concurrency=8)
    def test_it_is_measured(sglang_server, sglang_perf):
        # The key works, so it has reached the server, and the load has it too.
        assert authorized(sglang_server) == (401, 200)
        assert exposed() == set()
        assert sglang_perf.measure().output_throughput.value > 0
        assert exposed() == set()
        print(sglang_server.log, sglang_server.server_info(), sglang_server.facts)

    @pytest.mark.sglang(server="unknown-flag")
    def test_it_crashes(sglang_server): ...

    @pytest.mark.sglang(server="base", concurrency=8)
    def test_it_fails(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 100 * now.baseline.output_throughput
"""


def test_no_marker_is_found_in_any_file_output_or_command_line(project: Project) -> None:
    values = markers()
    for name, value in values.items():
        project.env.setenv(name, value)
    for name in ("cache", "tmp"):
        (project.path / name).mkdir()
    project.env.setenv("XDG_CACHE_HOME", str(project.path / "cache"))
    project.env.setenv("TMPDIR", str(project.path / "tmp"))
    project.env.setenv("GITHUB_ACTIONS", "true")
    project.env.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    project.suite(
        SUITE.replace(
            "{model: tiny/model, ",
            "{model: tiny/model, secret_env: [HF_TOKEN], secret_args: {api-key: MY_API_KEY}, ",
        )
    )
    project.tests(WATCH_COMMAND_LINES + textwrap.dedent(TESTS))
    common = ("-v", "-s", "--sglang-node", "sim", "--sglang-report", "out", "--junitxml", "junit.xml")
    recorded = project.run(*common, "--update-baselines", "-k", "measured")
    judged = project.run(*common, "--showlocals", "-o", "log_level=DEBUG")
    judged.assert_outcomes(passed=1, failed=1, errors=1)
    for result in (recorded, judged):
        assert found_in_text(result.stdout.str() + result.stderr.str(), values) == []
    assert found_in_files([project.path], values) == {}
    # It was looked at in the right places: what must have been written is there.
    assert (project.path / "summary.md").read_text()
    for pattern in ("out/run.json", "out/report.html", "out/logs/*.log", "baselines/*/*.json", "cache/**/boot-*.log"):
        assert list(project.path.glob(pattern)), pattern
    # The log does hold the arguments, with the key masked.
    assert any("api_key" in log.read_text() for log in (project.path / "cache").rglob("boot-*.log"))
