"""Behaviour under load: queueing, caches, clients that leave, and the ways a server dies or lies."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading

import pytest

from ._node import wait_for

PROMPT = list(range(100, 140))
LONG = {"max_new_tokens": 4000, "ignore_eos": True}


def start_stream(server, params=LONG):
    """A streamed request whose answer nobody reads yet."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = json.dumps({"input_ids": PROMPT, "sampling_params": params, "stream": True})
    connection.request("POST", "/generate", body)
    return connection


def running(server):
    load = server.json("/get_load")[0]
    return load["num_running_reqs"], load["num_waiting_reqs"]


def test_requests_above_the_limit_wait(node):
    with node.server("--max-running-requests", "2") as server:
        clients = [start_stream(server) for _ in range(5)]
        wait_for(lambda: running(server) == (2, 3), "two run and three wait", server)
        for client in clients:
            client.close()
        wait_for(lambda: running(server) == (0, 0), "all gone with their clients", server)
        assert server.generate(PROMPT)["meta_info"]["completion_tokens"] == 16


def test_the_cache_can_be_flushed_only_when_idle(node):
    with node.server() as server:
        assert server.generate(PROMPT)["meta_info"]["cached_tokens"] == 0
        assert server.generate(PROMPT)["meta_info"]["cached_tokens"] == 39
        client = start_stream(server)
        wait_for(lambda: running(server)[0] == 1, "running", server)
        assert server.get("/flush_cache")[0] == 400
        client.close()
        assert server.request("POST", "/flush_cache?timeout=60")[0] == 200
        assert server.generate(PROMPT)["meta_info"]["cached_tokens"] == 0


def test_without_the_radix_cache_nothing_is_cached(node):
    with node.server("--disable-radix-cache") as server:
        server.generate(PROMPT)
        assert server.generate(PROMPT)["meta_info"]["cached_tokens"] == 0


