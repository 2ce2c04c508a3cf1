"""Whoever is killed, nothing of ours is left and the lease is free: controller, agent, guardian, or both at once."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest

from pytest_sglang_perf.agent import procfs
from pytest_sglang_perf.agent.sweep import RUN_VARIABLE
from pytest_sglang_perf.errors import AgentError
from tests.integration.agent.waiting import until

# The promise: within max(TTL, grace) + 15 s. These tests use a TTL of 2 s and a grace of 1 s.
PROMISE_S = 2 + 15


def carriers(run):
    return [
        one.pid
        for one in procfs.all_processes().values()
        if not one.dead and procfs.variable(one.pid, RUN_VARIABLE) == run
    ]


def gone(pid):
    one = procfs.process(pid)
    return one is None or one.dead


def guardian_of(agent):
    one = procfs.process(agent)
    assert one is not None
    return one.ppid


@pytest.fixture
def busy(new_client, boot_fake, tmp_path):
    """A node at work: lease held, a server with workers and an escaped grandchild that wiped its environment."""
    run = uuid.uuid4().hex
    client = new_client(run=run, ttl_s=2.0, grace_s=1.0)
    hello = client.connect()
    client.request("lease.acquire", timeout=10, gpus=None, wait_s=5, purpose="test")
    note = tmp_path / "escaped"
    events = boot_fake(client, children=["sglang::scheduler"], escaped=str(note), term="ignore")
    ready = events.wait("boot.ready")
    pids = [int(note.read_text()), *(child["pid"] for child in ready["children"]), ready["listener_pid"]]
    assert len(set(pids)) >= 3
    return client, hello["pid"], run, sorted(set(pids))


def nothing_is_left(agent, guardian, run, pids):
    until(lambda: not carriers(run), "no process carries the run's id", timeout=PROMISE_S)
    until(lambda: all(gone(pid) for pid in [agent, guardian, *pids]), "all processes are gone", timeout=PROMISE_S)


def lease_is_free(new_client):
    client = new_client()
    client.connect()
    client.request("lease.acquire", timeout=PROMISE_S + 10, gpus=None, wait_s=PROMISE_S, purpose="next")


def test_the_controller_vanishes(busy, new_client):
    client, agent, run, pids = busy
    guardian = guardian_of(agent)
    client._closing.set()
    client._channel.close()
    nothing_is_left(agent, guardian, run, pids)
    lease_is_free(new_client)


def test_the_connection_falls_silent(busy, new_client):
    client, agent, run, pids = busy
    guardian = guardian_of(agent)
    client._channel.send = lambda data, *, timeout: None  # as a cut cable: no end of input, no heartbeat
    nothing_is_left(agent, guardian, run, pids)
    lease_is_free(new_client)


def test_the_agent_is_killed(busy, new_client):
    client, agent, run, pids = busy
    guardian = guardian_of(agent)
    os.kill(agent, signal.SIGKILL)
    nothing_is_left(agent, guardian, run, pids)
    lease_is_free(new_client)
    until(lambda: client.lost, "the client knows")


def test_the_guardian_is_killed(busy, new_client):
    _, agent, run, pids = busy
    guardian = guardian_of(agent)
    os.kill(guardian, signal.SIGKILL)
    nothing_is_left(agent, guardian, run, pids)
    lease_is_free(new_client)


def test_both_are_killed_and_the_next_session_cleans_up(busy, new_client):
    _, agent, run, pids = busy
    guardian = guardian_of(agent)
    os.kill(guardian, signal.SIGSTOP)  # so that it cannot act between the two
    os.kill(agent, signal.SIGKILL)
    os.kill(guardian, signal.SIGKILL)
    lease_is_free(new_client)
    nothing_is_left(agent, guardian, run, pids)


def test_the_lease_is_not_free_before_the_guardian_has_swept(busy, new_client):
    _, agent, _, pids = busy
    guardian = guardian_of(agent)
    os.kill(guardian, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    try:
        other = new_client()
        other.connect()
        with pytest.raises(AgentError) as caught:
            other.request("lease.acquire", timeout=10, gpus=[0], wait_s=0.3, purpose="too early")
        assert caught.value.kind == "lease_unavailable"
    finally:
        os.kill(guardian, signal.SIGCONT)
    other.request("lease.acquire", timeout=30, gpus=None, wait_s=PROMISE_S, purpose="then")
    assert all(gone(pid) for pid in pids)


def test_the_hard_ceiling_ends_everything(new_client, boot_fake):
    run = uuid.uuid4().hex
    client = new_client(run=run, max_runtime_s=6.0, grace_s=0.5)
    began = time.monotonic()
    agent = client.connect()["pid"]
    boot_fake(client).wait("boot.ready")
    until(lambda: gone(agent), "the agent has ended", timeout=30)
    until(lambda: not carriers(run), "nothing is left")
    assert time.monotonic() - began > 5
