"""Sessions that race: never two at once, none starves, and the dead hold nothing."""

from __future__ import annotations

import json
import signal
import time

import pytest

from pytest_sglang_perf.agent.lease import holders

from .conftest import wait_for


def order(process, gpus=None):
    process.stdin.write(json.dumps(gpus) + "\n")


def answer(process):
    for line in process.stdout:
        if line != "held\n":
            return json.loads(line)
    raise AssertionError("a racer died")


def test_a_hundred_rounds_of_eight_sessions(racers, tmp_path):
    """Each round all eight want the node at the same moment, and each has to get it before its deadline."""
    sessions = racers(8, wait_s=10.0, hold_s=0.001)
    for number in range(100):
        for session in sessions:
            order(session)
        answers = [answer(session) for session in sessions]
        assert [a for a in answers if "lost" in a or a["clash"]] == [], f"round {number}"
    assert sorted(path.name for path in (tmp_path / "leases").iterdir()) == ["node.lock"]


def test_a_whole_node_does_not_starve_among_halves(racers):
    """Halves that come again and again never leave the node free; who wants all of it still gets its turn."""
    halves = racers(4, wait_s=20.0, hold_s=0.02)
    whole = racers(1, wait_s=20.0, hold_s=0.001)[0]
    for round_number in range(10):
        for number, session in enumerate(halves):
            for _ in range(3):
                order(session, [0, 1] if number % 2 else [2, 3])
        order(whole)
        for session in [whole, *halves, *halves, *halves]:
            got = answer(session)
            assert "lost" not in got, round_number
            assert got["clash"] is None, round_number


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_holds_nothing(racers, tmp_path, end):
    waiter = racers(1, wait_s=20.0, hold_s=0.001)[0]
    slow = racers(1, wait_s=20.0, hold_s=60.0)[0]
    order(slow)
    assert slow.stdout.readline() == "held\n"
    folder = str(tmp_path / "leases")
    assert [who["pid"] for who in holders(folder)] == [slow.pid]
    order(waiter)
    assert wait_for(lambda: any(path.name.startswith("waits-") for path in (tmp_path / "leases").iterdir()))
    for mark in (tmp_path / "witness").iterdir():
        mark.unlink()  # the dead do not
    slow.send_signal(end)
    slow.wait()
    got = answer(waiter)
    assert got["clash"] is None
    assert got["seen"] == 1
    assert holders(folder) == []


def test_a_stopped_waiter_loses_its_place(racers, tmp_path):
    """It came first, but is stopped when the node gets free: the next one does not wait for it for ever."""
    first, second, third = racers(3, wait_s=30.0, hold_s=0.001)
    slow = racers(1, wait_s=30.0, hold_s=1.0)[0]
    order(slow)
    assert slow.stdout.readline() == "held\n"
    leases = tmp_path / "leases"
    order(first)
    assert wait_for(lambda: sum(path.name.startswith("waits-") for path in leases.iterdir()) == 1)
    first.send_signal(signal.SIGSTOP)
    try:
        order(second)
        order(third)
        began = time.monotonic()
        assert "lost" not in answer(second)
        assert "lost" not in answer(third)
        assert time.monotonic() - began < 15
    finally:
        first.send_signal(signal.SIGCONT)
    assert "lost" not in answer(first)
