"""From a shell to a greeted agent, and the ways that fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_sglang_perf.errors import AgentError, ConnectionLost, NodeSetupError
from pytest_sglang_perf.nodes.bootstrap import BOOTSTRAP
from pytest_sglang_perf.nodes.local import LocalTransport
from pytest_sglang_perf.nodes.zipapp import archive


def test_hello_tells_who_answers(client):
    status = client.request("status", timeout=10)
    assert status["boots"] == []


def test_the_agent_is_uploaded_once_and_kept_private(new_client, tmp_path):
    new_client().connect()
    (kept,) = (tmp_path / "cache/sglang-perf/agents").glob("*.pyz")
    stamp = kept.stat().st_mtime_ns
    assert kept.name == f"agent-{archive().sha256}.pyz"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert new_client().connect()["agent"] == kept.stem
    assert kept.stat().st_mtime_ns == stamp


def test_a_damaged_copy_is_replaced_before_it_runs(new_client, tmp_path):
    new_client().connect()
    (kept,) = (tmp_path / "cache/sglang-perf/agents").glob("*.pyz")
    kept.write_bytes(b"raise SystemExit('not the agent')")
    new_client().connect()
    assert kept.read_bytes() == archive().data


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "csh", "tcsh", "ksh"])
def test_every_login_shell_passes_the_bootstrap_on(new_client, node_env, shell):
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    client = new_client(transport=LocalTransport(env=node_env, shell=path))
    assert client.connect()["protocol"] == 1


def test_no_shell_can_misread_the_bootstrap():
    assert not set("\n\\!`") & set(BOOTSTRAP)
    assert BOOTSTRAP.count("'") == 2


def test_a_greeting_of_start_up_files_is_skipped(new_client, node_env, tmp_path):
    noisy = tmp_path / "noisy"
    noisy.write_text('#!/bin/sh\nprintf \'Welcome {"to": 1}\\n{"bootstrap\'\nexec /bin/sh "$@"\n')
    noisy.chmod(0o755)
    client = new_client(transport=LocalTransport(env=node_env, shell=str(noisy)))
    assert client.connect()["protocol"] == 1


def test_no_such_interpreter(new_client):
    with pytest.raises(NodeSetupError, match=r"no Python interpreter '/no/such/python'"):
        new_client(python="/no/such/python").connect()


def test_an_interpreter_that_is_none(new_client):
    with pytest.raises(NodeSetupError, match="did not start"):
        new_client(python="/bin/false").connect()


def test_an_interpreter_path_with_spaces_and_quotes(new_client, tmp_path):
    odd = tmp_path / "my 'own' $HOME \"python\""
    odd.symlink_to(sys.executable)
    assert new_client(python=str(odd)).connect()["protocol"] == 1


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.8.18"])
def test_an_old_python_is_refused_with_advice(new_client, version):
    old = Path.home() / ".pyenv/versions" / version / "bin/python"
    if not old.exists():
        pytest.skip(f"no Python {version} here")
    with pytest.raises(NodeSetupError, match=rf"is Python {version}.*needs Python 3\.9 or newer"):
        new_client(python=str(old)).connect()


@pytest.mark.parametrize("version", ["3.9.18", "3.13.0"])
def test_the_oldest_and_a_new_python_run_it(new_client, version):
    python = Path.home() / ".pyenv/versions" / version / "bin/python"
    if not python.exists():
        pytest.skip(f"no Python {version} here")
    assert new_client(python=str(python)).connect()["python"] == version


def test_an_unwritable_cache(new_client, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(NodeSetupError, match="XDG_CACHE_HOME"):
        new_client().connect()


def test_unknown_orders_and_orders_without_a_hello_get_an_error(client):
    with pytest.raises(AgentError) as caught:
        client.request("make.coffee", timeout=10)
    assert caught.value.kind == "unknown_op"


def test_after_close_nothing_is_reachable(client):
    client.close()
    with pytest.raises(ConnectionLost):
        client.request("status", timeout=5)
