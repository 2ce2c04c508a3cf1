"""Somebody computes on the GPUs without a lease: refused by name, and never touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_sglang_perf.errors import AgentError

# Answers the two queries that name processes; who computes is read anew from a file each time.
SMI = """
import sys
query = " ".join(sys.argv)
if "query-compute-apps" in query:
    print(open({processes!r}).read(), end="")
elif "uuid,index" in query:
    print("GPU-a, 0\\nGPU-b, 1")
else:
    sys.exit("not asked for here")
"""


@pytest.fixture
def stranger():
    """A process of somebody who knows no leases."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None, "it was ended"
        process.kill()


@pytest.fixture
def computing(tmp_path):
    """The file that says who computes."""
    path = tmp_path / "processes.csv"
    path.write_text("")
    return path


@pytest.fixture
def client(new_client, tmp_path, computing):
    smi = tmp_path / "smi.py"
    smi.write_text(SMI.format(processes=str(computing)))
    client = new_client(nvidia_smi=[sys.executable, str(smi)])
    client.connect()
    return client


def acquire(client, gpus=None):
    return client.request("lease.acquire", timeout=60, gpus=gpus, wait_s=1, purpose="test")


def test_a_stranger_is_named_and_left_alone(client, computing, stranger):
    computing.write_text(f"GPU-b, {stranger.pid}, python\n")
    with pytest.raises(AgentError, match=rf"GPU 1 is used by pid {stranger.pid} of \S+: .*python") as caught:
        acquire(client)
    assert caught.value.kind == "gpu_in_use"
    assert [one["pid"] for one in caught.value.details["processes"]] == [stranger.pid]
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
