"""Somebody computes on the GPUs without a lease: refused by name, and never touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import uuid

import pytest

from pytest_sglang_perf.agent import procfs
from pytest_sglang_perf.errors import AgentError
from tests.integration.agent.waiting import until

# Answers the two queries that name processes; who computes is read anew from a file each time.
SMI = """
import sys
query = " ".join(sys.argv)
if "query-compute-apps" in query:
    print(open({processes!r}).read(), end="")
elif "uuid,index" in query:
    print("GPU-a, 0\\nGPU-b, 1")
elif "index,memory.used" in query:
    print({memory!r}, end="")
else:
    sys.exit("not asked for here")
"""


@pytest.fixture
def connect(new_client, tmp_path, computing):
    """Connect to a node whose GPUs have this much memory in use."""

    def connect(memory="0, 4\n1, 4\n", **options):
        smi = tmp_path / "smi.py"
        smi.write_text(SMI.format(processes=str(computing), memory=memory))
        client = new_client(nvidia_smi=[sys.executable, str(smi)], **options)
        client.connect()
        return client

    return connect


@pytest.fixture
def client(connect):
    return connect()


def acquire(client, gpus=None):
    return client.request("lease.acquire", timeout=60, gpus=gpus, wait_s=1, purpose="test")


def test_a_stranger_is_named_and_left_alone(client, computing, stranger):
    computing.write_text(f"GPU-b, {stranger.pid}, python\n")
    with pytest.raises(AgentError, match=rf"GPU 1 is used by pid {stranger.pid} of \S+: .*python") as caught:
        acquire(client)
    assert caught.value.kind == "gpu_in_use"
    processes = caught.value.details["processes"]
    assert isinstance(processes, list)
    assert [one["pid"] for one in processes] == [stranger.pid]
    # The refusal holds nothing: others get what is free, and so do we once he is gone.
    assert client.request("status", timeout=30)["leases"] == []
    computing.write_text("")
    assert acquire(client)["gpus"] is None


def test_on_other_gpus_he_is_in_nobodys_way(client, computing, stranger):
    computing.write_text(f"GPU-b, {stranger.pid}, python\n")
    assert acquire(client, [0])["gpus"] == [0]


def test_what_computes_for_others_is_no_stranger(client, computing):
    computing.write_text("GPU-a, 999999999, /usr/bin/nvidia-cuda-mps-server\n")
    assert acquire(client)["gpus"] is None


def test_who_holds_the_lease_is_not_asked_again(client, computing, stranger):
    acquire(client)
    computing.write_text(f"GPU-a, {stranger.pid}, our own server\n")
    assert acquire(client)["gpus"] is None


def test_one_of_another_container_is_said_to_be_invisible(client, computing):
    computing.write_text("GPU-a, 999999999, [Not Found]\n")
    with pytest.raises(AgentError, match=r"GPU 0 is used by pid 999999999 \(of another container .* not visible"):
        acquire(client)


def test_who_is_just_leaving_is_waited_for(client, computing, stranger):
    computing.write_text(f"GPU-a, {stranger.pid}, python\n")
    gone = threading.Timer(1.0, computing.write_text, [""])
    gone.start()
    assert acquire(client)["gpus"] is None
    gone.join()


def test_what_a_dead_session_left_is_no_stranger(client, computing):
    """It is reaped before anybody is asked who computes."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as agent:
        found = procfs.process(agent.pid)
        assert found is not None
        agent.kill()
    env = {**os.environ, "SGLANG_PERF_RUN": "f" * 32, "SGLANG_PERF_AGENT": f"{agent.pid}:{found.start}"}
    argv = [sys.executable, "-c", "import time; time.sleep(120)"]
    with subprocess.Popen(argv, env=env, start_new_session=True) as left:
        computing.write_text(f"GPU-a, {left.pid}, python\n")
        # The driver goes on naming it for a moment; here until it is seen to be gone.
        gone = threading.Thread(target=lambda: (left.wait(), computing.write_text("")))
        gone.start()
        assert acquire(client)["gpus"] is None
        gone.join(timeout=20)
        assert left.returncode == -9


def test_memory_that_nobody_is_named_for_is_a_warning(connect):
    answer = acquire(connect("0, 4\n1, 90000\n"))
    assert ["1 of 2 GPUs have up to 90000 MiB in use" in one for one in answer["warnings"]] == [True]


def test_a_whole_idle_node_has_no_warnings(client):
    assert acquire(client)["warnings"] == []


def test_half_a_node_is_shared_with_a_warning_that_says_with_whom(connect):
    (warning,) = acquire(connect(), [0])["warnings"]
    assert "the node's power, memory and links are shared with whoever takes the others" in warning
    other = connect(owner={"user": "ada", "host": "desk", "pid": os.getpid()})
    (warning,) = acquire(other, [1])["warnings"]
    assert re.search(r"shared now, since tester@here .* uses GPU 0", warning)


def test_a_live_session_is_told_from_strangers_by_owner_and_run(connect, computing, stranger):
    run = uuid.uuid4().hex
    acquire(connect(run=run, owner={"user": "ada", "host": "desk", "pid": os.getpid()}))
    here = procfs.process(os.getpid())
    assert here is not None
    env = {**os.environ, "SGLANG_PERF_RUN": run, "SGLANG_PERF_AGENT": f"{here.pid}:{here.start}"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as server:
        until(lambda: procfs.variable(server.pid, "SGLANG_PERF_RUN"), "it runs")
        computing.write_text(f"GPU-a, {server.pid}, sglang\nGPU-b, {stranger.pid}, python\n")
        answer = connect().request("reap", timeout=60)
        assert server.poll() is None
        server.kill()
    assert answer["killed"] == []
    (session,) = answer["sessions"]
    assert (session["run"], session["user"], session["host"]) == (run, "ada", "desk")
    assert [one["pid"] for one in session["processes"]] == [server.pid]
    assert [one["pid"] for one in answer["foreign"]] == [stranger.pid]
