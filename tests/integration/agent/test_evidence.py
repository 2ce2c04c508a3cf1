"""What the agent tells about a server that died or hangs, besides its log."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_sglang_perf.agent import procfs, stacks
from pytest_sglang_perf.nodes.local import LocalTransport
from tests.integration.agent.test_boot import workers
from tests.integration.agent.waiting import until

FAULT = "[  200.5] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BEFORE = "[  100.5] NVRM: Xid (PCI:0000:c1:00): 48, an old one"


def program(path: Path, text: str) -> None:
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)


@pytest.fixture
def kernel(tmp_path, new_client, node_env):
    """A client whose node has a kernel log of ours (a file) and one sick GPU of two."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "dmesg.log"
    log.write_text(BEFORE + "\n")
    program(folder / "dmesg", f"exec cat {log}")
    smi = folder / "nvidia-smi"
    program(
        smi,
        """
        case "$*" in
          *memory.total*) case "$*" in
            *clocks_event*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;; esac
            echo "0, 71000, 81559, 97, 61, 700.00, 700.00, 1980, 0"
            echo "Unable to determine the device handle for GPU1: Unknown Error";;
          *) echo "0, 10";;
        esac
        """,
    )
    transport = LocalTransport(env={**node_env, "PATH": f"{folder}:{os.environ['PATH']}"})
    client = new_client(transport=transport, nvidia_smi=[str(smi)])
    client.connect()
    return client, log


def test_a_death_is_told_with_the_kernels_word_and_the_gpus(kernel, boot_fake):
    client, log = kernel
    events = boot_fake(client, children=["sglang::scheduler"])
    events.wait("boot.ready")
    with log.open("a") as file:
        file.write(FAULT + "\n[  201.0] Out of memory: Killed process 1 (somebody-elses)\n")
    os.kill(workers(events.started)[0], signal.SIGKILL)
    events.wait("boot.child_died")
    told = client.request("boot.evidence", timeout=30, boot="b1", stacks=False)
    assert told["kernel_readable"] is True
    assert told["kernel_log"] == ["[200.5] " + FAULT.partition("] ")[2]]
    (gpu,) = told["gpus"]
    assert (gpu["memory.used"], gpu["power.limit"], gpu["clocks.sm"]) == ("71000", "700.00", "1980")
    assert "Unable to determine the device handle for GPU1" in told["gpu_error"]
    assert told["stacks"] == []


def test_what_is_told_is_from_the_first_death(kernel, boot_fake):
    client, log = kernel
    events = boot_fake(client, children=["sglang::scheduler"])
    events.wait("boot.ready")
    os.kill(events.started["pid"], signal.SIGKILL)
    events.wait("boot.exit")
    first = client.request("boot.evidence", timeout=30, boot="b1")
    with log.open("a") as file:
        file.write(FAULT + "\n")
    assert client.request("boot.evidence", timeout=30, boot="b1", stacks=True) == first
    assert first["kernel_log"] == []


def test_nobody_may_read_the_kernel_log(tmp_path, new_client, node_env, boot_fake):
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    program(folder / "journalctl", "echo 'No journal files were opened' >&2; exit 1")
    client = new_client(transport=LocalTransport(env={**node_env, "PATH": f"{folder}:{os.environ['PATH']}"}))
    client.connect()
    events = boot_fake(client, fail=3)
    events.wait("boot.exit")
    told = client.request("boot.evidence", timeout=30, boot="b1")
    assert (told["kernel_readable"], told["kernel_log"]) == (False, [])


def test_the_stacks_of_a_server_that_hangs(client, boot_fake):
    if not (Path(sys.executable).parent / "py-spy").exists():
        pytest.skip("py-spy is not installed beside this Python (it is among the dev extras)")
    events = boot_fake(client, children=["sglang::scheduler"])
    events.wait("boot.ready")
    told = client.request("boot.evidence", timeout=30, boot="b1", stacks=True)
    parent, worker = told["processes"]
    assert parent["pid"] == events.started["pid"]
    assert worker["title"].startswith("sglang::scheduler")
    assert [one["pid"] for one in told["stacks"]] == [parent["pid"], worker["pid"]]
    text = told["stacks"][0]["text"] or told["stacks"][0]["error"]
    if "ermission" in text:
        pytest.skip(f"this user may not trace processes: {text}")
    assert "fake_server.py" in text
    assert not events.named("boot.exit")  # it was looked at, and lives


def test_a_stopped_process_is_told_and_does_not_hold_up_the_answer(client, boot_fake):
    events = boot_fake(client, children=["sglang::scheduler"])
    events.wait("boot.ready")
    (worker,) = workers(events.started)
    os.kill(worker, signal.SIGSTOP)
    until(lambda: (one := procfs.process(worker)) is not None and one.state == "T", "it is stopped")
    told = client.request("boot.evidence", timeout=30, boot="b1", stacks=True)
    assert next(one["state"] for one in told["processes"] if one["pid"] == worker) == "T"
    assert len(told["stacks"]) == 2


def test_without_py_spy_that_is_what_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert stacks.find_py_spy(["python3", "/usr/bin/python3"]) is None
    me = procfs.process(os.getpid())
    assert me is not None
    (told,) = stacks.dump([me], ["/usr/bin/python3"])
    assert told["text"] is None
    assert "pip install py-spy" in told["error"]
