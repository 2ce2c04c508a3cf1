"""Programs that are asked something, and what they may do wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from pytest_sglang_perf.agent import command
from pytest_sglang_perf.agent.command import run

from .conftest import running, wait_for


def test_what_it_says_and_how_it_ends():
    finished = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], 20)
    assert tuple(finished) == (3, "out\n", "err\n")
    assert finished.trouble("it") == "it ended with status 3: err"
    assert run(["true"], 20).trouble("it") is None


def test_a_new_session_with_signals_as_they_come():
    """SIGPIPE ends it, although Python ignores that one; its group is its own, to be killed as a whole."""
    finished = run(["grep", "-E", "^(SigIgn|SigBlk|NSsid|NSpgid|Pid):", "/proc/self/status"], 20)
    status = dict(line.split(":\t") for line in finished.out.splitlines())
    assert int(status["SigIgn"], 16) & 1 << 12 == 0
    assert int(status["SigBlk"], 16) == 0
    assert status["NSsid"] == status["NSpgid"] == status["Pid"]
    assert int(status["Pid"]) != os.getpid()


@pytest.mark.parametrize("argv", [[], ["/no/such/program"], ["/etc/passwd"], ["/"]])
def test_what_cannot_be_started(argv):
    finished = run(argv, 20)
    assert finished.status == 127
    assert finished.trouble("it")


def test_one_that_leaves_a_child_with_the_pipe():
    """Its child keeps stdout open: the answer comes in time all the same, and the child goes with the group."""
    program = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    began = time.monotonic()
    finished = run([sys.executable, "-c", program], 2.0)
    assert time.monotonic() - began < 10
    assert finished.status == 0
    assert wait_for(lambda: not running(int(finished.out)))


def test_output_without_end():
    finished = run([sys.executable, "-c", "while True: print('x' * 65536)"], 1.5)
    assert finished.status is None
    assert 0 < len(finished.out) <= 1024 * 1024


def test_what_is_being_started_is_ours_for_whoever_sees_it(monkeypatch):
    """A sweep looks at processes while others are being started; it must not take those for strays."""
    popen = subprocess.Popen
    seen = []

    def slow(*arguments, **options):
        process = popen(*arguments, **options)
        looker = threading.Thread(target=lambda: seen.append(command.is_ours(process.pid)))
        looker.start()  # it has seen the process, whose id nobody has noted yet
        looker.join(0.05)
        return process

    monkeypatch.setattr(subprocess, "Popen", slow)
    process = command.spawn(["true"])
    monkeypatch.undo()
    command.await_end(process, 10.0)
    command.kill_group(process)
    deadline = time.monotonic() + 10.0
    while not seen:
        assert time.monotonic() < deadline, "nobody answered whose process it is"
        time.sleep(0.01)
    assert seen == [True]