def test_incremental_streams_hold_only_what_is_new(node):
    with node.server("--incremental-streaming-output") as server:
        events = server.stream("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 30}})
        assert sum(len(event["output_ids"]) for event in events) == events[-1]["meta_info"]["completion_tokens"]
        whole = server.generate(PROMPT, 30)
        assert "".join(event["text"] for event in events)[:50] == whole["text"][:50]


def test_a_stream_interval_sets_the_tokens_a_chunk(node):
    with node.server("--stream-interval", "8") as server:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
        events = server.stream("/generate", body)
        assert 8 <= len(events) <= 10


def test_requests_can_be_aborted_by_name(node):
    with node.server() as server:
        answers = []

        def ask():
            body = {"rid": "mine", "input_ids": PROMPT, "sampling_params": LONG}
            answers.append(json.loads(server.request("POST", "/generate", body)[1]))

        client = threading.Thread(target=ask)
        client.start()
        wait_for(lambda: running(server)[0] == 1, "running", server)
        assert server.request("POST", "/abort_request", {"rid": "mine"})[0] == 200
        client.join(30)
        assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_api_key_is_asked_for(node):
    with node.server("--api-key", "s3cret", ready=False) as server:
        server.wait_log("fired up")
        assert server.get("/server_info")[0] == 401
        assert server.request("GET", "/server_info", authorization="Bearer s3cret")[0] == 200
        assert server.get("/health")[0] == 200


def test_slowing_down_on_purpose(node):
    with node.server() as server:
        quick = server.generate(PROMPT, 20)["meta_info"]["e2e_latency"]
        assert server.request("POST", "/slow_down", {"forward_sleep_time": 0.5})[0] == 200
        slow = server.generate(PROMPT[::-1], 20)["meta_info"]["e2e_latency"]
        assert slow > quick + 5.0
        assert server.request("POST", "/slow_down", {"forward_sleep_time": None})[0] == 200


def boot_latencies(node, folder, boots):
    node.environment["SGLANG_SIM_STATE"] = str(folder)
    latencies = []
    for _ in range(boots):
        with node.server() as server:
            latencies.append(server.json("/server_info")["simulated"]["seed"])
    return latencies


def test_boots_draw_different_seeds_that_a_new_node_repeats(node, tmp_path):
    first = boot_latencies(node, tmp_path / "one", 3)
    assert len(set(first)) == 3
    assert boot_latencies(node, tmp_path / "two", 2) == first[:2]


# -- deaths


@pytest.mark.parametrize("flags", [["--ep-size", "8"], []])
def test_memory_runs_out_under_enough_requests(node, flags):
    fail = {} if flags else {"SGLANG_SIM_FAIL": "oom_under_load:16"}
    with node.server(*flags, **fail) as server:
        few = [start_stream(server) for _ in range(8)]
        wait_for(lambda: running(server)[0] == 8, "eight run", server)
        assert server.process.poll() is None
        many = [start_stream(server) for _ in range(12)]
        assert server.wait_end() == -signal.SIGKILL
        assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in server.log
        assert "SIGQUIT received. signum=None" in server.log
        for client in few + many:
            client.close()


@pytest.mark.parametrize(
    ("title", "name"), [("sglang::scheduler", "scheduler_0"), ("sglang::detokenizer", "detokenizer")]
)
def test_a_killed_child_takes_the_server_with_it(node, title, name):
    with node.server() as server:
        client = start_stream(server)
        wait_for(lambda: running(server)[0] == 1, "running", server)
        pid = server.child(title)
        os.kill(pid, signal.SIGKILL)
        assert server.wait_end() == -signal.SIGKILL
        assert f"Subprocess {name} (pid={pid}) crashed with exit code -9. Triggering SIGQUIT" in server.log
        with pytest.raises((http.client.HTTPException, OSError)):
            client.getresponse().read()
        client.close()


def test_death_after_so_many_requests_can_be_ordered(node):
    with node.server(SGLANG_SIM_FAIL="die_under_load:4") as server:
        for _ in range(2):  # the warm-up's was the first
            server.generate(PROMPT)
        with pytest.raises((http.client.HTTPException, OSError)):
            server.generate(PROMPT, 2000)
        assert server.wait_end() == -signal.SIGKILL
        assert "Subprocess scheduler_0" in server.log


# -- lies


def test_errors_can_come_after_a_200(node):
    with node.server(SGLANG_SIM_FAIL="error_after_200:3") as server:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
        outcomes = [server.stream("/generate", body)[-1] for _ in range(5)]
        broken = ["error" in outcome for outcome in outcomes]
        assert broken == [False, True, False, False, True]
        assert outcomes[1]["error"]["code"] == 500
        assert running(server) == (0, 0)


def test_garbage_is_one_token_over_and_over(node):
    with node.server(SGLANG_SIM_FAIL="garbage") as server:
        answer = server.generate(PROMPT)
        assert set(answer["output_ids"]) == {0}
        assert set(answer["text"]) == {"!"}


def test_nan_ends_answers_early_with_its_word(node):
    with node.server(SGLANG_SIM_FAIL="nan") as server:
        meta = server.generate(PROMPT)["meta_info"]
        assert meta["finish_reason"] == {"type": "stop", "matched": "NaN happened"}
        assert meta["completion_tokens"] == 3


def test_a_frozen_server_answers_health_with_503_and_server_info_never(node):
    with node.server(SGLANG_SIM_FAIL="frozen:2") as server:
        server.generate(PROMPT)
        client = start_stream(server)
        wait_for(lambda: server.get("/health")[0] == 503, "unhealthy", server)
        assert "Health check failed. Server couldn't get a response from detokenizer" in server.log
        with socket.create_connection(("127.0.0.1", server.port), timeout=1.0) as sock:
            sock.sendall(b"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n")
            with pytest.raises(TimeoutError):
                sock.recv(1)
        client.close()


def test_a_slow_exit_hears_sigterm_and_stays(node):
    with node.server(SGLANG_SIM_FAIL="slow_exit") as server:
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_log("SIGTERM received")
        assert server.get("/health")[0] == 200
        assert server.process.poll() is None
