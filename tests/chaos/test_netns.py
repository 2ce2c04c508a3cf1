"""A real network to the node, in a namespace of its own: slow and lossy, or its cable pulled during each stage.

``test_random_kills`` does the like through a proxy, which needs no right to change the machine's network.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests._netns import Bad, Namespace, namespace
from tests.chaos._world import PROMISE_S, SESSION_S, World, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.chaos

BAD = Bad(delay_s=0.1, jitter_s=0.02, loss=0.02)
#: What a bad network is to be survived with: TCP itself needs seconds when it loses the same segment again and again.
PATIENT = {"ttl_s": 30.0, "grace_s": 15.0}
SHORT_S = 3.0

# The user's own: teardown begins when somebody lets it. A healthy one is over in a fraction of a second, with the cable
# pulled in time or not.
_GATE = """
import pathlib, time, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem):
    if nextitem is None:
        pathlib.Path("teardown").touch()
    while nextitem is None and not pathlib.Path("go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Callable[..., tuple[World, Namespace]]]:
    """Make a world whose node is in a namespace; both are gone at the end."""
    with ExitStack() as stack:

        def make(bad: Bad | None = None) -> tuple[World, Namespace]:
            net = stack.enter_context(namespace(bad))
            world = World(tmp_path, ssh=True, far=net)
            stack.callback(world.close)
            return world, net

        yield make


def until(world: World, session: subprocess.Popen[bytes], stage: str) -> None:
    """Wait until the session is at this stage."""

    def reached() -> bool:
        if stage == "teardown":
            return world.look() and (world.folder / "teardown").exists()
        return world.doing() == stage

    wait_for(reached, f"it is at {stage!r}", SESSION_S, world.output)
    assert session.poll() is None, world.output()


def pull(world: World, net: Namespace) -> None:
    """Pull the cable, and see that it is out: nobody answers, not even to refuse."""
    assert world.sshd is not None
    net.down()
    with pytest.raises(TimeoutError):
        socket.create_connection((net.address, world.sshd.port), timeout=0.3)


@pytest.mark.parametrize("stage", ["server", "trial", "teardown"])
def test_the_link_is_down_for_good(far: Callable[..., tuple[World, Namespace]], stage: str) -> None:
    it, net = far()
    (it.folder / "conftest.py").write_text(_GATE)
    if stage != "teardown":
        (it.folder / "go").touch()
    session = it.start()
    until(it, session, stage)
    began = time.monotonic()
    pull(it, net)
    (it.folder / "go").touch()
    assert it.agents(), it.describe()
    it.node_is_clean(session)
    print(f"the node was clean after {time.monotonic() - began:.1f} s of {PROMISE_S:g}")
    it.lease_is_free()
    code = it.finish(session)
    print(f"the session ended with {code} after {time.monotonic() - began:.1f} s")
    assert code == 1 or (code == 0 and stage == "teardown"), it.output()
    assert "INTERNALERROR" not in it.output()
    net.up()
    it.next_session_passes()
    it.nothing_is_left()


@pytest.mark.parametrize("stage", ["server", "trial"])
def test_the_link_is_down_for_a_moment(far: Callable[..., tuple[World, Namespace]], stage: str) -> None:
    it, net = far()
    session = it.start(**PATIENT)
    until(it, session, stage)
    pull(it, net)
    back = time.monotonic() + SHORT_S
    wait_for(lambda: it.look() and time.monotonic() >= back, "the moment is over", 2 * SHORT_S, it.output)
    assert session.poll() is None, it.output()
    net.up()
    assert it.finish(session) == 0, it.output()
    it.nothing_is_left()
    it.lease_is_free()


def test_a_slow_and_lossy_link_changes_nothing(far: Callable[..., tuple[World, Namespace]]) -> None:
    it, net = far(BAD)
    assert it.sshd is not None
    began = time.monotonic()
    with socket.create_connection((net.address, it.sshd.port), timeout=30):
        took_s = time.monotonic() - began
    # Else the link is a good one, and what follows proves nothing.
    assert took_s >= 2 * (BAD.delay_s - BAD.jitter_s)
    session = it.start(**PATIENT)
    assert it.finish(session) == 0, it.output()
    print(f"passed after {time.monotonic() - began:.1f} s, with {net.lost()} packets lost")
    assert net.lost() > 0
    it.nothing_is_left()
    it.lease_is_free()
