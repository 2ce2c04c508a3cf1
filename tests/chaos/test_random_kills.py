"""Kill -9 at random moments: nothing of ours is left, the lease is free, and the next session passes.

Each experiment waits for a stage of the session (its start, its agent, its server, its trial) and then for a random
time, so that boot, trial and teardown are all met however slow the machine is. The moments come from a seed that is
printed: ``SGLANG_PERF_CHAOS_SEED`` repeats them, ``SGLANG_PERF_CHAOS_ROUNDS`` says how many (50 for the full proof).
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.agent import procfs
from tests._proxy import Proxy
from tests.chaos._world import SESSION_S, World, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.chaos

# Fixed by default, so that all xdist workers collect the same tests and a failure can be repeated.
SEED = int(os.environ.get("SGLANG_PERF_CHAOS_SEED", "20260219"))
ROUNDS = int(os.environ.get("SGLANG_PERF_CHAOS_ROUNDS", "10"))

_STAGES = ("before or after", "agent", "server", "trial", "teardown")
_LONGEST_DELAY_S = 1.5


def rounds(count: int, *ways: str) -> list[object]:
    """``count`` experiments, in turn for each of the ways to the node."""
    return [
        pytest.param(number, ways[number % len(ways)], id=f"{number}-{ways[number % len(ways)]}")
        for number in range(count)
    ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Make worlds; all are closed at the end."""
    made: list[World] = []

    def make(way: str) -> World:
        made.append(World(tmp_path, ssh=way == "ssh"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def at_a_random_moment(world: World, session: subprocess.Popen[bytes], kind: str, number: int) -> None:
    """Return at the moment that belongs to this experiment, or when the session has ended before."""
    chance = random.Random(f"{SEED} {kind} {number}")
    # Half of the ways take turns by number, so the stages take turns by pairs.
    stage = _STAGES[number // 2 % len(_STAGES)]
    delay_s = chance.uniform(0.0, _LONGEST_DELAY_S)

    def reached() -> bool:
        return "trial 2 of 2" in world.output() if stage == "teardown" else world.doing() == stage

    wait_for(lambda: session.poll() is not None or reached(), f"it is at {stage!r}", SESSION_S, world.output)
    until = time.monotonic() + delay_s
    while time.monotonic() < until and session.poll() is None:
        world.look()
        time.sleep(0.02)
    print(f"seed {SEED}, {kind} {number}: {delay_s:.3f} s after the stage {stage!r}, now at {world.doing()!r}")


def check(world: World) -> None:
    """What we promise after whatever happened."""
    print(f"nothing was left after {world.nothing_is_left():.1f} s")
    world.lease_is_free()
    world.next_session_passes()
    world.nothing_is_left()


@pytest.mark.parametrize(("number", "way"), rounds(ROUNDS, "local", "ssh"))
def test_pytest_is_killed(world: Callable[..., World], number: int, way: str) -> None:
    it = world(way)
    session = it.start()
    at_a_random_moment(it, session, "pytest", number)
    session.kill()
    session.wait()
    check(it)


@pytest.mark.parametrize(("number", "way"), rounds((ROUNDS + 2) // 3, "local", "ssh"))
def test_the_agent_is_killed(world: Callable[..., World], number: int, way: str) -> None:
    it = world(way)
    session = it.start()
    wait_for(lambda: it.agents() or session.poll() is not None, "the agent runs", SESSION_S, it.output)
    at_a_random_moment(it, session, "agent", number + 2)
    for agent in it.agents():
        procfs.kill(agent, signal.SIGKILL)
    code = it.finish(session)
    assert code in {0, 1}, it.output()
    assert "INTERNALERROR" not in it.output()
    check(it)


@pytest.mark.parametrize(("number", "way"), rounds((ROUNDS + 2) // 3, "ssh"))
def test_the_session_process_of_sshd_is_killed(world: Callable[..., World], number: int, way: str) -> None:
    it = world(way)
    assert it.sshd is not None
    session = it.start()
    wait_for(lambda: it.agents() or session.poll() is not None, "the agent runs", SESSION_S, it.output)
    at_a_random_moment(it, session, "sshd", 2 * number + 2)
    for pid in it.sshd.sessions():
        os.kill(pid, signal.SIGKILL)
    code = it.finish(session)
    assert code in {0, 1}, it.output()  # who comes back within the grace goes on
    assert "INTERNALERROR" not in it.output()
    check(it)


@pytest.mark.parametrize("how", ["freeze", "cut"])
@pytest.mark.parametrize("stage", ["server", "trial", "teardown"])
def test_the_network_is_gone(world: Callable[..., World], stage: str, how: str) -> None:
    it = world("ssh")
    assert it.sshd is not None
    with Proxy(it.sshd.port) as proxy:
        it.point_to(proxy.port)
        session = it.start()
        if stage == "teardown":
            wait_for(lambda: it.look() and "trial 2 of 2" in it.output(), "the last trial ends", SESSION_S, it.output)
        else:
            wait_for(lambda: it.doing() == stage, f"it is at {stage!r}", SESSION_S, it.output)
        getattr(proxy, how)()
        # The node helps itself, whether or not our side has noticed yet.
        it.node_is_clean(session)
        print(f"{how} during {stage}: the session ended with {it.finish(session)}")
        it.lease_is_free()
        proxy.heal()
        it.next_session_passes()
        it.nothing_is_left()


def test_a_slow_network_changes_nothing(world: Callable[..., World]) -> None:
    it = world("ssh")
    assert it.sshd is not None
    with Proxy(it.sshd.port) as proxy:
        it.point_to(proxy.port)
        proxy.delay(0.1)
        it.next_session_passes()
    it.nothing_is_left()


def test_a_frozen_session_loses_its_servers(world: Callable[..., World]) -> None:
    """No end of input tells of it, only the heartbeats that stop: a laptop that went to sleep."""
    it = world("local")
    session = it.start()
    wait_for(lambda: it.doing() == "trial", "a trial runs", SESSION_S, it.output)
    session.send_signal(signal.SIGSTOP)
    it.node_is_clean(session)
    it.lease_is_free()
    session.send_signal(signal.SIGCONT)
    assert it.finish(session) == 1, it.output()
    assert " crashed" not in it.output()  # nobody is to look for a fault in the server
    it.next_session_passes()


def test_a_frozen_agent_is_ended_by_its_guardian(world: Callable[..., World]) -> None:
    it = world("local")
    session = it.start()
    wait_for(lambda: it.doing() == "trial", "a trial runs", SESSION_S, it.output)
    (agent,) = it.agents()
    began = time.monotonic()
    procfs.kill(agent, signal.SIGSTOP)
    assert it.finish(session) == 1, it.output()
    it.nothing_is_left()
    print(f"ended {time.monotonic() - began:.1f} s after the freeze, which counts as one after 30 s")
    it.lease_is_free()
    it.next_session_passes()


def test_the_next_session_ends_what_a_dead_guardian_could_not(world: Callable[..., World]) -> None:
    """Guardian and agent killed at once: nobody is left to sweep, so the next who gets the lease does."""
    it = world("local")
    session = it.start()
    wait_for(lambda: it.doing() == "server", "the server runs", SESSION_S, it.output)
    (agent,) = it.agents()
    guardian = procfs.process(agent.ppid)
    assert guardian is not None
    procfs.kill(guardian, signal.SIGSTOP)  # so that it does nothing between the two
    procfs.kill(agent, signal.SIGKILL)
    procfs.kill(guardian, signal.SIGKILL)
    assert it.finish(session) == 1
    it.next_session_passes()
    it.nothing_is_left()
