"""A real sglang with a key and a token: it has them, and nobody else can read them anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests._markers import WATCH_COMMAND_LINES, found_in_files, found_in_text, markers

from .test_local_node import nothing_is_left

if TYPE_CHECKING:
    import pytest

    from .conftest import Project

TESTS = """
import requests

@pytest.mark.sglang(server="base", concurrency=1)
def test_it(sglang_server, sglang_perf):
    url = sglang_server.url + "/get_model_info"
    key = {"Authorization": "Bearer " + os.environ["MY_API_KEY"]}
    statuses = requests.get(url, timeout=30).status_code, requests.get(url, headers=key, timeout=30).status_code
    assert statuses == (401, 200)
    assert exposed() == set()
    sglang_perf.measure()
    assert exposed() == set()
    print(sglang_server.log, sglang_server.server_info(), sglang_server.facts)
    assert "api_key" in sglang_server.log
"""


def test_no_marker_is_found_anywhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    values = markers()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for name in ("cache", "tmp"):
        (project.pytester.path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.pytester.path / "cache"))
    monkeypatch.setenv("TMPDIR", str(project.pytester.path / "tmp"))
    suite = project.pytester.path / "sglang-perf.yaml"
    secrets = "  base:\n    secret_env: [HF_TOKEN]\n    secret_args: {api-key: MY_API_KEY}\n"
    suite.write_text(suite.read_text().replace("  base:\n", secrets, 1))
    project.write_tests(WATCH_COMMAND_LINES + TESTS)
    result = project.run("-s", "--sglang-report", "out", "--update-baselines")
    assert result.ret == 0, result.stdout.str()
    nothing_is_left(project)
    assert found_in_text(result.stdout.str() + result.stderr.str(), values) == []
    assert found_in_files([project.pytester.path], values) == {}
    assert list((project.pytester.path / "cache").rglob("boot-*.log"))
