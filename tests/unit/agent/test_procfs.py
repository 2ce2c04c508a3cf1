"""What /proc says about processes that we know."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time

import pytest

from pytest_sglang_perf.agent import ports, procfs
from pytest_sglang_perf.agent.protocol import OrderError
from pytest_sglang_perf.agent.sweep import RUN_VARIABLE, carriers, kill_until_gone

_SYS_EXIT = 60 if platform.machine() == "x86_64" else 93  # ends one thread


@pytest.fixture
def sleeper():
    """A process that sleeps, and carries a run's id."""
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    env = {**os.environ, RUN_VARIABLE: "f" * 32}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process(sleeper):
    one = procfs.process(sleeper.pid)
    assert one is not None
    assert (one.ppid, one.dead) == (os.getpid(), False)
    assert procfs.lives(sleeper.pid, one.start)
    assert not procfs.lives(sleeper.pid, one.start + 1)
    assert procfs.variable(sleeper.pid, RUN_VARIABLE) == "f" * 32
    assert "time.sleep(600)" in procfs.command(sleeper.pid)
    assert sleeper.pid in procfs.descendants(procfs.all_processes(), [os.getpid()])
    assert procfs.exit_code(sleeper.pid) is None


def test_a_zombie_is_dead_and_tells_its_signal(sleeper):
    one = procfs.process(sleeper.pid)
    assert one is not None
    assert procfs.kill(one)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    zombie = procfs.process(sleeper.pid)
    assert zombie is not None
    assert zombie.dead
    assert procfs.exit_code(sleeper.pid) == -signal.SIGKILL
    assert not procfs.lives(sleeper.pid, one.start)


def test_another_process_with_the_same_pid_is_never_signalled(sleeper):
    one = procfs.process(sleeper.pid)
    assert one is not None
    assert not procfs.kill(one._replace(start=one.start - 1))
    assert sleeper.poll() is None


def test_a_run_id_is_matched_whole(sleeper):
    assert [one.pid for one in carriers("f" * 32)] == [sleeper.pid]
    assert carriers("f" * 31) == []
    assert carriers("f" * 32, boot="b1") == []
    strangers: set[tuple[int, int]] = set()
    assert len(carriers("f" * 32, strangers=strangers)) == 1
    assert len(carriers("f" * 32, strangers=strangers)) == 1
    assert sleeper.pid not in {pid for pid, _ in strangers}


def test_what_forks_while_it_is_killed_is_killed_too(sleeper):
    rounds = [carriers("f" * 32), []]
    assert kill_until_gone(lambda: rounds.pop(0), timeout=5) == {sleeper.pid}
    assert rounds == []


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_held_port_names_its_holder(family, host):
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listener.listen()
        port = listener.getsockname()[1]
        assert ports.holder_of(port).pid == os.getpid()
        assert ports.listener_among(port, [os.getpid()]) == os.getpid()
        assert ports.listener_among(port, []) is None
        with pytest.raises(OrderError) as caught:
            ports.claim(host, port)
        assert caught.value.kind == "port_in_use"
        assert caught.value.details["pid"] == os.getpid()
    assert ports.claim(host, port) == port


def test_any_free_port():
    assert 1024 < ports.claim("127.0.0.1", 0) < 65536


def test_a_process_whose_end_has_begun_is_not_yet_dead_to_who_waits_for_it():
    """Its first thread has ended and another goes on: like a process whose GPU memory is still being given back."""
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
        f"print(flush=True); ctypes.CDLL(None).syscall({_SYS_EXIT}, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            one = procfs.process(process.pid)
            assert one is not None
            deadline = time.monotonic() + 20
            while not procfs.exiting(process.pid, one.start):
                assert time.monotonic() < deadline, "the first thread did not end"
                time.sleep(0.01)
            assert process.poll() is None
            assert procfs.exiting(process.pid, one.start + 1)
        finally:
            process.kill()
    ourselves = procfs.process(os.getpid())
    assert ourselves is not None
    assert not procfs.exiting(ourselves.pid, ourselves.start)
