"""The simulated log against what others know of sglang's: recorded real logs, and our own reader of logs."""

from __future__ import annotations

import gzip
import os
import re
import signal
from pathlib import Path

import pytest

from pytest_sglang_perf.cli.classify import classify

from .test_load import start_stream

LOGS = Path(__file__).parents[2] / "data" / "logs"
# Lines of a healthy life whose shape must be that of a recorded line of that version; by how they begin.
SHAPES = {
    "0.5.10": [
        "server_args=ServerArgs(",
        "Init torch distributed begin.",
        "Load weight begin.",
        "Load weight end.",
        "Memory pool end.",
        "max_total_num_tokens=",
        "INFO:     Started server process",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
        "INFO:     Uvicorn running on",
        'INFO:     IP - "GET /model_info',
        'INFO:     IP - "POST /generate',
        "Prefill batch",
        "The server is fired up and ready to roll!",
        "SIGTERM received.",
    ],
    "0.5.23": [
        "server_args={",
        "Init parallel begin.",
        "Init parallel ends.",
        "Memory baseline taken.",
        "Load weight begin.",
        "Load weight end.",
        "Memory pool end.",
        "max_total_num_tokens=",
        "INFO:     Uvicorn running on",
        'INFO:     IP - "POST /freeze_gc',
        "Prefill batch",
        "Decode batch",
        "The server is fired up and ready to roll!",
        "Cache flushed successfully!",
        "SIGTERM received.",
        "Gracefully exiting...",
        "kill_process_tree called:",
        "INFO:     Shutting down",
        "INFO:     Finished server process",
    ],
}


def shape(line):
    """A line without its stamp, ranks, numbers, names and addresses."""
    message = re.sub(r"^\[[\d :-]+(?: (?:TP|EP|DP)\d+)*\] ", "", line.strip())
    message = re.sub(r"\d+\.\d+\.\d+\.\d+(?::\d+)?", "IP", message)
    message = re.sub(r"(server_args=(?:ServerArgs\(|\{)).*", r"\1", message)
    message = re.sub(r"type=\w+", "type=T", message)
    # Recorded on the CPU, where the words for memory and graphs differ.
    message = message.replace("available_cpu_mem", "available_gpu_mem").replace("cpu graph", "cuda graph")
    message = message.replace("cuda graph: True", "cuda graph: False")
    return re.sub(r"-?\d+(?:\.\d+)?", "N", message)


def recorded(version):
    shapes = set()
    for path in LOGS.glob(f"cpu_{version}*"):
        shapes |= {shape(line) for line in path.read_text(errors="replace").splitlines()}
    if version == "0.5.23":
        with gzip.open(LOGS / "cuda_0.5.16_no_cuda_graph.log.gz", "rt", errors="replace") as lines:
            shapes |= {shape(line) for line in lines}
    return shapes


@pytest.mark.parametrize("version", SHAPES)
def test_lines_have_the_shapes_of_recorded_ones(node, version):
    with node.server(SGLANG_SIM_VERSION=version) as server:
        server.generate(list(range(50)), 120)
        server.get("/flush_cache")
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_end()
        ours = [shape(line) for line in server.log.splitlines()]
    known = recorded(version)
    for begin in SHAPES[version]:
        lines = {line for line in ours if line.startswith(begin)}
        assert lines, f"no line begins with {begin!r}"
        assert lines & known, f"{lines} has another shape than {[k for k in known if k.startswith(begin)][:3]}"


def report(server, exit_code=None):
    with server.log_path.open("rb") as stream:
        return classify(stream, exit_code=exit_code)


def test_a_healthy_boot_is_read_as_one(node):
    node.environment |= {"SGLANG_SIM_PROFILE": "rtx-pro-6000-x8", "SGLANG_SIM_TIME_SCALE": "400"}
    with node.server("--tp", "8") as server:
        found = report(server)
        assert found.diagnosis.verdict != "crashed"
        assert found.facts["available_gpu_mem_gb"] == 2.18
        assert found.tracker.version is not None
        assert found.tracker.version.startswith("0.5.10")
        assert found.tracker.ranks >= {f"TP{rank}" for rank in range(8)}
        assert {"weights", "kv_cache", "cuda_graphs", "http", "ready"} <= set(found.tracker.started)


@pytest.mark.parametrize(
    ("flags", "fail", "crash_class"),
    [
        (["--enforce-piecewise-cuda-graph"], "", "torch-compile-fullgraph"),
        (["--moe-runner-backend", "flashinfer_trtllm"], "", "gpu-arch-unsupported"),
        (["--no-such-flag"], "", "bad-flag"),
        ([], "port_false_ready", "port-in-use"),
        ([], "crash:weights", "scheduler-exception"),
    ],
)
def test_failed_boots_are_diagnosed(node, flags, fail, crash_class):
    with node.server(*flags, ready=False, SGLANG_SIM_FAIL=fail) as server:
        found = report(server, server.wait_end())
    assert found.diagnosis.verdict == "crashed"
    assert found.diagnosis.crash_class == crash_class


@pytest.mark.parametrize(
    ("fail", "crash_class"), [("oom_under_load:4", "cuda-oom-under-load"), ("die_under_load:3", "subprocess-died")]
)
def test_deaths_under_load_are_diagnosed(node, fail, crash_class):
    with node.server(SGLANG_SIM_FAIL=fail) as server:
        clients = [start_stream(server) for _ in range(8)]
        found = report(server, server.wait_end())
        for client in clients:
            client.close()
    assert found.diagnosis.verdict == "crashed"
    assert found.diagnosis.crash_class == crash_class
