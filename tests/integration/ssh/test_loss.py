"""A peer that dies, freezes or is cut off is noticed, promptly and with the reason."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import paramiko
import pytest

from pytest_sglang_perf.errors import ConnectionLost, NodeUnreachable
from tests._sshd import wait_until

pytestmark = pytest.mark.sshd


def test_the_killed_session_process_is_a_lost_connection_at_once(make_sshd):
    server = make_sshd()
    transport = server.transport()
    channel = transport.open("cat")
    started = time.monotonic()
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionLost, match=r"the other end closed it|reset"):
        channel.receive(timeout=20)
    assert time.monotonic() - started < 5
    with pytest.raises(ConnectionLost):
        channel.send(b"x", timeout=5)
    transport.close()


@pytest.mark.parametrize("writing", [False, True], ids=["idle", "writing"])
def test_a_frozen_node_is_noticed_by_unanswered_keepalives(make_sshd, writing):
    server = make_sshd()
    transport = server.transport(keepalive_s=0.4)
    channel = transport.open("cat >/dev/null")
    for pid in server.sessions():
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    stop = threading.Event()

    def beat():
        # Heartbeats of ours must not be taken for signs of life of the node.
        while not stop.wait(0.05):
            try:
                channel.send(b"beat\n", timeout=5)
            except ConnectionLost:
                return

    thread = threading.Thread(target=beat)
    if writing:
        thread.start()
    with pytest.raises(ConnectionLost, match=r"nothing was heard for .* keepalive requests stayed unanswered"):
        channel.receive(timeout=30)
    assert 0.8 < time.monotonic() - started < 6
    stop.set()
    if writing:
        thread.join()
    transport.close()


def test_a_frozen_node_that_owes_us_space_is_noticed_too(make_sshd):
    server = make_sshd()
    transport = server.transport(keepalive_s=0.4)
    channel = transport.open("cat >/dev/null")
    for pid in server.sessions():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ConnectionLost):
        channel.send(b"x" * (64 << 20), timeout=30)
    transport.close()


def test_close_does_not_wait_for_a_frozen_node(make_sshd):
    server = make_sshd()
    transport = server.transport(keepalive_s=60)
    channel = transport.open("cat >/dev/null")
    for pid in server.sessions():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ConnectionLost):
        channel.send(b"x" * (64 << 20), timeout=0.5)
    started = time.monotonic()
    channel.close()
    assert time.monotonic() - started < 1.0
    started = time.monotonic()
    transport.close()
    assert time.monotonic() - started < 2.0


def test_a_quiet_but_healthy_connection_lives(sshd):
    transport = sshd.transport(keepalive_s=0.1)
    channel = transport.open("sleep 1; echo still here")
    assert channel.receive(timeout=10) == b"still here\n"
    transport.close()


def test_a_node_that_asks_for_signs_of_life_gets_them(make_sshd):
    server = make_sshd(extra="ClientAliveInterval 1\nClientAliveCountMax 1")
    transport = server.transport(keepalive_s=60)
    channel = transport.open("sleep 3; echo still here")
    assert channel.receive(timeout=15) == b"still here\n"
    transport.close()


def test_a_lost_connection_is_made_anew_on_the_next_open(make_sshd):
    server = make_sshd()
    transport = server.transport()
    transport.open("cat")
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not transport._connection.alive)
    assert transport.open("echo again").receive(timeout=5) == b"again\n"
    transport.close()


def test_the_socket_is_quick_and_watched(transport):
    transport.open("true")
    sock = transport._connection.transport.wire._stream
    assert isinstance(sock, socket.socket)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


def test_nothing_lives_on_after_close(sshd):
    before = set(threading.enumerate())
    transport = sshd.transport()
    channels = [transport.open("cat") for _ in range(3)]
    with transport.forward(sshd.port):
        assert len(threading.enumerate()) > len(before)
        transport.close()
    assert set(threading.enumerate()) <= before
    assert not [t for t in threading.enumerate() if isinstance(t, paramiko.Transport)]
    with pytest.raises(ConnectionLost):
        channels[0].receive(timeout=1)
    wait_until(lambda: not sshd.sessions(), what="the end of sshd's sessions")


def test_opening_on_a_frozen_node_fails_in_time(make_sshd):
    server = make_sshd()
    transport = server.transport(connect_timeout_s=1.0, keepalive_s=60)
    transport.open("cat")
    for pid in server.sessions():
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(NodeUnreachable, match="opens no session: Timeout"):
        transport.open("true")
    assert time.monotonic() - started < 4
    transport.close()


def test_a_command_that_is_never_confirmed_fails_in_time(make_sshd, monkeypatch):
    server = make_sshd()
    transport = server.transport(connect_timeout_s=1.5, keepalive_s=60)
    real = paramiko.Transport.open_session

    def open_then_freeze(self, *args, **kwargs):
        session = real(self, *args, **kwargs)
        for pid in server.sessions():
            os.kill(pid, signal.SIGSTOP)
        return session

    monkeypatch.setattr(paramiko.Transport, "open_session", open_then_freeze)
    started = time.monotonic()
    with pytest.raises(NodeUnreachable, match=r"does not run commands: no answer within 1\.5 s"):
        transport.open("true")
    assert time.monotonic() - started < 5
    transport.close()


def test_the_question_whether_the_node_lives_never_waits(transport):
    """The reading thread asks; if it waited for a key exchange to end, it could not read that end."""
    transport.open("cat")
    raw = transport._connection.transport
    started = time.monotonic()
    raw.clear_to_send.clear()
    raw.ask_alive()
    raw.clear_to_send.set()
    with raw.clear_to_send_lock:
        asking = threading.Thread(target=raw.ask_alive)
        asking.start()
        asking.join(5)
        assert not asking.is_alive()
    assert time.monotonic() - started < 5
