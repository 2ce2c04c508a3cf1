"""The forwarded port that tests use for requests of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from tests._sshd import wait_until

pytestmark = pytest.mark.sshd


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.path.encode() * 1000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def http_port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.request_queue_size = 256
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def listener(handle):
    """A TCP server that gives each connection to ``handle``."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    handle(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_request_reaches_the_node(transport, http_port):
    with transport.forward(http_port) as port, requests.Session() as session:
        for path in ("/a", "/b"):
            answer = session.get(f"http://127.0.0.1:{port}{path}", timeout=10)
            assert answer.content == path.encode() * 1000


def test_many_at_once(transport, http_port):
    def get(number):
        answer = requests.get(f"http://127.0.0.1:{port}/{number}", timeout=30)
        return answer.content == f"/{number}".encode() * 1000

    with transport.forward(http_port) as port, ThreadPoolExecutor(64) as pool:
        assert all(pool.map(get, range(200)))


def test_two_forwards_and_a_channel_share_the_connection(transport, http_port):
    with transport.forward(http_port) as one, transport.forward(http_port) as two:
        assert one != two
        assert requests.get(f"http://127.0.0.1:{one}/x", timeout=10).ok
        assert transport.open("echo here").receive(timeout=5) == b"here\n"
        assert requests.get(f"http://127.0.0.1:{two}/x", timeout=10).ok


def test_the_answer_after_a_half_close_comes_through(transport):
    def count(sock):
        total = 0
        while data := sock.recv(65536):
            total += len(data)
        sock.sendall(f"got {total}".encode())

    with (
        listener(count) as target,
        transport.forward(target) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
    ):
        sock.sendall(b"x" * 5_000_000)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while data := sock.recv(65536):
            answer += data
    assert answer == b"got 5000000"


def test_a_refused_port_is_a_reset(transport, caplog):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        unused = probe.getsockname()[1]
    with transport.forward(unused) as port, pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/", timeout=10)
    assert f"does not connect to its port {unused}" in caplog.text


def test_a_server_that_refuses_forwarding_is_a_reset(make_sshd, http_port, caplog):
    transport = make_sshd(extra="AllowTcpForwarding no").transport()
    with transport.forward(http_port) as port, pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/", timeout=10)
    assert "prohibited" in caplog.text
    transport.close()


def test_half_an_answer_is_never_taken_for_a_whole_one(make_sshd):
    """A body without a length ends with the connection; a cut must not look like that end."""
    server = make_sshd()
    transport = server.transport()
    cut = threading.Event()

    def half(sock):
        sock.sendall(b"HTTP/1.0 200 OK\r\n\r\nhalf")
        cut.wait(10)

    with listener(half) as target:
        with (
            transport.forward(target) as port,
            socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        ):
            received = b""
            while not received.endswith(b"half"):
                received += sock.recv(100)
            for pid in server.sessions():
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(ConnectionResetError):
                sock.recv(100)
        cut.set()
    transport.close()


def test_a_client_that_leaves_ends_both_copies_though_the_server_does_not_read(transport):
    left = threading.Event()

    def talk(sock):
        # Never reads, and writes only once the client has gone.
        left.wait(10)
        sock.settimeout(0.5)
        with contextlib.suppress(OSError):
            sock.sendall(b"x" * (64 << 20))

    def copies():
        return [t for t in threading.enumerate() if t.name.startswith(f"forward to {target}:")]

    with listener(talk) as target, transport.forward(target) as port:
        sock = socket.create_connection(("127.0.0.1", port), timeout=0.5)
        with contextlib.suppress(TimeoutError):
            sock.sendall(b"x" * (64 << 20))
        assert len(copies()) == 2
        sock.close()
        left.set()
        wait_until(lambda: not copies(), what="the end of both copies")


def test_closing_ends_connections_in_the_middle(transport):
    ready = threading.Event()

    def hold(sock):
        ready.set()
        sock.recv(1)

    with listener(hold) as target:
        with transport.forward(target) as port:
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            assert ready.wait(10)
            started = time.monotonic()
        assert time.monotonic() - started < 3
        with sock, pytest.raises(ConnectionResetError):
            sock.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_closing_ends_a_copy_to_a_client_that_does_not_read(transport):
    done = threading.Event()

    def pour(sock):
        with contextlib.suppress(OSError):
            sock.sendall(b"x" * (64 << 20))
        done.set()

    with listener(pour) as target:
        with (
            transport.forward(target) as port,
            socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        ):
            assert sock.recv(1) == b"x"
            # Our buffers and the window are full when the far end makes no progress any more.
            assert not done.wait(0.5)
            started = time.monotonic()
        assert time.monotonic() - started < 3
        assert done.wait(10)
