"""Trials by the real load engine against a real process that streams."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from pytest_sglang_perf.agent import procfs
from tests.integration.agent.waiting import until

SERVER = """
import json, sys
from pytest_sglang_perf.agent.load import stamped
sys.argv = ["stamped", "--port", sys.argv[1], "--rate", "50", "--ttft-ms", "20"]
sys.exit(stamped.main())
"""


@pytest.fixture
def streaming(client):
    """A boot of the stamped server; there is no /ready to wait for, so its port is."""
    argv = [sys.executable, "-c", SERVER, "{port}"]
    answer = client.request("boot.start", timeout=20, boot="b1", argv=argv)
    until(lambda: procfs.listening_inodes(answer["port"]), "the server listens")
    return answer


def spec(answer, requests):
    return {
        "url": f"http://127.0.0.1:{answer['port']}",
        "api": "generate",
        "arrival": {"kind": "closed", "concurrency": 4},
        "input": {"kind": "fixed", "value": 8},
        "output": {"kind": "fixed", "value": 10},
        "requests": requests,
        "vocab": [10, 1000],
        "seed": 1,
        "salt": "s",
        "flush_cache": False,
    }


def test_a_trial_ends_with_a_result_and_records(client, events, streaming):
    client.request(
        "trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=spec(streaming, 12), gpu_period_ms=100
    )
    end = events.wait("trial.end", timeout=60)
    assert end["result"]["ended_by"] == "done", end
    assert end["result"]["counts"]["ok"] >= 12
    records = [json.loads(line) for line in client.read_file(end["records_path"]).splitlines()]
    assert sum(record["status"] == "ok" for record in records) >= 12
    assert end["gpu"]["samples_path"] is None
    assert "nvidia-smi" in end["gpu"]["error"]


def test_a_trial_ends_at_once_when_its_server_dies(client, events, streaming):
    client.request(
        "trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=spec(streaming, 100_000), gpu_period_ms=None
    )
    until(lambda: [e for e in events.named("trial.progress") if e["ok"] > 4], "the trial runs", timeout=30)
    os.kill(streaming["pid"], signal.SIGKILL)
    end = events.wait("trial.end", timeout=15)
    assert end["result"]["ended_by"] == "server_died"
    assert end["result"]["counts"]["ok"] > 4


def test_a_cancelled_trial_hands_over_what_it_has(client, events, streaming):
    client.request(
        "trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=spec(streaming, 100_000), gpu_period_ms=None
    )
    until(lambda: [e for e in events.named("trial.progress") if e["ok"] > 4], "the trial runs", timeout=30)
    client.request("trial.cancel", timeout=10, trial="t1", reason="cancelled")
    end = events.wait("trial.end", timeout=15)
    assert end["result"]["ended_by"] == "cancelled"
    assert client.read_file(end["records_path"])


@pytest.mark.usefixtures("streaming")
def test_an_order_that_the_engine_refuses_is_told(client, events):
    client.request("trial.start", timeout=30, trial="t1", boot="b1", url=None, spec={"url": "http://x", "api": "morse"})
    result = events.wait("trial.end", timeout=30)["result"]
    assert result["valid"] is False
    assert result["invalid"][0]["check"] == "load_process"
