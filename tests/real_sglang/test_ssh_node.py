"""The same through a real sshd on 127.0.0.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import _sshd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Project

pytestmark = pytest.mark.sshd


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[_sshd.Sshd]:
    server = _sshd.start(tmp_path / "sshd", host_keys=("ed25519",))
    yield server
    server.stop()


def test_a_session_over_ssh(project: Project, sshd: _sshd.Sshd) -> None:
    project.write_suite(
        extra_nodes=f"  there: {{kind: ssh, host: 127.0.0.1, port: {sshd.port}, user: {sshd.user}, "
        f"identity_file: {sshd.user_key}, known_hosts: {sshd.known_hosts}}}"
    )
    project.write_tests(
        """
        import requests

        @pytest.mark.sglang(server="base", concurrency=8)
        def test_figures(sglang_perf):
            now = sglang_perf.measure()
            assert now.output_throughput >= 0.5 * now.baseline.output_throughput

        @pytest.mark.sglang(server="base")
        def test_forwarded(sglang_server):
            assert requests.get(f"{sglang_server.url}/health", timeout=30).status_code == 200

        @pytest.mark.sglang(server="unknown-flag", expect="blocked", crash="bad-flag", reason="this version has it not")
        def test_unknown_flag(sglang_server): ...
        """
    )
    first = project.run("--sglang-node", "there", "--update-baselines")
    assert first.ret == 0, first.stdout.str()
    second = project.run("--sglang-node", "there")
    assert second.ret == 0, second.stdout.str()
    second.stdout.fnmatch_lines(["*2 passed*1 blocked*"])
