"""Open patterns, ramps, traces and worker processes against a server of known behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_sglang_perf.metrics import from_records


@pytest.mark.parametrize("workers", [1, 2])
def test_a_constant_rate(stamped, load, workers):
    url = stamped("--rate", 200, "--ttft-ms", 20)
    result, records = load(url, arrival={"kind": "constant", "rate": 40}, requests=60, workers=workers)
    assert result["ended_by"] == "done"
    assert result["counts"]["ok"] == 60
    assert result["audit"]["workers"] == workers
    assert len({record["index"] for record in records}) == len(records) == result["requests"]
    scheduled = sorted(record["scheduled_ns"] for record in records)
    assert scheduled[-1] - scheduled[0] == pytest.approx((len(records) - 1) / 40 * 1e9, rel=0.05)
    values: Any = from_records(records, result["window"])
    assert 10 < values["request_throughput"] < 60
    for record in records:
        assert record["sent_ns"] >= record["scheduled_ns"]


def test_an_overloaded_server_shows_in_latency_from_the_schedule(stamped, load):
    url = stamped("--rate", 200, "--ttft-ms", 20)  # a request takes 55 ms, so a cap of 1 serves 18 a second
    arrival = {"kind": "constant", "rate": 40, "max_concurrency": 1}
    result, records = load(url, arrival=arrival, requests=40)
    assert result["ended_by"] == "done"
    assert result["audit"]["peak_concurrency"] == 1
    ok = sorted((record for record in records if record["status"] == "ok"), key=lambda record: record["scheduled_ns"])
    waits = [record["sent_ns"] - record["scheduled_ns"] for record in ok]
    assert waits[-1] > 3e8
    assert waits[-1] > waits[len(waits) // 2] > waits[1]


def test_bursts_arrive_together(stamped, load):
    url = stamped("--rate", 400, "--ttft-ms", 20)
    result, records = load(url, arrival={"kind": "burst", "size": 10, "period_s": 0.2}, requests=30)
    assert result["counts"]["ok"] == 30
    assert len({record["scheduled_ns"] for record in records}) == result["requests"] / 10


def test_a_trace_is_replayed_with_its_lengths(stamped, load, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [(i * 0.02, 5 + i, 2 + i % 3) for i in range(20)]
    trace.write_text("arrival_s,input_len,output_len\n" + "".join(f"{a},{i},{o}\n" for a, i, o in rows))
    result, records = load(
        stamped("--rate", 400, "--ttft-ms", 20), arrival={"kind": "trace", "path": str(trace)}, requests=1000
    )
    assert result["ended_by"] == "done"
    assert result["window"] is not None
    records.sort(key=lambda record: record["index"])
    assert [(r["prompt_tokens"], r["ordered_tokens"]) for r in records if r["status"] == "ok"] == [
        (i, o) for _, i, o in rows
    ]


def test_a_ramp_is_outside_the_window(stamped, load):
    url = stamped("--rate", 400, "--ttft-ms", 20)
    result, records = load(url, arrival={"kind": "closed", "concurrency": 8}, ramp_s=0.6, requests=16)
    assert result["valid"], result
    assert result["window"]["start_ns"] - min(record["sent_ns"] for record in records) > 0.5e9
    assert from_records(records, result["window"])["concurrency"] == pytest.approx(8, rel=0.05)


def test_workers_share_one_window(stamped, load, tmp_path):
    url = stamped("--rate", 100, "--ttft-ms", 50)
    result, records = load(url, arrival={"kind": "closed", "concurrency": 10}, requests=40, workers=3)
    assert result["valid"], result
    assert result["audit"]["workers"] == 3
    assert result["audit"]["peak_concurrency"] == 10
    inside = [r for r in records if r["status"] == "ok" and r["end_ns"] > result["window"]["start_ns"]]
    inside = [r for r in inside if r["end_ns"] <= result["window"]["end_ns"]]
    assert len(inside) == result["counts"]["ok"] == 40
    assert sorted({record["index"] % 3 for record in records}) == [0, 1, 2]
    values: Any = from_records(records, result["window"])
    assert values["concurrency"] == pytest.approx(10, rel=0.05)
    assert 0.1 * 10 * 8 / 0.12 < values["output_throughput"] < 1.1 * 10 * 8 / 0.12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl"]


def test_the_server_is_asked_how_much_it_runs(stamped, load):
    result, _ = load(stamped("--rate", 20, "--ttft-ms", 50), requests=40)
    assert result["audit"]["server_running_from"] == "/metrics"
    assert result["audit"]["server_running_samples"] >= 2
    assert result["audit"]["server_running_mean"] == pytest.approx(4, abs=1)


def test_queueing_in_the_server_is_the_servers_own(stamped, load):
    url = stamped("--rate", 200, "--ttft-ms", 20, "--max-running", 2)
    result, records = load(url, requests=24)
    assert result["valid"], result
    values: Any = from_records(records, result["window"])
    assert values["concurrency"] == pytest.approx(4, rel=0.05)
    assert values["output_throughput"] < 1.1 * 2 * 8 / 0.055
