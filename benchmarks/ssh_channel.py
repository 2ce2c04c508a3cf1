"""What the SSH channel costs: round trips of one JSON line and bulk transfer, beside OpenSSH's client.

Everything runs against one private sshd on 127.0.0.1, in this order within each round, so that a busy moment of the
machine hits all alike: `ssh node cat`, our channel, our channel without TCP_NODELAY, and plain paramiko as its own
documentation uses it. Run with ``scripts/bench ssh_channel``.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import paramiko

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

    def command(self) -> bytes:
        """First output of another `echo here` over the same connection."""

    def close(self) -> None: ...


class OpenSsh:
    """`ssh node cat` as a child process."""

    def __init__(self, server: _sshd.Sshd, command: str = "cat") -> None:
        self.argv = ["ssh", "-F", str(server.config), "-T", "-S", str(server.folder / "mux"), "node"]
        self.process = subprocess.Popen(
            [*self.argv[:-1], "-M", "node", command],
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

    def command(self) -> bytes:
        return subprocess.run(
            [*self.argv, "echo here"], check=True, capture_output=True, stdin=subprocess.DEVNULL
        ).stdout

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

    def command(self) -> bytes:
        channel = self.transport.open("echo here")
        output = channel.receive(timeout=30)
        channel.close()
        return output

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
        self.transport = transport
        self.channel = transport.open_session()
        self.channel.exec_command(command)

    def send(self, data: bytes) -> None:
        self.channel.sendall(data)

    def receive(self) -> bytes:
        return self.channel.recv(1 << 16)

    def command(self) -> bytes:
        with self.transport.open_session() as session:
            session.exec_command("echo here")
            return session.recv(100)

    def close(self) -> None:
        self.client.close()


PEERS: dict[str, Callable[..., Echo]] = {
    "ssh node cat (OpenSSH)": OpenSsh,
    "our channel": Ours,
    "our channel, no TCP_NODELAY": OursDelayed,
    "paramiko SSHClient": Plain,
}


def round_trips(echo: Echo, count: int) -> list[float]:
    """Milliseconds of ``count`` round trips of one line, after ten for warmth."""
    times = []
    for number in range(count + 10):
        started = time.perf_counter()
        echo.send(LINE)
        got = 0
        while got < len(LINE):
            got += len(echo.receive())
        if number >= 10:
            times.append((time.perf_counter() - started) * 1e3)
    return times


def timed(command: Callable[[], bytes]) -> float:
    started = time.perf_counter()
    assert command() == b"here\n"
    return (time.perf_counter() - started) * 1e3


def start(make: Callable[..., Echo], server: _sshd.Sshd) -> float:
    """Milliseconds from nothing to the first output of a command: connection, keys, session."""
    echos = []

    def first() -> bytes:
        echos.append(make(server, "echo here"))
        return echos[0].receive()

    took = timed(first)
    echos[0].close()
    return took


def upload(make: Callable[..., Echo], server: _sshd.Sshd, size: int) -> float:
    """MB/s from here to the node."""
    echo = make(server, f"head -c {size} >/dev/null; echo done")
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
    echo = make(server, f"read -r go; head -c {size} /dev/zero")
    started = time.perf_counter()
    echo.send(b"go\n")
    got = 0
    while got < size:
        got += len(echo.receive())
    took = time.perf_counter() - started
    echo.close()
    return size / 1e6 / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=400, help="round trips a round")
    parser.add_argument("--starts", type=int, default=10, help="connections a round")
    parser.add_argument("--commands", type=int, default=40, help="commands over one connection a round")
    parser.add_argument("--mib", type=int, default=64, help="size of one bulk transfer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trips: dict[str, list[float]] = {name: [] for name in PEERS}
    starts: dict[str, list[float]] = {name: [] for name in PEERS}
    commands: dict[str, list[float]] = {name: [] for name in PEERS}
    up: dict[str, list[float]] = {name: [] for name in PEERS}
    down: dict[str, list[float]] = {name: [] for name in PEERS}
    with tempfile.TemporaryDirectory() as folder:
        server = _sshd.start(Path(folder) / "sshd", host_keys=("ed25519",))
        try:
            for _ in range(options.rounds):
                for name, make in PEERS.items():
                    echo = make(server)
                    trips[name] += round_trips(echo, options.trips)
                    commands[name] += [timed(echo.command) for _ in range(options.commands)]
                    echo.close()
                for _ in range(options.starts):
                    for name, make in PEERS.items():
                        starts[name].append(start(make, server))
                for name, make in PEERS.items():
                    up[name].append(upload(make, server, options.mib * MIB))
                    down[name].append(download(make, server, options.mib * MIB))
        finally:
            server.stop()
    rows = [
        {
            "peer": name,
            "start_p50_ms": statistics.median(starts[name]),
            "command_p50_ms": statistics.median(commands[name]),
            "command_p90_ms": statistics.quantiles(commands[name], n=10)[8],
            "trip_p50_ms": statistics.median(trips[name]),
            "trip_p99_ms": statistics.quantiles(trips[name], n=100)[98],
            "up_mb_s": statistics.median(up[name]),
            "down_mb_s": statistics.median(down[name]),
        }
        for name in PEERS
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    heads = {
        "start_p50_ms": "start p50 ms",
        "command_p50_ms": "command p50",
        "command_p90_ms": "p90 ms",
        "trip_p50_ms": "trip p50",
        "trip_p99_ms": "p99 ms",
        "up_mb_s": "up MB/s",
        "down_mb_s": "down MB/s",
    }
    print(" | ".join([f"{'':28}", *heads.values()]))
    for row in rows:
        cells = [f"{row[key]:{len(head)}.{2 if 'trip' in key else 1}f}" for key, head in heads.items()]
        print(" | ".join([f"{row['peer']:28}", *cells]))


if __name__ == "__main__":
    main()
