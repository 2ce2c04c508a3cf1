"""Servers that fail in every way we know of: each request is counted as what it was, and no trial hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from .scripted import CLOSE, END, HEAD, answer, chunk, event, native, refusal, serve


def invalid(result):
    return {item["check"]: item for item in result["invalid"]}


def every(third, otherwise):
    """A script in which every third request goes another way."""
    return lambda number, _: third if number % 3 == 2 else otherwise


def test_nothing_but_errors_ends_at_once(load):
    began = time.monotonic()
    with serve(lambda *_: refusal("500 Internal Server Error", "the kernel is gone")) as url:
        result, records = load(url, requests=100000)
    assert result["ended_by"] == "all_failed"
    assert result["errors"] == {"HTTP 500: the kernel is gone": result["counts_all"]["failed"]}
    assert {record["status"] for record in records} <= {"failed", "aborted"}
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("wrong", "status", "error"),
    [
        (
            [HEAD, native(1), event({"error": {"message": "out of memory"}}), event(b"[DONE]") + END],
            "errored",
            "memory",
        ),
        ([HEAD, native(1, finish={"type": "abort", "message": "aborted"}) + END], "errored", "aborted"),
        ([HEAD, native(8, finish={"type": "stop", "matched": "NaN happened"}) + END], "errored", "NaN"),
        ([HEAD, native(1), CLOSE], "failed", "closed inside the answer"),
        ([HEAD, native(1), native(2), END], "failed", "no finish reason"),
        ([HEAD, event(b"[DONE]") + END], "empty", None),
        (answer(3), "short", None),
        (refusal("503 Service Unavailable", "queue full"), "failed", "queue full"),
        ([b"ICY 200 OK\r\n\r\n"], "failed", "not an HTTP"),
    ],
)
def test_counted_as_what_it_was(load, wrong, status, error):
    with serve(every(wrong, answer(8))) as url:
        result, records = load(url, requests=12, limits={"max_failed_share": 1, "max_short_share": 1})
    assert result["ended_by"] == "done"
    seen = {record["status"] for record in records} - {"aborted"}
    assert seen == {"ok", status}
    assert result["counts"][status] >= 2
    assert all(error in text for text in result["errors"]) if error else not result["errors"]
    assert result["counts"]["ok"] + result["counts"][status] == 12


def test_too_many_failures_are_invalid(load):
    with serve(every(refusal("503 Service Unavailable", "full"), answer(8))) as url:
        result, _ = load(url, requests=12, limits={"delivered_share": 0})
    assert set(invalid(result)) == {"failed_share"}
    assert "full" in str(result["errors"])


def test_a_keep_alive_connection_closed_by_the_server_is_nobodys_fault(load):
    with serve(lambda *_: [*answer(8), CLOSE]) as url:
        result, records = load(url, requests=12)
    assert result["counts_all"]["failed"] == 0
    assert result["counts"]["ok"] == 12
    assert result["audit"]["resent"] + result["audit"]["reconnects"] > 0
    assert result["requests"] >= len(records) - 4


def test_connection_close_is_honoured(load):
    head = HEAD[:-2] + b"Connection: close\r\n\r\n"
    with serve(lambda *_: [head, *answer(8)[1:], CLOSE]) as url:
        result, _ = load(url, requests=12, limits={"delivered_share": 0})
    assert result["valid"], result
    assert result["audit"]["resent"] == 0
    assert result["audit"]["reconnects"] > 8


def test_one_stalled_stream_fails_alone(load):
    def script(number, _):
        return [HEAD, native(1), 3.0] if number == 5 else [HEAD, 0.05, *answer(8)[1:]]

    with serve(script) as url:
        result, _ = load(url, requests=80, limits={"stall_s": 0.6, "max_failed_share": 1})
    assert result["ended_by"] == "done"
    assert [text for text in result["errors"] if "stalled" in text]
    assert result["counts_all"]["failed"] == 1


def test_a_server_that_hangs_is_a_stall(load):
    with serve(lambda number, _: answer(8) if number < 8 else [HEAD, native(1), 30.0]) as url:
        result, records = load(url, requests=1000, limits={"stall_s": 0.6})
    assert result["ended_by"] == "stall"
    assert not result["valid"]
    assert "stalled: no byte" in str(result["errors"])
    assert result["counts_all"]["failed"] == 4
    assert len(records) == 12


def test_the_deadline_holds(load):
    with serve(lambda *_: [HEAD, native(1), 0.3, *answer(8)[1:]]) as url:
        result, _ = load(url, requests=10**6, limits={"deadline_s": 1.0})
    assert result["ended_by"] == "deadline"
    assert "ended_by" in invalid(result)


def test_garbage_is_not_a_fast_configuration(load):
    def script(*_):
        constant = {"text": "!" * 40, "output_ids": [0] * 8}
        meta = {"finish_reason": {"type": "length", "length": 8}, "prompt_tokens": 16, "completion_tokens": 8}
        return [HEAD, event(constant | {"meta_info": meta}) + END]

    with serve(script) as url:
        result, _ = load(url, requests=60)
    assert set(invalid(result)) == {"constant_output"}


@pytest.mark.parametrize(("shared", "valid"), [(0, False), (8, True)])
def test_cached_tokens_are_for_those_who_want_them(load, shared, valid):
    with serve(lambda *_: answer(8, cached_tokens=8)) as url:
        result, _ = load(url, shared_prefix=shared)
    assert result["cached_share"] == 0.5
    assert result["valid"] is valid
    if not valid:
        assert set(invalid(result)) == {"cached_share"}


def test_awkward_but_correct_streams(load):
    def delta(content, **more):
        return {"choices": [{"index": 0, "delta": content, "finish_reason": None} | more]}

    euro = b"data: " + json.dumps(delta({"content": "5 €"}), ensure_ascii=False).encode() + b"\r\n\r\n"
    middle = euro.index("€".encode()) + 1  # between two bytes of one character

    def script(*_):
        usage = {"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24}}
        return [
            HEAD + event(delta({"role": "assistant", "content": ""})),
            chunk(b": keep-alive comment\n\n"),
            chunk(euro[:middle]),
            chunk(euro[middle:]),
            event(delta({"content": ""})),
            event(delta({"content": "more"})) + event(delta({}, finish_reason="length")),
            event(usage) + event(b"[DONE]"),
            END[:3],
            END[3:],
        ]

    with serve(script) as url:
        result, records = load(url, api="chat", model="m", keep_bodies=True)
    assert result["valid"], result
    ok = [record for record in records if record["status"] == "ok"]
    for record in ok:
        assert [count for _, count in record["chunks"]] == [None, None]
        assert record["output_tokens"] == 8
        assert record["idle_events"] == 4
        assert "5 €" in record["bodies"][0]


def test_learns_what_an_openai_server_does_not_take(load):
    def script(_, order):
        if "continuous_usage_stats" in order.get("stream_options", {}):
            return refusal("400 Bad Request", "unknown field continuous_usage_stats")
        if not isinstance(order["prompt"], str):
            return refusal("422 Unprocessable Entity", "prompt must be a string")
        prompt = 10 + 3 * len(order["prompt"].split())
        usage = {"prompt_tokens": prompt, "completion_tokens": order["max_tokens"], "total_tokens": 0}
        text = {"choices": [{"index": 0, "text": "hello", "finish_reason": None}]}
        end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
        return [HEAD, event(text), event(end), event({"choices": [], "usage": usage}), event(b"[DONE]") + END]

    with serve(script) as url:
        result, records = load(url, api="completions", model="m", input=100)
    assert result["valid"], result
    assert result["audit"]["dialect"] == "text, 3 tokens a word, usage at the end"
    assert {record["prompt_tokens"] for record in records if record["status"] == "ok"} == {100}


def start(url, tmp_path, *, requests=10**6, workers=1):
    """A long trial whose process we hold."""
    order = {
        "url": url,
        "arrival": {"kind": "closed", "concurrency": 4},
        "input": 16,
        "output": 8,
        "requests": requests,
        "workers": workers,
        "records_path": str(tmp_path / "r.jsonl"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_sglang_perf.agent", "load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    while json.loads(process.stdout.readline())["progress"]["ok"] < 8:
        pass
    return process


def finish(process):
    out, _ = process.communicate(timeout=30)
    return json.loads(out.splitlines()[-1])["result"]


@pytest.mark.parametrize("workers", [1, 2])
def test_cancelled_by_a_line(stamped, tmp_path, workers):
    process = start(stamped("--rate", 400), tmp_path, workers=workers)
    process.stdin.write('{"cancel": "server_died"}\n')
    process.stdin.flush()
    result = finish(process)
    assert result["ended_by"] == "server_died"
    assert not result["valid"]
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == sum(result["counts_all"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl"]


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_still_gives_a_result(stamped, tmp_path, workers):
    process = start(stamped("--rate", 400), tmp_path, workers=workers)
    process.send_signal(signal.SIGTERM)
    result = finish(process)
    assert result["ended_by"] == "cancelled"
    assert result["counts_all"]["ok"] >= 8
    assert process.returncode == 0


def test_sigterm_before_the_trial_gives_a_result_too():
    with socket.socket() as silent:  # accepts connections and never answers: the first question waits
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        order = {
            "url": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "arrival": {"kind": "closed", "concurrency": 4},
            "input": 16,
            "output": 8,
            "requests": 8,
        }
        argv = [sys.executable, "-m", "pytest_sglang_perf.agent", "load"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            silent.accept()[0].close()
            held = silent.accept()  # the second question: now it is certainly past its order
            process.send_signal(signal.SIGTERM)
            result = finish(process)
            held[0].close()
    assert result["ended_by"] == "cancelled"
    assert result["window"] is None
    assert process.returncode == 0


def test_records_that_cannot_be_written(stamped, load, tmp_path):
    message, _ = load(stamped("--rate", 400), records_path=str(tmp_path / "nowhere" / "records"))
    assert message["error"]["kind"] == "failed"
    assert "nowhere" in message["error"]["message"]


def test_a_server_that_dies_ends_the_trial_at_once(tmp_path):
    argv = [sys.executable, "-m", "pytest_sglang_perf.agent.load.stamped", "--rate", "400"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        process = start(url, tmp_path)
        server.kill()
        began = time.monotonic()
        result = finish(process)
        assert time.monotonic() - began < 5
    assert result["ended_by"] == "server_died"
    assert result["counts_all"]["failed"] > 0


def test_no_worker_outlives_its_parent(stamped, tmp_path):
    process = start(stamped("--rate", 400), tmp_path, workers=2)
    children = [int(pid) for pid in _children(process.pid)]
    assert len(children) == 2
    process.kill()
    process.communicate(timeout=10)
    until = time.monotonic() + 10
    while any(_alive(pid) for pid in children):
        assert time.monotonic() < until, "a worker went on without its parent"
        time.sleep(0.02)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()


def _alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
