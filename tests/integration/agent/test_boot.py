"""Boots of a real process: readiness, death, stop, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from pytest_sglang_perf.agent import procfs
from pytest_sglang_perf.errors import AgentError
from tests.integration.agent.waiting import until


def gone(pid):
    one = procfs.process(pid)
    return one is None or one.dead


def workers(answer):
    with urllib.request.urlopen(f"http://127.0.0.1:{answer['port']}/pids", timeout=10) as response:
        return json.load(response)["workers"]


def test_a_boot_becomes_ready_and_stops_in_order(start, events, client):
    answer = start({"expect": {"model_path": "tiny"}}, starting_s=0.3, children=["sglang::scheduler", "plain"])
    ready = events.wait("boot.ready")
    assert ready["listener_pid"] == answer["pid"]
    assert ready["server_info"]["port"] == answer["port"]
    assert sorted(child["title"].split()[0] for child in ready["children"]) == ["plain", "sglang::scheduler"]
    states = [event["state"] for event in events.named("boot.probe")]
    assert states[0] == "refused"
    assert states[-2:] == ["starting", "ready"]
    client.request("boot.stop", timeout=10, boot="b1", term_s=5)
    ended = events.wait("boot.exit")
    assert (ended["code"], ended["after_stop"]) == (0, True)
    events.wait("boot.swept")
    assert events.named("boot.child_died") == []
    assert gone(answer["pid"])


def test_an_older_server_without_ready_is_judged_by_health(start, events):
    start({"expect": {"model_path": "tiny"}}, ready=False)
    assert events.wait("boot.ready")["server_info"]["model_path"] == "tiny"


def test_a_server_that_reports_something_else_is_not_ready(start, events):
    start({"expect": {"model_path": "large"}})
    until(lambda: [e for e in events.named("boot.probe") if e["state"] == "mismatch"], "the mismatch is told")
    assert "model_path is 'tiny', launched with 'large'" in events.named("boot.probe")[-1]["detail"]
    assert events.named("boot.ready") == []


def test_a_held_port_is_refused_with_its_holder(start):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(AgentError) as caught:
            start({"port": holder.getsockname()[1]})
    assert caught.value.kind == "port_in_use"
    assert caught.value.details["pid"] == os.getpid()
    assert caught.value.details["command"] == procfs.command(os.getpid())


def test_another_program_that_takes_the_port_is_never_ready(start, events):
    answer = start(delay_s=60)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", answer["port"]))
        other.listen(64)
        until(
            lambda: [e for e in events.named("boot.probe") if e["state"] == "foreign_listener"],
            "the stranger is told",
            timeout=30,
        )
    assert f"pid {os.getpid()}" in events.named("boot.probe")[-1]["detail"]
    assert events.named("boot.ready") == []


def test_a_server_that_fails_tells_its_code_after_its_last_words(start, events):
    start(fail=3, log=["Traceback\n", "the last words"])
    ended = events.wait("boot.exit")
    assert (ended["code"], ended["after_stop"]) == (3, False)
    assert events.log == ["Traceback", "the last words"]
    assert events.all.index(ended) > max(events.all.index(event) for event in events.named("boot.log"))


def test_a_killed_server_is_noticed_and_its_children_are_swept(start, events):
    answer = start(children=["sglang::scheduler"])
    events.wait("boot.ready")
    (worker,) = workers(answer)
    os.kill(answer["pid"], signal.SIGKILL)
    assert events.wait("boot.exit")["code"] == -9
    assert worker in events.wait("boot.swept")["killed"]
    assert gone(worker)


def test_a_dead_worker_is_told_although_the_parent_lives(start, events):
    answer = start(children=["sglang::detokenizer", "ninja"])
    events.wait("boot.ready")
    detokenizer, ninja = workers(answer)
    os.kill(ninja, signal.SIGKILL)
    os.kill(detokenizer, signal.SIGKILL)
    died = events.wait("boot.child_died")
    assert (died["pid"], died["status"]) == (detokenizer, -9)
    assert died["title"].startswith("sglang::detokenizer")
    assert len(events.named("boot.child_died")) == 1


def test_a_server_that_ignores_sigterm_is_killed(start, events, client):
    start(term="ignore", children=["sglang::scheduler"])
    events.wait("boot.ready")
    client.request("boot.stop", timeout=10, boot="b1", term_s=0.3)
    assert events.wait("boot.exit")["code"] == -9
    events.wait("boot.swept")


def test_a_grandchild_that_escaped_is_swept(start, events, client, tmp_path):
    note = tmp_path / "pid"
    start(escaped=str(note))
    events.wait("boot.ready")
    escaped = int(note.read_text())
    assert not gone(escaped)
    client.request("boot.stop", timeout=10, boot="b1", term_s=5)
    assert escaped in events.wait("boot.swept")["killed"]
    assert gone(escaped)


def test_each_boot_has_a_log_of_its_own(start, client, events):
    first = start(log=["one\n"])
    second = start(boot="b2", log=["two\n"])
    assert first["log_path"] != second["log_path"]
    until(lambda: {"one", "two"} <= set(events.log), "both have logged")
    assert client.read_file(first["log_path"]) == b"one\n"
    assert Path(first["log_path"]).stat().st_mode & 0o777 == 0o600
    with pytest.raises(AgentError, match="used before"):
        start()


def test_activity_comes_every_second(start, events):
    start(log=["twelve bytes"])
    until(lambda: len(events.named("boot.activity")) >= 2, "two activities came")
    assert events.named("boot.activity")[-1]["log_bytes"] == 12


def test_what_cannot_be_started_says_why(client):
    with pytest.raises(AgentError) as caught:
        client.request("boot.start", timeout=10, boot="x", argv=["/no/such/program"])
    assert caught.value.kind == "spawn_failed"
    assert "/no/such/program" in str(caught.value)


def test_secrets_reach_the_server_and_nothing_else(client, events, tmp_path):
    marker, key = "hf_MARKER0123456789", "key-MARKER-abcdef"
    script = tmp_path / "server.py"
    script.write_text(
        "import os, sys, time\n"
        "print('token', os.environ['HF_TOKEN'], flush=True)\n"
        "print('file', open(sys.argv[1]).read(), flush=True)\n"
        "time.sleep(600)\n"
    )
    answer = client.request(
        "boot.start",
        timeout=10,
        boot="b1",
        argv=[sys.executable, str(script), "{secret_file:args.yaml}"],
        env={"HF_TOKEN": marker},
        secret_env=["HF_TOKEN"],
        secret_files={"{secret_file:args.yaml}": json.dumps({"api-key": key})},
    )
    until(lambda: len(events.log) >= 2, "it has printed")
    assert events.log[0] == "token " + "*" * len(marker)
    assert marker not in str(events.all)
    assert key not in str(events.all)
    assert key not in procfs.command(answer["pid"])
    log = Path(answer["log_path"])
    assert key.encode() not in log.read_bytes()
    assert marker.encode() not in log.read_bytes()
    client.request("boot.stop", timeout=10, boot="b1", term_s=1)
    events.wait("boot.swept")
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            assert marker.encode() not in path.read_bytes(), path
            assert key.encode() not in path.read_bytes(), path
