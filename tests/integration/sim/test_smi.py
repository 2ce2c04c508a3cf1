"""nvidia-smi: its forms, and what a server does to its readings."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from ._node import DEADLINE_S, wait_for
from .test_load import running, start_stream

FIELDS = ["power.draw", "power.draw.instant", "utilization.gpu", "memory.used", "memory.total"]


def test_idle_gpus_of_a_node_without_servers(node):
    ((draw, instant, utilization, used, total),) = node.gpu_figures(*FIELDS)
    assert draw == pytest.approx(20, abs=2)
    assert instant == pytest.approx(20, abs=2)
    assert (utilization, total) == (0, 24576)
    assert used < 10


def test_forms_of_csv(node):
    full = node.smi("--query-gpu=index,power.limit,clocks_event_reasons.active", "--format=csv").stdout.splitlines()
    assert full == ["index, power.limit [W], clocks_event_reasons.active", "0, 300.00 W, 0x0000000000000001"]
    bare = node.smi("--query-gpu=index,power.limit", "--format=csv,noheader,nounits")
    assert bare.stdout == "0, 300.00\n"
    stamp = node.smi("--query-gpu=timestamp", "--format=csv,noheader").stdout
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}\n", stamp)


def test_other_forms(node):
    assert re.fullmatch(r"GPU 0: NVIDIA Tiny \(UUID: GPU-[0-9a-f-]{36}\)\n", node.smi("-L").stdout)
    assert "Attached GPUs                                      : 1" in node.smi("-q").stdout
    assert "(simulated)" in node.smi().stdout


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--query-gpu=power", "--format=csv"], 2),
        (["--query-gpu=index"], 2),
        (["--query-gpu=index", "--format=json"], 2),
        (["--query-gpu=index", "--format=csv", "-lms", "0"], 2),
        (["--query-gpu=index", "--format=csv", "-i", "7"], 6),
        (["--frobnicate"], 2),
    ],
)
def test_what_is_not_understood_is_refused(node, words, status):
    done = node.smi(*words)
    assert done.returncode == status
    assert done.stdout.strip()
    assert not done.stderr


def test_a_server_is_seen_from_boot_to_end(node):
    with node.server() as server:
        ((ready, _, idle, used, total),) = node.gpu_figures(*FIELDS)
        assert ready == pytest.approx(45, abs=4)
        assert idle == 0
        assert total - used == pytest.approx(15.5 * 1024, rel=0.01)
        apps = node.smi("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits").stdout
        pid, title, _ = apps.strip().split(", ")
        assert title == "sglang::scheduler"
        assert int(pid) == server.child("sglang::scheduler")

        clients = [start_stream(server) for _ in range(8)]
        wait_for(lambda: running(server)[0] == 8, "busy", server)
        wait_for(lambda: node.gpu_figures(*FIELDS)[0][0] > 180, "drawing power", server)
        ((draw, _, utilization, _, _),) = node.gpu_figures(*FIELDS)
        assert draw == pytest.approx(200, rel=0.06)
        assert utilization > 90
        for client in clients:
            client.close()
    ((after, _, _, used, _),) = node.gpu_figures(*FIELDS)
    assert after == pytest.approx(20, abs=2)
    assert used < 10
    assert node.smi("--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


def test_looping_keeps_its_pace(node):
    argv = [sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi"]
    argv += ["--query-gpu=timestamp,power.draw", "--format=csv,noheader,nounits", "-lms", "20"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=node.environment)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        began = time.monotonic()
        lines = [process.stdout.readline() for _ in range(25)]
        took = time.monotonic() - began
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        process.stdout.close()
    assert all(re.match(r"\d{4}/\d\d/\d\d [\d:.]+, [\d.]+$", line) for line in [first, *lines])
    assert took > 0.4


def test_faults(node):
    assert node.smi("-L", SGLANG_SIM_SMI_FAIL="no_driver").returncode == 9
    words = ["--query-gpu=index", "--format=csv,noheader"]
    lost = node.smi(*words, SGLANG_SIM_SMI_FAIL="lost:0")
    assert lost.returncode == 15
    assert "Unable to determine the device handle for GPU0" in lost.stdout
    foreign = node.smi("--query-compute-apps=pid,name", "--format=csv,noheader", SGLANG_SIM_SMI_FAIL="foreign:0")
    assert foreign.stdout == "4194300, /usr/bin/somebody-elses-job\n"
    stopped = node.smi(*words, "-lms", "1", SGLANG_SIM_SMI_FAIL="stop:3")
    assert stopped.returncode == 15
    assert stopped.stdout == "0\n0\n0\n"
    hung = ["--query-gpu=index", "--format=csv"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi", *hung],
            env=node.environment | {"SGLANG_SIM_SMI_FAIL": "hang"},
            capture_output=True,
            timeout=0.5,
            check=False,
        )


def test_thermal_slowdown_shows_under_load_only(node):
    words = ["--query-gpu=clocks_event_reasons.active", "--format=csv,noheader"]
    with node.server() as server:
        assert node.smi(*words, SGLANG_SIM_SMI_FAIL="thermal").stdout == "0x0000000000000001\n"
        client = start_stream(server)
        wait_for(lambda: running(server)[0] == 1, "busy", server)
        wait_for(
            lambda: node.smi(*words, SGLANG_SIM_SMI_FAIL="thermal").stdout == "0x0000000000000048\n", "hot", server
        )
        client.close()
