"""The closed loop against a server whose throughput and latencies are known."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_sglang_perf.metrics import from_records


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
@pytest.mark.parametrize("event_loop", ["asyncio", "auto"])
def test_measures_what_the_server_does(stamped, load, api, event_loop):
    url = stamped("--rate", 100, "--ttft-ms", 50)
    result, records = load(url, api=api, model="stamped", event_loop=event_loop, requests=15)
    assert result["valid"], result
    assert result["ended_by"] == "done"
    assert result["counts"]["ok"] == 16  # 15 rounded up to whole rounds of 4
    assert {"ok", "aborted"} >= {record["status"] for record in records}
    assert len(records) == result["requests"] == sum(result["counts_all"].values())
    values: Any = from_records(records, result["window"])
    slot = 0.05 + 7 * 0.01
    # The server is never early, and on a busy machine it may be late: truth bounds from one side, sense from the other.
    assert 0.1 * 4 * 8 / slot < values["output_throughput"] < 1.1 * 4 * 8 / slot
    assert 0.99 * 0.05 < values["ttft_p50"] < 1
    assert 0.99 * slot < values["e2e_p50"] < 2
    assert values["concurrency"] == pytest.approx(4, rel=0.05)
    for record in records:
        if record["status"] == "ok":
            assert [count for _, count in record["chunks"]] == list(range(1, 9))
            assert record["prompt_tokens"] == 16
            assert record["sent_ns"] <= record["chunks"][0][0] <= record["end_ns"]


def test_several_tokens_in_an_event(stamped, load):
    url = stamped("--rate", 400, "--ttft-ms", 20, "--chunk", 3)
    _, records = load(url)
    ok = [record for record in records if record["status"] == "ok"]
    assert ok
    assert all([count for _, count in record["chunks"]] == [3, 6, 8] for record in ok)


def test_bodies_are_kept_on_request(stamped, load):
    result, records = load(stamped("--rate", 400), keep_bodies=True)
    assert result["valid"]
    for record in records:
        assert len(record["bodies"]) == len(record["chunks"])


def test_a_wrong_order_is_an_answer(load):
    message, records = load("http://127.0.0.1:1", arrival={"kind": "square"})
    assert message["error"]["kind"] == "bad_spec"
    assert "arrival.kind" in message["error"]["message"]
    assert not records


def test_nobody_listens(load, free_port):
    result, _ = load(f"http://127.0.0.1:{free_port}")
    assert result["ended_by"] == "server_died"
    assert not result["valid"]
    assert result["window"] is None
    assert "connect: Connect call failed" in " ".join(result["errors"]) or "refused" in " ".join(result["errors"])
