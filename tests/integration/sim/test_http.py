"""The HTTP interface, against the shapes that sglang's clients rely on."""

from __future__ import annotations

import socket

import pytest

PROMPT = [100 + index for index in range(40)]


def test_a_stream_repeats_the_answer_and_counts_its_tokens(server):
    params = {"max_new_tokens": 20, "ignore_eos": True}
    events = server.stream("/generate", {"input_ids": PROMPT, "sampling_params": params})

    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 20
    for event in events:
        assert len(event["output_ids"]) == event["meta_info"]["completion_tokens"]
        assert event["output_ids"] == events[-1]["output_ids"][: len(event["output_ids"])]
        assert events[-1]["text"].startswith(event["text"])
        assert event["meta_info"]["prompt_tokens"] == len(PROMPT)
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "length", "length": 20}
    assert last["e2e_latency"] > 0


def test_the_same_prompt_has_the_same_answer_and_another_has_another(server):
    first, again = server.generate(PROMPT), server.generate(PROMPT)
    other = server.generate([*PROMPT, 5])
    assert first["output_ids"] == again["output_ids"]
    assert first["output_ids"] != other["output_ids"]


def test_a_batch_is_answered_in_its_order(server):
    prompts = [PROMPT, [1, 2, 3], [9] * 10]
    answers = server.generate(prompts, output=3)
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [40, 3, 10]


def test_openai_streams_count_tokens_in_usage(server):
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "stream_options": {"include_usage": True}}
    events = server.stream("/v1/completions", body)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert events[-1]["usage"]["prompt_tokens"] == 40
    assert events[-2]["choices"][0]["finish_reason"] == "length"

    chat = {"messages": [{"role": "user", "content": "How fast?"}], "max_tokens": 5, "ignore_eos": True}
    events = server.stream("/v1/chat/completions", chat | {"stream_options": {"include_usage": True}})
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert "".join(e["choices"][0]["delta"]["content"] or "" for e in events[:-1]).strip()


def test_server_info_tells_what_was_launched_and_that_it_is_simulated(server):
    info = server.json("/server_info")
    assert info["model_path"] == "m"
    assert info["port"] == server.port
    assert f"--port {server.port}" in info["launch_command"]
    assert isinstance(info["random_seed"], int)
    assert info["simulated"]["profile"] == "tiny"
    assert info["simulated"]["time_scale"] == 50.0
    assert server.json("/get_server_info")["max_total_num_tokens"] == 65536
    assert server.json("/model_info")["is_generation"] is True
    assert server.json("/v1/models")["data"][0]["id"] == "m"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"sampling_params": {}}, "Either text, input_ids"),
        ("/generate", {"input_ids": [1, -1]}, "outside of the vocabulary"),
        ("/generate", {"input_ids": ["a"]}, "integers"),
        ("/generate", {"input_ids": [1] * 9000}, "longer than the model's context length"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/generate", {"input_ids": [1], "sampling_params": {"min_new_tokens": "x"}}, "invalid literal"),
        ("/generate", {"input_ids": [[1], [2]], "rid": ["one"]}, "as many rids"),
        ("/v1/completions", {"prompt": [1], "stream_options": 3}, "get"),
        ("/flush_cache?timeout=soon", {}, "could not convert"),
    ],
)
def test_bad_input_is_a_400_that_says_why(server, path, body, words):
    status, answer = server.request("POST", path, body)
    assert status == 400
    assert words in answer.decode()


def test_unknown_paths_and_methods(server):
    assert server.get("/nothing")[0] == 404
    assert server.get("/generate")[0] == 405
    assert server.get("/ready")[0] == 404  # 0.5.10 has no such endpoint


def test_a_request_in_pieces_is_one_request(server):
    body = b'{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":2,"ignore_eos":true}}'
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        for byte in head + body:
            sock.send(bytes([byte]))
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_metrics_count_tokens(server):
    def value(name):
        lines = server.get("/metrics")[1].decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"sglang:{name}{{"))

    before = value("generation_tokens_total"), value("prompt_tokens_total"), value("num_requests_total")
    server.generate([4, 4, 4, 4], output=7)
    after = value("generation_tokens_total"), value("prompt_tokens_total"), value("num_requests_total")
    assert [b - a for a, b in zip(before, after, strict=True)] == [7, 4, 1]
    assert value("num_running_reqs") == 0
