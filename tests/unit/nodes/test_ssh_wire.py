"""The socket under paramiko: silence, stuck writes and the kernel's own timeout."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from pytest_sglang_perf.errors import NodeUnreachable
from pytest_sglang_perf.nodes._deadline import Deadline
from pytest_sglang_perf.nodes._ssh_wire import PeerDead, ProxySocket, Wire, dial, limit_sends


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    wire.settimeout(0.02)
    yield wire, theirs
    wire.close()
    theirs.close()


class Failing:
    """A stream whose calls fail with a given error."""

    def __init__(self, error):
        self.error = error

    def recv(self, _):
        raise self.error

    def send(self, _):
        raise self.error

    def settimeout(self, _):
        pass

    def close(self):
        pass


def poll(wire, seconds=5.0):
    """Read as paramiko does; the error that ends it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            wire.recv(10)
        except TimeoutError:
            continue
        except PeerDead as dead:
            return str(dead)
    return None


def test_small_reads_of_one_large_one(pair):
    wire, theirs = pair
    theirs.sendall(b"abcdef")
    assert [wire.recv(2), wire.recv(3), wire.recv(9)] == [b"ab", b"cde", b"f"]
    with pytest.raises(TimeoutError):
        wire.recv(1)


def test_the_end_of_the_other_side_has_a_reason(pair):
    wire, theirs = pair
    theirs.sendall(b"last")
    theirs.close()
    assert wire.recv(9) == b"last"
    with pytest.raises(PeerDead, match="the other end closed it"):
        wire.recv(1)
    assert wire.reason == "the other end closed it"


def test_closing_here_is_not_the_peers_death(pair):
    wire, _ = pair
    wire.close()
    with pytest.raises(PeerDead, match="closed on this side"):
        wire.recv(1)
    assert wire.reason == ""


def test_silence_is_asked_about_twice_and_then_is_death(pair):
    wire, _ = pair
    asked = []
    wire.watch(0.1, lambda: asked.append(time.monotonic()))
    started = time.monotonic()
    assert "2 keepalive requests stayed unanswered" in (poll(wire) or "")
    assert len(asked) == 2
    assert time.monotonic() - started >= 0.3


def test_any_answer_is_a_sign_of_life(pair):
    wire, theirs = pair
    wire.watch(0.05, lambda: theirs.sendall(b"."))
    assert poll(wire, 0.6) is None


def test_silence_is_nothing_before_the_watch_begins(pair):
    wire, _ = pair
    assert poll(wire, 0.3) is None


def test_a_sleep_of_this_machine_is_not_the_peers_silence(pair):
    wire, theirs = pair
    asked = []

    def ask():
        asked.append(1)
        theirs.sendall(b".")

    wire.watch(0.05, ask)
    time.sleep(0.5)  # nobody polls, as when the machine is suspended
    assert poll(wire, 0.2) is None
    assert asked


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_the_kernels_timeout_is_not_taken_for_a_poll(operation):
    """TCP_USER_TIMEOUT ends a connection with ETIMEDOUT, which Python raises as TimeoutError, too."""
    wire = Wire(Failing(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))))
    call = {"recv": lambda: wire.recv(1), "send": lambda: wire.send(b"x")}[operation]
    with pytest.raises(PeerDead, match="no acknowledgement"):
        call()


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_a_reset_names_itself(operation):
    wire = Wire(Failing(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")))
    call = {"recv": lambda: wire.recv(1), "send": lambda: wire.send(b"x")}[operation]
    with pytest.raises(PeerDead, match="reset by peer"):
        call()
    assert "reset" in wire.reason


def write_until_it_ends(wire):
    """Write as paramiko does: again and again after a timeout."""
    while True:
        try:
            wire.send(b"x" * 65536)
        except TimeoutError:
            continue


def test_a_write_that_is_stuck_ends_with_the_senders_time(pair):
    wire, _ = pair
    with pytest.raises(PeerDead, match="took no data"), limit_sends(Deadline(0.2)):
        write_until_it_ends(wire)


def test_a_write_that_is_stuck_ends_with_the_keepalives(pair):
    wire, _ = pair
    wire.watch(0.1, lambda: None)
    with pytest.raises(PeerDead, match="took no data"):
        write_until_it_ends(wire)


def test_the_limit_of_one_thread_ends_with_its_block(pair):
    wire, theirs = pair
    with limit_sends(Deadline(0)):
        pass
    wire.send(b"x")
    assert theirs.recv(1) == b"x"


class TestDialling:
    def test_the_second_address_is_tried(self, monkeypatch):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_server(("127.0.0.1", 0)) as probe:
                closed = probe.getsockname()[1]
            answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in (closed, port)]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
            sock = dial("node", port, deadline=Deadline(5), dead_after_s=15)
            assert sock.getpeername() == ("127.0.0.1", port)
            sock.close()

    def test_a_resolver_that_hangs_costs_only_the_timeout(self, monkeypatch):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: time.sleep(0.6))
        started = time.monotonic()
        with pytest.raises(NodeUnreachable, match=r"has no address: no answer within 0\.1 s"):
            dial("node", 22, deadline=Deadline(0.1), dead_after_s=15)
        assert time.monotonic() - started < 0.5

    def test_every_address_that_failed_is_named(self, monkeypatch):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            closed = probe.getsockname()[1]
        answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", closed)) for n in (1, 2)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers)
        with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1: .*refused; 127\.0\.0\.2: .*refused"):
            dial("node", closed, deadline=Deadline(5), dead_after_s=15)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestProxySocket:
    def test_a_child_that_ignores_sigterm_is_killed_with_its_helpers(self):
        sock = ProxySocket("sh -c 'trap \"\" TERM; sleep 60 & echo $!; wait'")
        helper = int(sock.recv(20))
        started = time.monotonic()
        sock.close()
        assert time.monotonic() - started < 3
        end = time.monotonic() + 5
        while running(helper):
            assert time.monotonic() < end
            time.sleep(0.01)

    def test_much_on_standard_error_stops_nothing(self):
        sock = ProxySocket("sh -c 'head -c 300000 /dev/zero | tr \"\\0\" e >&2; echo last >&2; echo out'")
        sock.settimeout(10)
        assert sock.recv(10) == b"out\n"
        sock.close()
        assert sock.complaint.endswith("last")
        sock.close()
