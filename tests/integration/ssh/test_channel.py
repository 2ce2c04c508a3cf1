"""The channel to one process, against a real sshd: every way in which paramiko alone would hang or lie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_sglang_perf.errors import ConnectionLost
from tests._sshd import wait_until

pytestmark = pytest.mark.sshd
MIB = 1 << 20


def read_all(channel, *, timeout=20.0):
    parts = []
    while data := channel.receive(timeout=timeout):
        parts.append(data)
    return b"".join(parts)


def test_bytes_go_both_ways_unchanged(transport):
    channel = transport.open("cat")
    payload = bytes(range(256)) * 64
    channel.send(payload, timeout=5)
    received = b""
    while len(received) < len(payload):
        received += channel.receive(timeout=5)
    assert received == payload


def test_end_of_output_is_an_empty_read_and_stays_one(transport):
    channel = transport.open("printf done")
    assert read_all(channel) == b"done"
    assert channel.receive(timeout=1) == b""
    assert channel.exit_status(timeout=5) == 0


@pytest.mark.parametrize("status", [0, 7, 255])
def test_exit_status(transport, status):
    assert transport.open(f"exit {status}").exit_status(timeout=5) == status


@pytest.mark.parametrize("name", ["KILL", "TERM", "HUP"])
def test_a_signal_is_a_negative_exit_status(transport, name):
    channel = transport.open(f"kill -{name} $$")
    assert channel.exit_status(timeout=5) == -getattr(signal, f"SIG{name}")


def test_exit_status_of_a_running_process_is_none_in_time(transport):
    channel = transport.open("sleep 30")
    started = time.monotonic()
    assert channel.exit_status(timeout=0.3) is None
    assert time.monotonic() - started < 5


def test_exit_status_does_not_wait_for_output_to_be_read(transport):
    channel = transport.open(f"head -c {5 * MIB} /dev/zero")
    assert channel.exit_status(timeout=20) == 0
    assert len(read_all(channel)) == 5 * MIB


def test_more_than_a_window_on_both_streams_does_not_deadlock(transport):
    channel = transport.open(f"head -c {5 * MIB} /dev/zero >&2 & head -c {6 * MIB} /dev/zero; wait; printf last >&2")
    assert len(read_all(channel)) == 6 * MIB
    assert channel.exit_status(timeout=10) == 0
    assert len(channel.stderr()) == 64 << 10
    assert channel.stderr().endswith("last")


def test_output_nobody_receives_is_bounded_and_comes_back_whole(transport):
    size = 24 * MIB
    channel = transport.open(f"head -c {size} /dev/zero")
    # The writer must feel the pipe instead of filling our memory.
    assert channel.exit_status(timeout=1.5) is None
    assert channel._held <= 12 * MIB
    assert len(read_all(channel)) == size
    assert channel.exit_status(timeout=5) == 0


def test_receive_times_out_and_the_channel_stays_good(transport):
    channel = transport.open('read -r line; printf %s "$line"')
    with pytest.raises(TimeoutError):
        channel.receive(timeout=0.1)
    channel.send(b"hello\n", timeout=5)
    assert read_all(channel) == b"hello"


def test_sending_to_a_process_that_does_not_read_fails_in_time(transport):
    channel = transport.open("sleep 60")
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"took no input for 0\.5 s"):
        channel.send(b"x" * 16 * MIB, timeout=0.5)
    assert time.monotonic() - started < 10


def test_progress_renews_the_time_of_a_send(transport):
    # 12 MiB at the reader's pace take longer than the timeout, but never stall for as long.
    channel = transport.open("for i in 1 2 3 4 5; do head -c 2097152 >/dev/null; sleep 0.6; done; cat >/dev/null")
    started = time.monotonic()
    channel.send(b"x" * 12 * MIB, timeout=2.2)
    assert time.monotonic() - started > 2.2


def test_sending_to_a_process_that_has_ended_says_so(transport):
    channel = transport.open("exit 0")
    assert channel.exit_status(timeout=5) == 0
    assert channel.receive(timeout=5) == b""
    with pytest.raises(ConnectionLost, match="ended"):
        wait_until(lambda: channel.send(b"x", timeout=1), timeout=5)


def test_stderr_that_is_not_text_is_shown_anyway(transport):
    channel = transport.open(r"printf 'a\377b' >&2")
    assert channel.exit_status(timeout=5) == 0
    wait_until(lambda: channel.stderr() == "a\ufffdb")


def test_many_channels_at_once(sshd):
    transport = sshd.transport()
    try:
        channels = [transport.open(f"cat >/dev/null; echo {n}") for n in range(8)]
        for channel in channels:
            channel.close()
            with pytest.raises(ConnectionLost, match="closed on this side"):
                channel.receive(timeout=1)
    finally:
        transport.close()


def test_closing_ends_the_input_of_the_process(transport, tmp_path):
    mark = tmp_path / "ended"
    channel = transport.open(f"cat >/dev/null; touch {mark}")
    channel.close()
    wait_until(mark.exists, what="the end of input on the node")


def test_closing_twice_and_after_the_transport_is_harmless(sshd):
    transport = sshd.transport()
    channel = transport.open("cat")
    channel.close()
    transport.close()
    channel.close()
    transport.close()


def test_what_came_before_the_cut_is_still_received(make_sshd):
    server = make_sshd()
    transport = server.transport()
    channel = transport.open(f"head -c {MIB} /dev/zero; printf end >&2; sleep 60")
    wait_until(lambda: channel.stderr() == "end")
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    received = 0
    while received < MIB:
        received += len(channel.receive(timeout=10))
    assert received == MIB
    with pytest.raises(ConnectionLost, match="connection lost"):
        channel.receive(timeout=10)
    transport.close()


def test_no_status_is_known_of_a_process_behind_a_cut(make_sshd):
    server = make_sshd()
    transport = server.transport()
    channel = transport.open("sleep 60")
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionLost):
        channel.receive(timeout=10)
    assert channel.exit_status(timeout=5) is None
    transport.close()


def test_rekeying_in_the_middle_of_traffic_and_keepalives(make_sshd):
    server = make_sshd(extra="RekeyLimit 1M")
    transport = server.transport(keepalive_s=0.1)
    channel = transport.open("cat")
    block = os.urandom(MIB)
    for _ in range(12):
        channel.send(block, timeout=10)
        got = b""
        while len(got) < MIB:
            got += channel.receive(timeout=10)
        assert got == block
    transport.close()


def test_an_interpreter_that_forgets_to_close_still_ends(sshd):
    script = f"""
from pytest_sglang_perf.nodes.ssh import SshTransport
transport = SshTransport("node", config_file={str(sshd.config)!r})
channel = transport.open("cat")
channel.send(b"x", timeout=5)
print(channel.receive(timeout=5).decode())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def test_the_status_of_a_process_that_ends_at_once_is_never_missed(transport):
    for _ in range(30):
        channel = transport.open("exit 3")
        assert channel.exit_status(timeout=10) == 3
        channel.close()
