"""No message ends the agent, and a controller that does not read never holds up supervision."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent import procfs
from tests.integration.agent.waiting import until

OPS = [
    "hello", "status", "facts", "lease.acquire", "lease.release", "boot.start", "boot.stop", "boot.server_info",
    "trial.start", "trial.cancel", "file.read", "reap", "checkup", "beat",
]  # fmt: skip
NAMES = ["boot", "trial", "argv", "env", "host", "port", "spec", "path", "offset", "gpus", "wait_s", "run", "protocol"]
VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.text(max_size=3))
ORDER = st.dictionaries(st.sampled_from(NAMES), VALUE | st.dictionaries(st.text(max_size=3), VALUE, max_size=2))
LINE = st.one_of(
    st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")),
    VALUE.map(lambda value: json.dumps(value).encode()),
    st.builds(
        lambda op, order, identity: json.dumps({**order, "op": op, "id": identity}).encode(),
        st.sampled_from([op for op in OPS if op not in {"facts", "checkup"}]),
        ORDER,
        VALUE,
    ),
)


def test_no_line_ends_the_agent(client):
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(LINE, max_size=10))
    def throw(lines):
        client._channel.send(b"".join(line + b"\n" for line in lines), timeout=10)

    throw()
    status = client.request("status", timeout=60)
    assert status["pid"] > 0


def test_internal_errors_are_told_by_no_order_of_ours(client):
    """A wrong parameter is named; it never surfaces as a fault of the agent."""
    answers = []
    for op in OPS:
        for order in ({}, {"boot": 1}, {"boot": "b", "argv": []}, {"trial": "t", "spec": 3}, {"path": "\0"}):
            try:
                client.request(op, timeout=30, **order)
            except Exception as error:  # noqa: BLE001 - collected and judged below
                answers.append((op, order, error))
    assert [answer for answer in answers if getattr(answer[2], "kind", "") in {"internal", "timeout"}] == []


def test_a_controller_that_does_not_read_does_not_stop_supervision(new_client, boot_fake):
    client = new_client(run=uuid.uuid4().hex, ttl_s=60.0)
    client.connect()
    events = boot_fake(client, log=["x" * 1000 + "\n"] * 5)
    pid = events.wait("boot.ready")["listener_pid"]
    # From here on nobody reads, while the log grows by far more than pipes and the outbox hold.
    channel, receive = client._channel, client._channel.receive
    reading = {"on": False}

    def paused(*, timeout):
        until(lambda: reading["on"], "reading goes on", timeout=60)
        return receive(timeout=timeout)

    channel.receive = paused
    log = events.started["log_path"]
    with Path(log).open("ab") as file:
        file.writelines((b"y" * 200 + b"\n") * 400 for _ in range(300))  # 24 MB in all
    os.kill(pid, signal.SIGKILL)
    until(lambda: procfs.process(pid) is None, "the agent has reaped it although nobody reads")
    reading["on"] = True
    assert events.wait("boot.exit", timeout=60)["code"] == -9
    events.wait("boot.swept", timeout=60)
    numbers = [event["seq"] for event in events.all]
    assert numbers == sorted(set(numbers))


def open_files(pid):
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def test_our_descriptors_are_not_inherited(start, events):
    answer = start()
    events.wait("boot.ready")
    agent = procfs.process(answer["pid"])
    assert agent is not None
    sockets_and_pipes = {name for name in open_files(agent.ppid) if name.startswith(("socket:", "pipe:"))}
    assert sockets_and_pipes
    assert not sockets_and_pipes & open_files(answer["pid"])
