"""The load engine against a real sglang: its figures beside the server's own, and beside sglang's own benchmark."""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from pytest_sglang_perf.metrics import from_records, from_sglang_bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEVEL, TOKENS = 8, 32


@pytest.fixture(scope="module")
def server(sglang_python: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = [sglang_python, "-m", "sglang.launch_server", "--model-path", str(tiny_model), "--device", "cpu"]
    argv += ["--model-impl", "transformers", "--load-format", "dummy", "--attention-backend", "torch_native"]
    argv += ["--sampling-backend", "pytorch", "--dtype", "float32", "--mem-fraction-static", "0.3"]
    argv += ["--max-total-tokens", "8192", "--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"})
        url = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 300
            while not ready(url):
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < until, log.read_text()[-2000:]
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def counter(url: str, name: str) -> float:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^sglang:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))


def load(url: str, tmp_path: Path, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    records = tmp_path / "records.jsonl"
    order = {
        "url": url,
        "arrival": {"kind": "closed", "concurrency": LEVEL},
        "input": 32,
        "output": TOKENS,
        "requests": 4 * LEVEL,
        "records_path": str(records),
        # random weights do say one thing over and over; and the machine is the server's as well
        "limits": {"max_constant_share": 1, "lag_p50_ms": 1e4, "lag_p99_ms": 1e4, "cpu_share": 9},
    } | changes
    done = subprocess.run(
        [sys.executable, "-m", "pytest_sglang_perf.agent", "load"],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])["result"], [
        json.loads(line) for line in records.read_text().splitlines()
    ]


def test_beside_the_servers_own_figures(server: str, tmp_path: Path) -> None:
    before = counter(server, "generation_tokens_total")
    result, records = load(server, tmp_path)
    generated = counter(server, "generation_tokens_total") - before
    assert result["valid"], result["invalid"]
    assert result["cached_share"] <= 0.01
    assert result["audit"]["vocab_from"].startswith("config.json")
    assert result["audit"]["server_running_from"] == "/v1/loads"
    ok = [record for record in records if record["status"] == "ok"]
    assert {record["output_tokens"] for record in ok} == {TOKENS}
    # Every token that the server says it made for these requests arrived, and none was made up. Those that it made for
    # requests we stopped at the end of the window may not all have come.
    arrived = sum(record["output_tokens"] or 0 for record in records)
    assert len(ok) * TOKENS <= arrived <= generated <= arrived + LEVEL * TOKENS
    for record in ok:
        e2e = (record["end_ns"] - record["sent_ns"]) / 1e9
        ttft = (record["chunks"][0][0] - record["sent_ns"]) / 1e9
        assert record["server"]["e2e_s"] <= e2e + 0.002
        assert record["server"]["ttft_s"] <= ttft + 0.002
    values: Any = from_records(records, result["window"])
    # What lies between the two clocks is the server's HTTP front end and the loopback: little beside a generation.
    own = statistics.fmean(record["server"]["e2e_s"] for record in ok)
    assert values["e2e_mean"] == pytest.approx(own, rel=0.5)
    assert values["concurrency"] == pytest.approx(LEVEL, rel=0.05)
    # Little's law ties the three figures together, whoever took them.
    assert values["request_throughput"] * values["e2e_mean"] == pytest.approx(values["concurrency"], rel=0.25)


@pytest.mark.parametrize("api", ["completions"])
def test_openai(server: str, tmp_path: Path, api: str) -> None:
    result, records = load(server, tmp_path, api=api)
    assert result["valid"], result["invalid"]
    assert result["audit"]["dialect"] == "token ids, usage in every event"
    assert {record["output_tokens"] for record in records if record["status"] == "ok"} == {TOKENS}


def test_beside_sglangs_own_benchmark(server: str, sglang_python: str, tiny_model: Path, tmp_path: Path) -> None:
    tool = {"tool": "sglang-bench", "tool_python": sglang_python, "model": str(tiny_model)}
    result, records = load(server, tmp_path, **tool)
    assert result["ended_by"] == "done", result["invalid"]
    assert {item["check"] for item in result["invalid"]} <= {"blind"}
    assert result["counts"]["ok"] == 4 * LEVEL
    assert {record["output_tokens"] for record in records} == {TOKENS}
    theirs: Any = from_sglang_bench(result["tool"])
    ours_result, ours_records = load(server, tmp_path)
    ours: Any = from_records(ours_records, ours_result["window"])
    # The same server moments later on a shared machine: the order of magnitude, no more; the documentation has figures.
    assert 0.2 < theirs["output_throughput"] / ours["output_throughput"] < 5
