"""Ctrl-C, SIGTERM and SIGHUP: servers end in order, with the exit codes that shells and CI expect."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos._world import SESSION_S, World, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: By when a session is gone that was told to go; it takes well below a second on an idle machine.
_SOON_S = 30.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    it = World(tmp_path, ssh=False)
    yield it
    it.close()


def server_logs(world: World) -> str:
    """What every server of the node has written, as the agent keeps it."""
    return "".join(path.read_text() for path in (world.folder / "cache").rglob("boot-*.log"))


@pytest.mark.parametrize(
    ("number", "stage", "code"),
    [
        (signal.SIGINT, "trial", pytest.ExitCode.INTERRUPTED),
        (signal.SIGTERM, "server", 128 + 15),
        (signal.SIGHUP, "trial", 128 + 1),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_the_session_in_order(world: World, number: signal.Signals, stage: str, code: int) -> None:
    session = world.start()
    wait_for(lambda: world.doing() == stage, f"it is at {stage!r}", SESSION_S, world.output)
    if stage == "server":
        wait_for(lambda: "ready after" in world.output(), "the server runs", SESSION_S, world.output)
    session.send_signal(number)
    assert world.finish(session) == code, world.output()
    assert "INTERNALERROR" not in world.output()
    assert "no tests ran" in world.output() or "passed" in world.output()
    world.nothing_is_left()
    assert "Gracefully exiting" in server_logs(world)
    world.lease_is_free()


def test_ctrl_c_twice_is_immediate_and_the_agent_still_cleans_up(world: World) -> None:
    session = world.start()
    wait_for(lambda: world.doing() == "trial", "a trial runs", SESSION_S, world.output)
    (agent,) = world.agents()
    os.kill(agent.pid, signal.SIGSTOP)  # so that its answer to our farewell is late for sure
    session.send_signal(signal.SIGINT)
    wait_for(
        lambda: "KeyboardInterrupt" in world.output() or session.poll() is not None, "it stops", SESSION_S, world.output
    )
    began = time.monotonic()
    session.send_signal(signal.SIGINT)
    wait_for(lambda: session.poll() is not None, "the session is gone", _SOON_S, world.output)
    print(f"gone {time.monotonic() - began:.2f} s after the second")
    assert session.returncode != 0
    os.kill(agent.pid, signal.SIGCONT)
    world.nothing_is_left()
    world.lease_is_free()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, pytest.ExitCode.INTERRUPTED), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_under_xdist_too_servers_end_in_order(world: World, number: signal.Signals, code: int) -> None:
    session = world.start("-n", "2")
    wait_for(lambda: world.doing() == "trial", "a trial runs", SESSION_S, world.output)
    session.send_signal(number)
    assert world.finish(session) == code, world.output()
    assert "INTERNALERROR" not in world.output()
    world.nothing_is_left()
    assert "Gracefully exiting" in server_logs(world)
    world.lease_is_free()


def test_under_xdist_a_second_signal_is_immediate_and_the_agents_still_clean_up(world: World) -> None:
    session = world.start("-n", "2")
    wait_for(lambda: world.doing() == "trial", "a trial runs", SESSION_S, world.output)

    def gone() -> bool:
        session.send_signal(signal.SIGTERM)  # once more: two that are sent together may arrive as one
        return session.poll() is not None

    wait_for(gone, "the session is gone", _SOON_S, world.output)
    assert session.returncode != 0
    world.nothing_is_left()
    assert "Gracefully exiting" in server_logs(world)
    world.lease_is_free()
