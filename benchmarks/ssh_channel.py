"""What the SSH channel costs: round trips of one JSON line and bulk transfer, beside OpenSSH's client.

A *trip* is one line there and back. A *pair* is two lines there in two writes and one line back, which is how an order
follows a heartbeat: without TCP_NODELAY the second write waits for the acknowledgement of the first.

Everything runs against one private sshd on 127.0.0.1, in this order within each round, so that a busy moment of the
machine hits all alike: `ssh node cat`, our channel, our channel without TCP_NODELAY, and plain paramiko as its own
documentation uses it. Run with ``scripts/bench ssh_channel``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import paramiko

from pytest_sglang_perf.errors import ConnectionLost
from pytest_sglang_perf.nodes import _ssh_wire
from tests import _sshd

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_sglang_perf.nodes.ssh import SshTransport

LINE = json.dumps({"seq": 12, "id": 7, "ok": {"pid": 12345, "host": "127.0.0.1", "port": 30000}}).encode() + b"\n"
MIB = 1 << 20


class Echo(Protocol):
    """A `cat` somewhere."""

    def send(self, data: bytes) -> None: ...

    def receive(self) -> bytes: ...

    def close(self) -> None: ...


class OpenSsh:
    """`ssh node cat` as a child process."""

    def __init__(self, server: _sshd.Sshd, command: str = "cat") -> None:
        self.process = subprocess.Popen(
            ["ssh", "-F", str(server.config), "-T", "node", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def receive(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(1 << 16)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.terminate()
        self.process.wait()


class Ours:
    """The channel of this package; ``nodelay=False`` puts the kernel's default back."""

    def __init__(self, server: _sshd.Sshd, command: str = "cat", *, nodelay: bool = True) -> None:
        self.transport: SshTransport = server.transport()
        real = _ssh_wire._tune  # noqa: SLF001

        def delay(sock: socket.socket, dead_after_s: float) -> None:
            real(sock, dead_after_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)

        _ssh_wire._tune = real if nodelay else delay  # noqa: SLF001
        try:
            self.channel = self.transport.open(command)
        finally:
            _ssh_wire._tune = real  # noqa: SLF001

    def send(self, data: bytes) -> None:
        self.channel.send(data, timeout=30)

    def receive(self) -> bytes:
        return self.channel.receive(timeout=30)

    def close(self) -> None:
        self.transport.close()


class OursDelayed(Ours):
    def __init__(self, server: _sshd.Sshd, command: str = "cat") -> None:
        super().__init__(server, command, nodelay=False)


class Plain:
    """paramiko's SSHClient without any of our measures."""

    def __init__(self, server: _sshd.Sshd, command: str = "cat") -> None:
        self.client = paramiko.SSHClient()
        self.client.load_host_keys(str(server.known_hosts))
        self.client.connect(
            "127.0.0.1",
            server.port,
            server.user,
            key_filename=str(server.user_key),
            allow_agent=False,
            look_for_keys=False,
        )
        transport = self.client.get_transport()
        assert transport is not None
        self.channel = transport.open_session()
        self.channel.exec_command(command)

    def send(self, data: bytes) -> None:
        self.channel.sendall(data)

    def receive(self) -> bytes:
        return self.channel.recv(1 << 16)

    def close(self) -> None:
        self.client.close()


PEERS: dict[str, Callable[..., Echo]] = {
    "ssh node cat (OpenSSH)": OpenSsh,
    "our channel": Ours,
    "our channel, no TCP_NODELAY": OursDelayed,
    "paramiko SSHClient": Plain,
}


def round_trips(echo: Echo, count: int, *pieces: bytes) -> list[float]:
    """Milliseconds from the first of ``pieces`` sent to the last byte of one line back; after ten for warmth."""
    times = []
    for number in range(count + 10):
        started = time.perf_counter()
        for piece in pieces:
            echo.send(piece)
        got = b""
        while not got.endswith(b"\n"):
            got += echo.receive()
        if number >= 10:
            times.append((time.perf_counter() - started) * 1e3)
    return times


def start(make: Callable[..., Echo], server: _sshd.Sshd) -> float:
    """Milliseconds from nothing to the first output of a command: connection, keys, session."""
    started = time.perf_counter()
    echo = make(server, "echo here")
    assert echo.receive() == b"here\n"
    took = (time.perf_counter() - started) * 1e3
    echo.close()
    return took


