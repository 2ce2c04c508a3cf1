"""Who gets what, who is told what, and which folders are refused."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_sglang_perf.agent import livefiles
from pytest_sglang_perf.agent.lease import Lease, LeaseUnavailable, folder_path, holders

OWNER = {"user": "ada", "host": "desk", "pid": 4711}
RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "leases")


@pytest.fixture
def lease(folder):
    """Make leases on the folder, given back at the end."""
    made = []

    def make(user="ada"):
        made.append(Lease({**OWNER, "user": user}, RUN, folder=folder))
        return made[-1]

    yield make
    for one in made:
        one.release()


def take(lease, gpus, wait_s=0.0, purpose="a test", seen=None):
    return asyncio.run(lease.acquire(gpus, wait_s, purpose, (seen if seen is not None else []).append))


async def until(condition):
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - the condition is another process's doing, or a callback's
            await asyncio.sleep(0.01)


def waiters(folder):
    return list(Path(folder).glob("waits-*"))


@pytest.mark.parametrize(
    ("first", "second", "free"),
    [
        (None, None, False),
        (None, [0], False),
        ([0], None, False),
        ([0, 1], [1, 2], False),
        ([0, 1], [2, 3], True),
        ([3, 0, 3], [1], True),
    ],
)
def test_overlap(lease, folder, first, second, free):
    one, other = lease("ada"), lease("bob")
    assert take(one, first)["gpus"] == (None if first is None else sorted(set(first)))
    if free:
        take(other, second)
        assert [who["user"] for who in holders(folder)] == ["ada", "bob"]
        return
    with pytest.raises(LeaseUnavailable, match="ada@desk") as caught:
        take(other, second)
    assert caught.value.holder["user"] == "ada"
    assert other.held() is None
    one.release()
    take(other, second)
    assert [who["user"] for who in holders(folder)] == ["bob"]


def test_what_others_read(lease, folder):
    mine = lease()
    before = time.time_ns()
    got = take(mine, [1], purpose="sbo at 1024")
    assert before <= got["since_wall_ns"] <= time.time_ns()
    (who,) = holders(folder)
    assert who == mine.held()
    assert {name: who[name] for name in ("user", "host", "pid", "run", "purpose", "gpus")} == {
        **OWNER,
        "run": RUN,
        "purpose": "sbo at 1024",
        "gpus": [1],
    }
    assert who["agent_pid"] == os.getpid()
    assert who["since"].endswith("+00:00")
    modes = {path.name[:6]: stat.S_IMODE(path.stat().st_mode) for path in Path(folder).iterdir()}
    assert modes == {"node.l": 0o644, "gpu-1.": 0o644, "holds-": 0o644}
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o1777
    mine.release()
    assert mine.held() is None
    assert holders(folder) == []


def test_again_and_other(lease):
    mine = lease()
    assert take(mine, [0]) == take(mine, [0])
    with pytest.raises(ValueError, match="release it first"):
        take(mine, [1])
    for wrong in ([], [-1, 2]):
        with pytest.raises(ValueError, match="GPU indices"):
            take(lease(), wrong)


def test_waiting_tells_each_holder_once(lease):
    """A waiter hears of the first holder, then of the next; the loop stays free meanwhile."""

    async def scene():
        seen: list[dict] = []
        one, two, waiter = lease("ada"), lease("bob"), lease("eve")
        await one.acquire([0], 0, "first", seen.append)
        await two.acquire([1], 0, "second", seen.append)
        assert seen == []
        task = asyncio.ensure_future(waiter.acquire(None, 20.0, "all", seen.append))
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.2)  # time enough to be told twice
        assert [who["user"] for who in seen] == ["ada"]
        one.release()
        await until(lambda: len(seen) == 2)
        assert [who["user"] for who in seen] == ["ada", "bob"]
        two.release()
        await asyncio.wait_for(task, 10)
        assert waiter.held() is not None

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_who_came_first_is_first(lease):
    """GPU 1 is free, but who waits for the whole node came before: else it might wait for ever."""

    async def scene():
        seen: list[dict] = []
        half, whole, other = lease("ada"), lease("bob"), lease("eve")
        await half.acquire([0], 0, "half", seen.append)
        task = asyncio.ensure_future(whole.acquire(None, 20.0, "all of it", seen.append))
        await until(lambda: seen)
        with pytest.raises(LeaseUnavailable, match=r"bob@desk .* waits before us for the whole node") as caught:
            await other.acquire([1], 0.2, "the other half", seen.append)
        assert caught.value.holder["waiting"] is True
        half.release()
        await task
        whole.release()
        await other.acquire([1], 0, "the other half", seen.append)

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_the_deadline_holds(lease):
    take(lease("ada"), None)
    began = time.monotonic()
    with pytest.raises(LeaseUnavailable) as caught:
        take(lease("bob"), None, wait_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert caught.value.holder["user"] == "ada"


def test_a_cancelled_wait_leaves_nothing(lease, folder):
    async def scene():
        task = asyncio.ensure_future(lease("bob").acquire(None, 60, "never", lambda _: None))
        await until(lambda: waiters(folder))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    take(lease("ada"), None)
    asyncio.run(scene())
    assert not waiters(folder)


def test_a_leftover_is_not_believed(lease, folder):
    """Who was killed leaves a file that says it holds the node; its lock is free, so it does not."""
    take(lease(), None)
    (real,) = Path(folder).glob("holds-*")
    leftover = real.with_name("holds-00000000000000000001-dead")
    leftover.write_bytes(real.read_bytes())
    assert len(holders(folder)) == 1
    assert not leftover.exists()  # ours, so removed on the way


def test_an_info_without_the_lock_is_not_believed(lease, folder):
    """Somebody keeps his file locked and has no lease."""
    take(lease(), [0])
    boast = Path(folder, "holds-1")
    boast.write_text(json.dumps({"user": "mallory", "gpus": [5]}))
    with boast.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [who["user"] for who in holders(folder)] == ["ada"]
        take(lease(), [5])


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 9000, b'{"gpus": "all"}', b"x" * 99999])
def test_nonsense_of_others_harms_nobody(lease, folder, content):
    take(lease(), [0])
    for prefix in ("holds-0", "waits-0"):
        Path(folder, prefix).write_bytes(content)
    with Path(folder, "holds-0").open() as one, Path(folder, "waits-0").open() as two:
        os.utime(one.fileno(), (0, 0))
        os.utime(two.fileno(), (0, 0))
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX)
        assert [who["user"] for who in holders(folder) if who.get("user")] == ["ada"]
        take(lease("bob"), [1])


def test_nothing_of_others_reaches_a_terminal_raw(lease):
    take(lease("\x1b[31mred\n" + "x" * 9999), None)
    with pytest.raises(LeaseUnavailable) as caught:
        take(lease("bob"), None)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_unnamed_holder(lease, folder):
    """A program of another kind locked the file and says nothing: it is respected."""
    mine = lease()
    take(mine, [7])
    mine.release()
    with Path(folder, "gpu-7.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LeaseUnavailable, match="does not say who") as caught:
            take(mine, [7])
        assert caught.value.holder == {}
    take(mine, [7])


@pytest.mark.parametrize("trap", ["symlink", "fifo", "folder"])
def test_traps_in_the_folder_are_refused(lease, folder, tmp_path, trap):
    take(lease(), [0])
    node = Path(folder, "gpu-1.lock")
    target = tmp_path / "victim"
    target.touch()
    {"symlink": lambda: node.symlink_to(target), "fifo": lambda: os.mkfifo(node), "folder": node.mkdir}[trap]()
    with pytest.raises(LeaseUnavailable, match="SGLANG_PERF_LEASE_DIR"):
        take(lease("bob"), [1])


def test_folders_that_are_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir(mode=0o755)
    link, file, loose = tmp_path / "link", tmp_path / "file", tmp_path / "loose"
    link.symlink_to(real)
    file.touch()
    loose.mkdir()
    loose.chmod(0o777)
    for wrong in (link, file, loose):
        with pytest.raises(LeaseUnavailable, match=str(wrong)) as caught:
            take(Lease(OWNER, RUN, folder=str(wrong)), None)
        assert caught.value.holder == {}
        assert holders(str(wrong)) == []
    assert holders(str(tmp_path / "missing")) == []
    assert not (tmp_path / "missing").exists()


def test_a_folder_half_made_is_mended(tmp_path):
    """Its maker was killed before it opened it to others."""
    half = tmp_path / "half"
    half.mkdir(mode=0o700)
    one = Lease(OWNER, RUN, folder=str(half))
    take(one, None)
    one.release()
    assert stat.S_IMODE(half.stat().st_mode) == 0o1777


def test_the_environment_moves_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_PERF_LEASE_DIR", str(tmp_path / "here"))
    assert folder_path() == str(tmp_path / "here")
    one = Lease(OWNER, RUN)
    take(one, None)
    assert len(holders()) == 1
    one.release()
    monkeypatch.delenv("SGLANG_PERF_LEASE_DIR")
    assert folder_path() == "/tmp/sglang-perf-lease"


def test_a_cleaner_takes_the_files_away(lease, folder):
    """Whoever had opened the old lock file finds that it is no longer the one that others would lock."""
    node = Path(folder, "node.lock")
    take(lease("ada"), None)
    node.unlink()
    replaced = take(lease("bob"), None)  # a new file is a new lock: nothing else is possible then
    assert replaced["gpus"] is None
    assert node.exists()


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: Path(folder).rename(f"{folder}.old")])
def test_a_folder_that_vanishes_while_one_waits(lease, folder, remove):
    """Those who come later would use another folder: a lock in this one would exclude nobody."""

    async def scene():
        seen: list[dict] = []
        holder, waiter = lease("ada"), lease("bob")
        await holder.acquire(None, 0, "all", seen.append)
        task = asyncio.ensure_future(waiter.acquire(None, 20.0, "all", seen.append))
        await until(lambda: seen)
        remove(folder)
        holder.release()
        with pytest.raises(LeaseUnavailable, match="cannot be used"):
            await task
        assert waiter.held() is None

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_file_that_vanishes_while_it_is_locked(tmp_path, monkeypatch):
    """Opened, then taken away by a cleaner, then locked: that lock would exclude nobody."""
    folder = livefiles.open_folder(str(tmp_path), make=False)
    real = livefiles._lock

    def too_late(descriptor, kind):
        (tmp_path / "node.lock").unlink()
        monkeypatch.undo()
        return real(descriptor, kind)

    monkeypatch.setattr(livefiles, "_lock", too_late)
    try:
        assert livefiles.try_lock(folder, "node.lock", fcntl.LOCK_EX) is None
        lock = livefiles.try_lock(folder, "node.lock", fcntl.LOCK_EX)
        assert lock is not None
        livefiles.unlock(lock)
    finally:
        os.close(folder)


def test_a_forked_child_does_not_keep_the_lease(lease):
    """Between fork and exec a child has copies of the locks' descriptors; giving back does not wait for it."""
    mine = lease()
    take(mine, None)
    with subprocess.Popen(["sleep", "60"], pass_fds=mine._locks) as child:
        try:
            mine.release()
            take(lease("bob"), None)
        finally:
            child.kill()


