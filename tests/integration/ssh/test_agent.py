"""The real agent over a real sshd: upload, orders, a lost session, jump hosts, and its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from pytest_sglang_perf.errors import AgentError, NodeSetupError
from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.ssh import SshTransport
from tests._sshd import wait_until

pytestmark = pytest.mark.sshd


@pytest.fixture
def node(make_sshd, tmp_path):
    """A server on which an agent keeps to folders of its own."""
    return make_sshd(extra=f"SetEnv XDG_CACHE_HOME={tmp_path}/cache SGLANG_PERF_LEASE_DIR={tmp_path}/lease")


@pytest.fixture
def new_client():
    made = []

    def make(transport, **overrides):
        options: dict[str, Any] = {"ttl_s": 20.0, "grace_s": 5.0, "python": sys.executable} | overrides
        owner = {"user": "tester", "host": "here", "pid": os.getpid()}
        client = AgentClient(transport, run=uuid.uuid4().hex, owner=owner, **options)
        made.append((client, transport))
        return client

    yield make
    for client, transport in made:
        client.close()
        transport.close()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_hello(node, new_client):
    client = new_client(node.transport())
    hello = client.connect()
    assert hello["host"]
    assert alive(hello["pid"])
    assert client.describe() == f"ssh {node.user}@127.0.0.1:{node.port}"


def test_the_agent_is_sent_once(node, new_client, tmp_path):
    first = new_client(node.transport())
    first.connect()
    (kept,) = (tmp_path / "cache" / "sglang-perf" / "agents").glob("agent-*.pyz")
    stamp = kept.stat().st_mtime_ns
    second = new_client(node.transport())
    second.connect()
    assert kept.stat().st_mtime_ns == stamp
    assert kept.stat().st_mode & 0o777 == 0o600


def test_closing_leaves_in_time_and_ends_the_agent(node, new_client):
    transport = node.transport()
    client = new_client(transport)
    pid = client.connect()["pid"]
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 3
    wait_until(lambda: not alive(pid), what="the end of the agent")
    transport.close()
    wait_until(lambda: not node.sessions(), what="the end of sshd's session")


def test_a_killed_session_is_resumed_by_the_same_agent(node, new_client):
    client = new_client(node.transport())
    pid = client.connect()["pid"]
    for session in node.sessions():
        os.kill(session, signal.SIGKILL)
    assert isinstance(client.request("status", timeout=20), dict)
    assert client.lost is None
    assert alive(pid)


def test_an_agent_whose_node_is_frozen_is_lost_and_comes_back_with_it(node, new_client):
    client = new_client(node.transport(keepalive_s=0.3))
    client.connect()
    frozen = node.sessions()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    # The listener still serves, so that coming back takes a new connection and nothing else.
    assert isinstance(client.request("status", timeout=20), dict)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)


def test_many_orders_at_once(node, new_client):
    client = new_client(node.transport())
    client.connect()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.request("status", timeout=20))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20


def test_through_a_jump_host(node, make_sshd, new_client, tmp_path):
    gate = make_sshd()
    config = tmp_path / "config"
    config.write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n"
        f"  IdentityFile {gate.user_key}\n  UserKnownHostsFile {gate.known_hosts}\n"
        f"Host node\n  ProxyJump gate\n{node.config.read_text()}"
    )
    hello = new_client(SshTransport("node", config_file=config)).connect()
    assert alive(hello["pid"])
    assert gate.sessions()


def test_a_missing_interpreter_is_a_setup_error(node, new_client):
    with pytest.raises(NodeSetupError, match="/no/such/python"):
        new_client(node.transport(), python="/no/such/python").connect()


def test_an_unknown_order_is_refused_in_words(node, new_client):
    client = new_client(node.transport())
    client.connect()
    with pytest.raises(AgentError):
        client.request("no.such.order", timeout=10)