def upload(make: Callable[..., Echo], server: _sshd.Sshd, size: int) -> float:
    """MB/s from here to the node."""
    echo = make(server, f"echo ready; head -c {size} >/dev/null; echo done")
    assert echo.receive() == b"ready\n"
    piece = b"x" * MIB  # in pieces: paramiko's sendall copies the whole rest for each packet

    def send() -> None:
        for _ in range(size // MIB):
            echo.send(piece)

    started = time.perf_counter()
    thread = threading.Thread(target=send)
    thread.start()
    assert echo.receive().startswith(b"done")
    took = time.perf_counter() - started
    thread.join()
    echo.close()
    return size / 1e6 / took


def download(make: Callable[..., Echo], server: _sshd.Sshd, size: int) -> float:
    """MB/s from the node to here."""
    echo = make(server, f"echo ready; read -r go; head -c {size} /dev/zero")
    assert echo.receive() == b"ready\n"
    started = time.perf_counter()
    echo.send(b"go\n")
    got = 0
    while got < size:
        got += len(echo.receive())
    took = time.perf_counter() - started
    echo.close()
    return size / 1e6 / took


def noticed(server: _sshd.Sshd, number: signal.Signals, keepalive_s: float) -> float:
    """Seconds from a signal to sshd's session process until a waiting reader of ours hears of the loss."""
    transport = server.transport(keepalive_s=keepalive_s)
    channel = transport.open("cat")
    for pid in server.sessions():
        os.kill(pid, number)
    started = time.perf_counter()
    try:
        channel.receive(timeout=60)
    except ConnectionLost:
        return time.perf_counter() - started
    finally:
        transport.close()
        for pid in server.sessions():
            os.kill(pid, signal.SIGKILL)
        _sshd.wait_until(lambda: not server.sessions())
    raise AssertionError("the loss was not noticed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=400, help="round trips a round")
    parser.add_argument("--starts", type=int, default=10, help="connections a round")
    parser.add_argument("--mib", type=int, default=64, help="size of one bulk transfer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trips: dict[str, list[float]] = {name: [] for name in PEERS}
    pairs: dict[str, list[float]] = {name: [] for name in PEERS}
    killed: list[float] = []
    frozen: list[float] = []
    starts: dict[str, list[float]] = {name: [] for name in PEERS}
    up: dict[str, list[float]] = {name: [] for name in PEERS}
    down: dict[str, list[float]] = {name: [] for name in PEERS}
    with tempfile.TemporaryDirectory() as folder:
        server = _sshd.start(Path(folder) / "sshd", host_keys=("ed25519",))
        try:
            for _ in range(options.rounds):
                for name, make in PEERS.items():
                    echo = make(server)
                    trips[name] += round_trips(echo, options.trips, LINE)
                    echo.close()
                    echo = make(server, 'while read -r one && read -r two; do echo "$one"; done')
                    pairs[name] += round_trips(echo, options.trips // 4, LINE, LINE)
                    echo.close()
                for _ in range(options.starts):
                    for name, make in PEERS.items():
                        starts[name].append(start(make, server))
                for name, make in PEERS.items():
                    up[name].append(upload(make, server, options.mib * MIB))
                    down[name].append(download(make, server, options.mib * MIB))
                killed.append(noticed(server, signal.SIGKILL, 1.0))
                frozen.append(noticed(server, signal.SIGSTOP, 1.0))
        finally:
            server.stop()
    rows = [
        {
            "peer": name,
            "start_p50_ms": statistics.median(starts[name]),
            "trip_p50_ms": statistics.median(trips[name]),
            "trip_p99_ms": statistics.quantiles(trips[name], n=100)[98],
            "pair_p50_ms": statistics.median(pairs[name]),
            "pair_p99_ms": statistics.quantiles(pairs[name], n=100)[98],
            "up_mb_s": statistics.median(up[name]),
            "down_mb_s": statistics.median(down[name]),
        }
        for name in PEERS
    ]
    if options.json:
        print(json.dumps({"peers": rows, "killed_s": killed, "frozen_s": frozen}, indent=1))
        return
    heads = {
        "trip_p50_ms": "trip p50 ms",
        "trip_p99_ms": "p99 ms",
        "pair_p50_ms": "pair p50 ms",
        "pair_p99_ms": "p99 ms",
        "up_mb_s": "up MB/s",
        "down_mb_s": "down MB/s",
        "start_p50_ms": "start p50 ms",
    }
    print(" | ".join([f"{'':28}", *heads.values()]))
    for row in rows:
        cells = [f"{row[key]:{len(head)}.{2 if 'trip' in key or 'pair' in key else 0}f}" for key, head in heads.items()]
        print(" | ".join([f"{row['peer']:28}", *cells]))

    print(f"a killed session is noticed after {statistics.median(killed) * 1e3:.0f} ms (worst {max(killed) * 1e3:.0f})")
    print(f"a frozen node after {statistics.median(frozen):.1f} x keepalive_s (worst {max(frozen):.1f})")


if __name__ == "__main__":
    main()