def test_children_do_not_inherit_the_lease(lease, folder):
    """A program that the agent started lives on; it has no lock open."""
    mine = lease()
    take(mine, None)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            mine.release()
            take(lease("bob"), None)
            links = []
            for path in Path(f"/proc/{child.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile: it is still starting
                    links.append(str(path.readlink()))
            assert not [link for link in links if folder in link]
        finally:
            child.kill()


@pytest.fixture
def shared_folder():
    """Where other users get to, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o1777)
        yield f"{outer}/leases"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users(shared_folder):
    """With a umask that hides everything, and each file made by whoever came first."""
    program = f"""
import asyncio, encodings.idna, os, sys
from pytest_sglang_perf.agent.lease import Lease, LeaseUnavailable, holders
os.umask(0o077)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
lease = Lease({{"user": "nobody", "host": "h", "pid": 1}}, "0" * 32, folder={shared_folder!r})
try:
    asyncio.run(lease.acquire([0], 0, "x", lambda holder: print("waits for", holder["node_user"])))
    print("got it", flush=True)
    sys.stdin.read()
except LeaseUnavailable as error:
    print("lost to", error.holder.get("node_user"), error)
"""

    def nobody():
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    root = Lease({**OWNER, "user": "root"}, RUN, folder=shared_folder)
    with nobody() as first:
        assert first.stdout.readline() == "got it\n"
        with pytest.raises(LeaseUnavailable) as caught:
            take(root, [0])
        assert caught.value.holder["node_user"] == "nobody"
        first.kill()
    take(root, [0])
    with nobody() as second:
        out, _ = second.communicate()
    assert out.startswith("waits for root\nlost to root"), out
    root.release()
