"""Boots: their phases in order, their processes, and the ways they fail."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from pytest_sglang_perf.sim.boot import PHASES

from ._node import DEADLINE_S, free_port, wait_for

ORDER = {
    "0.5.10": [
        r"launch_server\.py:\d+: UserWarning",
        r"server_args=ServerArgs\(.*custom_sigquit_handler",
        r"SIMULATED sglang 0\.5\.10: profile rtx-pro-6000-x8, time scale 400, seed \d+",
        r" TP7\] Init torch distributed begin\.",
        r" TP0\] Init torch distributed ends\. elapsed=[\d.]+ s, mem usage=",
        r" TP3\] Load weight begin\. avail mem=",
        r"Loading safetensors checkpoint shards: 100% Completed \| 83/83 \[",
        r" TP7\] Load weight end\. elapsed=[\d.]+ s, type=\w+, avail mem=[\d.]+ GB, mem usage=[\d.]+ GB\.",
        r" TP0\] KV Cache is allocated\. #tokens: 490880, ",
        r" TP0\] Memory pool end\. avail mem=",
        r" TP0\] Running FlashInfer autotune\.\.\.",
        r" TP0\] FlashInfer autotune completed\.",
        r" TP0\] Capture cuda graph begin\.",
        r"Capturing batches \(bs=512 avail_mem=",
        r" TP7\] Capture cuda graph end\.",
        r" TP0\] max_total_num_tokens=490880, chunked_prefill_size=8192, max_prefill_tokens=16384, ",
        r"max_running_requests=2048, context_len=202752, available_gpu_mem=2\.18 GB",
        r"INFO:     Started server process \[\d+\]",
        r"INFO:     Application startup complete\.",
        r"INFO:     Uvicorn running on http://127\.0\.0\.1:\d+ \(Press CTRL\+C to quit\)",
        r' - "GET /model_info HTTP/1\.1" 200 OK',
        r" TP0\] Prefill batch, #new-seq: 1, #new-token: \d+, #cached-token: 0, token usage: 0\.00, ",
        r"#running-req: 0, #queue-req: 0, cuda graph: False, input throughput \(token/s\): ",
        r' - "POST /generate HTTP/1\.1" 200 OK',
        r"\] The server is fired up and ready to roll!",
    ],
    "0.5.23": [
        r"server_args=\{'",
        r"\] Init parallel begin\.",
        r"\] Init parallel ends\. elapsed=",
        r"\] Memory baseline taken\. mem usage=",
        r"\] KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: ",
        r"\] Capture target decode CUDA graph begin\. backend=full, num_tokens_per_req=1, bs=\[",
        r"\] Capture target decode CUDA graph end\. bs=\[[\d, ]+\], elapsed=",
        r"\] max_total_num_tokens=",
        r"\] Tree cache initialized: ",
        r"\] Engine startup timings \(s\): load_weight=[\d.]+, kv_cache_allocation=",
        r"\] Prefill batch, .*#queue-req: 0, #pending-token: 0, cuda graph: ",
        r' - "POST /freeze_gc HTTP/1\.1" 200 OK',
        r"\] The server is fired up and ready to roll!",
    ],
}


def assert_in_order(log, patterns):
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(log, at)
        assert found, f"not after position {at}: {pattern}\n{log}"
        at = found.end()


def test_phases_come_in_order_with_the_campaigns_figures(node):
    node.environment |= {"SGLANG_SIM_PROFILE": "rtx-pro-6000-x8", "SGLANG_SIM_TIME_SCALE": "400"}
    with node.server("--tp", "8", "--max-running-requests", "2048") as server:
        assert_in_order(server.log, ORDER["0.5.10"])
        titles = [*(f"sglang::scheduler_TP{rank}" for rank in range(8)), "sglang::detokenizer"]
        wait_for(lambda: sorted(server.children()) == sorted(titles), "all children", server)


def test_the_newer_dialect(node):
    with node.server(SGLANG_SIM_VERSION="0.5.23") as server:
        assert_in_order(server.log, ORDER["0.5.23"])
        assert server.get("/ready")[0] == 200
        assert server.json("/server_info")["version"] == "0.5.23"
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait_end() == 0
        assert "Gracefully exiting..." in server.log
        assert "include_parent=False" in server.log


def test_expert_ranks_are_in_the_tags(node):
    node.environment |= {"SGLANG_SIM_PROFILE": "rtx-pro-6000-x8", "SGLANG_SIM_TIME_SCALE": "2000"}
    with node.server("--tp", "8", "--ep-size", "8") as server:
        assert " TP5 EP5] Load weight begin." in server.log
        assert "available_gpu_mem=0.94 GB" in server.log
        assert "sglang::scheduler_TP5_EP5" in server.children()


def test_children_end_with_a_server_that_is_killed(node):
    with node.server() as server:
        children = {title: server.child(title) for title in ("sglang::detokenizer", "sglang::scheduler")}
        server.process.kill()
        server.process.wait(DEADLINE_S)
        wait_for(lambda: not any(alive(pid) for pid in children.values()), "children gone", server)


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except FileNotFoundError:
        return False


def test_a_stop_of_the_older_version_ends_by_its_own_hand(node):
    with node.server() as server:
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait_end() == -signal.SIGKILL
        assert "Gracefully exiting... Remaining number of requests 0." in server.log


def test_health_is_refused_then_503_then_200(node):
    with node.server(ready=False, SGLANG_SIM_TIME_SCALE="5") as server:
        seen: list[int] = []

        def ask():
            try:
                status = server.get("/health")[0]
            except ConnectionRefusedError:
                status = 0
            if not seen or seen[-1] != status:
                seen.append(status)
            return status == 200

        wait_for(ask, "healthy", server)
        assert seen == [0, 503, 200]


def test_an_unknown_flag_ends_with_2(node):
    with node.server("--no-such-flag", ready=False) as server:
        assert server.wait_end() == 2
        assert server.log.rstrip().endswith("launch_server.py: error: unrecognized arguments: --no-such-flag")


def test_more_gpus_than_there_are(node):
    with node.server("--tp", "2", ready=False) as server:
        assert server.wait_end() == 1
        assert "invalid device ordinal" in server.log


@pytest.mark.parametrize(
    ("flags", "phase", "words"),
    [
        (["--enforce-piecewise-cuda-graph"], "Capture piecewise CUDA graph begin", "fp4_quantize"),
        (
            ["--moe-runner-backend", "flashinfer_trtllm"],
            "Running FlashInfer autotune",
            "Unsupported architecture SM120",
        ),
    ],
)
def test_flags_that_this_machine_cannot_bear_crash_at_boot(node, flags, phase, words):
    with node.server(*flags, ready=False) as server:
        assert server.wait_end() == -signal.SIGKILL
        assert_in_order(
            server.log, [phase, "Scheduler hit an exception: Traceback", words, "Received sigquit from a child process"]
        )
        assert "fullgraph=True" in server.log or "SM120" in words
        assert "fired up" not in server.log


@pytest.mark.parametrize("phase", PHASES)
def test_a_crash_can_be_ordered_for_every_phase(node, phase):
    with node.server(ready=False, SGLANG_SIM_FAIL=f"crash:{phase}") as server:
        assert server.wait_end() == (1 if phase == "imports" else -signal.SIGKILL)
        assert "Traceback (most recent call last)" in server.log
        assert "fired up" not in server.log


def test_a_hang_stays_in_its_phase(node):
    with node.server(ready=False, SGLANG_SIM_FAIL="hang:weights") as server:
        server.wait_log("Load weight begin")
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")
        assert "Load weight end" not in server.log
        assert server.process.poll() is None


def test_a_second_server_on_a_port_calls_itself_ready_and_ends_with_3(node):
    with node.server() as first, node.server(port=first.port, ready=False) as second:
        assert second.wait_end() == 3
        assert_in_order(
            second.log,
            [
                r"ERROR:    \[Errno 98\] error while attempting to bind on address \('127\.0\.0\.1', \d+\): ",
                "Waiting for application shutdown",
                "The server is fired up and ready to roll!",
                "Application shutdown complete",
            ],
        )
        wait_for(lambda: first.log.count("POST /generate") == 2, "warmed up against the first", first)
        assert first.json("/server_info")["port"] == first.port


def test_a_port_held_by_something_else_hangs(node):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def hang_up():
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue

        holder = threading.Thread(target=hang_up)
        holder.start()
        try:
            with node.server(port=listener.getsockname()[1], ready=False) as server:
                server.wait_log("Waiting for application shutdown")
                assert server.process.poll() is None
                assert "fired up" not in server.log
        finally:
            stop.set()
            holder.join()


def test_false_readiness_can_be_ordered_on_a_free_port(node):
    with node.server(ready=False, SGLANG_SIM_FAIL="port_false_ready") as server:
        assert server.wait_end() == 3
        assert "The server is fired up and ready to roll!" in server.log


def test_a_child_killed_in_the_boot_ends_it(node):
    with node.server(ready=False, SGLANG_SIM_FAIL="hang:weights") as server:
        server.wait_log("Load weight begin")
        os.kill(server.child("sglang::scheduler"), signal.SIGKILL)
        assert server.wait_end() == -signal.SIGKILL
        assert "Rank 0 scheduler died during initialization (exit code: -9)" in server.log


def test_cold_caches_are_slow_and_silent(node):
    with node.server(ready=False, SGLANG_SIM_CACHE="cold", SGLANG_SIM_TIME_SCALE="100000") as server:
        server.wait_ready()
        seconds = server.json("/server_info")["startup_time"]["scheduler_e2e"]
        assert seconds > 20.0


def test_the_port_can_be_chosen_late(node):
    port = free_port()
    with node.server(port=port) as server:
        assert server.json("/server_info")["launch_command"].endswith(f"--port {port}")
