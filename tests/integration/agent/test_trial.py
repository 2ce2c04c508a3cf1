"""Trials by the real load engine against a real process that streams."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time

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


SMI = """
import sys, time
query = " ".join(sys.argv)
if "query-compute-apps" in query:
    print(open({processes!r}).read(), end="")
    print("read", file=open({processes!r} + ".log", "a"))
elif "uuid,index" in query:
    print("GPU-a, 0")
else:
    while True:  # as many cells as fields were asked for
        print(", ".join(["0"] * len(sys.argv[1].split(","))), flush=True)
        time.sleep(0.1)
"""


class TestStrangers:
    """Who begins to compute on our GPUs in the middle of a session."""

    @pytest.fixture
    def client(self, new_client, tmp_path, computing):
        smi = tmp_path / "smi.py"
        smi.write_text(SMI.format(processes=str(computing)))
        client = new_client(nvidia_smi=[sys.executable, str(smi)])
        client.connect()
        return client

    def start(self, client, streaming, requests, **options):
        client.request(
            "trial.start",
            timeout=30,
            trial="t1",
            boot="b1",
            url=None,
            spec=spec(streaming, requests),
            gpu_period_ms=100,
            **options,
        )

    def test_one_is_told_by_name_and_our_own_are_not(self, client, events, streaming, computing, stranger):
        computing.write_text(f"GPU-a, {streaming['pid']}, python\nGPU-a, {stranger.pid}, python\n")
        self.start(client, streaming, 12)
        end = events.wait("trial.end", timeout=60)
        assert end["result"]["ended_by"] == "done"
        (told,) = end["gpu"]["strangers"]
        assert re.search(rf"GPU 0 is used by pid {stranger.pid} of \S+: .*python", told)

    def test_who_went_before_the_end_is_told_too(self, client, events, streaming, computing, stranger):
        computing.write_text(f"GPU-a, {stranger.pid}, python\n")
        self.start(client, streaming, 10_000, look_s=0.2)
        log = computing.with_name("processes.csv.log")
        until(log.exists, "somebody is looked for while the trial runs")
        computing.write_text("")
        until(lambda: log.read_text().count("read") >= 4, "he is no longer seen")
        client.request("trial.cancel", timeout=10, trial="t1")
        end = events.wait("trial.end", timeout=60)
        assert len(end["gpu"]["strangers"]) == 1

    def test_one_of_another_container_may_be_our_own(self, client, events, streaming, computing):
        computing.write_text("GPU-a, 999999999, [Not Found]\n")
        self.start(client, streaming, 12)
        assert events.wait("trial.end", timeout=60)["gpu"]["strangers"] == []


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


def run_until_it_flows(client, events, streaming, **limits):
    order = {**spec(streaming, 100_000), "limits": limits}
    client.request("trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=order, gpu_period_ms=None)
    until(lambda: [e for e in events.named("trial.progress") if e["ok"] > 4], "the trial runs", timeout=30)


def test_a_stopped_server_ends_its_trial_and_is_named(client, events, streaming):
    """Before the limit for silence: a stopped process leaves no doubt."""
    run_until_it_flows(client, events, streaming, silent_s=100, stall_s=100)
    os.kill(streaming["pid"], signal.SIGSTOP)
    result = events.wait("trial.end", timeout=40)["result"]
    assert result["ended_by"] == "stall"
    (stopped,) = result["frozen"]["stopped"]
    assert (stopped["pid"], stopped["state"]) == (streaming["pid"], "T")
    assert result["counts"]["ok"] > 4


def test_a_server_that_goes_on_in_time_was_not_frozen(client, events, streaming):
    run_until_it_flows(client, events, streaming, silent_s=100, stall_s=100)
    done = events.named("trial.progress")[-1]["ok"]
    os.kill(streaming["pid"], signal.SIGSTOP)
    until(
        lambda: time.monotonic_ns() - events.named("trial.progress")[-1]["silent_since_ns"] > 2e9,
        "the streams are silent",
        timeout=30,
    )
    os.kill(streaming["pid"], signal.SIGCONT)
    until(lambda: events.named("trial.progress")[-1]["ok"] > done + 8, "the trial goes on", timeout=30)
    assert not events.named("trial.end")


def test_an_order_before_which_the_server_froze_ends_too(client, events, streaming):
    """The load process still waits for an answer to its questions, and hears no order."""
    os.kill(streaming["pid"], signal.SIGSTOP)
    order = {**spec(streaming, 100), "flush_cache": True, "limits": {"silent_s": 100}}
    client.request("trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=order, gpu_period_ms=None)
    result = events.wait("trial.end", timeout=40)["result"]
    assert result["ended_by"] == "stall"
    assert [one["pid"] for one in result["frozen"]["stopped"]] == [streaming["pid"]]


def test_files_of_a_run_are_for_their_user_alone(client, events, streaming, tmp_path):
    client.request(
        "trial.start", timeout=30, trial="t1", boot="b1", url=None, spec=spec(streaming, 12), gpu_period_ms=None
    )
    events.wait("trial.end", timeout=60)
    runs = tmp_path / "cache" / "sglang-perf" / "runs"
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".log", ".jsonl", ".stderr", ".json"}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files if path.stat().st_mode & 0o077} == {}
    assert {path.stat().st_mode & 0o777 for path in runs.rglob("*") if path.is_dir()} == {0o700}
