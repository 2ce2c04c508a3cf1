"""A network namespace as a far machine: a link of its own to here, which can be slow, lossy or down.

A proxy breaks what goes through one socket; this breaks the packets, so that the kernel's TCP answers as it does to a
real network. It takes root. The link is a veth pair, and a bad one has ``tc netem`` at both ends. Kernels without netem
get two TUN devices and a wire between them that does the same in this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import ipaddress
import json
import os
import random
import re
import select
import shutil
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500


@dataclass(frozen=True)
class Bad:
    """What happens to a packet in each direction: held back for ``delay_s`` +- ``jitter_s``, or lost (a share)."""

    delay_s: float
    jitter_s: float
    loss: float

    def netem(self) -> list[str]:
        """As ``tc`` wants it."""
        delay = [f"{self.delay_s * 1e3:g}ms", f"{self.jitter_s * 1e3:g}ms"]
        return ["netem", "delay", *delay, "loss", f"{self.loss:.3%}"]


class Wire:
    """Carries packets between two TUN devices as badly as it is told; in the order of their arrival times."""

    def __init__(self, ends: tuple[int, int], bad: Bad) -> None:
        self.passed = 0
        self.lost = 0
        self._ends, self._bad = ends, bad
        self._chance = random.Random(1)
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Carry nothing any more; the devices vanish, as nobody holds them."""
        os.close(self._stop)
        self._thread.join(10)
        for fd in (*self._ends, self._wake):
            os.close(fd)

    def _run(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []  # due, number, to whom, packet
        other = dict(zip(self._ends, reversed(self._ends), strict=True))
        while True:
            wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready = select.select([self._wake, *self._ends], [], [], wait_s)[0]
            if self._wake in ready:
                return
            for end in ready:
                packet = os.read(end, 2 * _MTU)
                if self._chance.random() < self._bad.loss:
                    self.lost += 1
                    continue
                self.passed += 1
                due = time.monotonic() + self._bad.delay_s + self._chance.uniform(-1, 1) * self._bad.jitter_s
                heapq.heappush(under_way, (due, self.passed, other[end], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # a device that is down takes nothing
                    os.write(end, packet)


class Namespace:
    """A namespace and the link to it. ``inside`` before a command runs it there, ``address`` reaches it from here."""

    def __init__(self, name: str, here: str, address: str) -> None:
        self.name, self.here, self.address = name, here, address
        self.device = f"{name}h"
        self.inside = ("ip", "netns", "exec", name)
        self.wire: Wire | None = None

    def down(self) -> None:
        """Pull the cable: packets vanish, and nobody here is told. The far end goes, so that our route stays."""
        _do("ip", "-n", self.name, "link", "set", f"{self.name}n", "down")

    def up(self) -> None:
        """Plug it in again."""
        _do("ip", "-n", self.name, "link", "set", f"{self.name}n", "up")

    def lost(self) -> int:
        """How many packets a bad link has lost, in both directions."""
        if self.wire is not None:
            return self.wire.lost
        shown = [
            _do("tc", "-s", "qdisc", "show", "dev", self.device),
            _do("tc", "-n", self.name, "-s", "qdisc", "show", "dev", f"{self.name}n"),
        ]
        return sum(int(count) for text in shown for count in re.findall(r"dropped (\d+)", text))


@contextmanager
def namespace(bad: Bad | None = None) -> Iterator[Namespace]:
    """Make a namespace and a link to it; skip, with the reason, where that cannot be.

    End what runs inside before you leave: a namespace lives as long as its last process. Name and addresses follow
    from this process's id, so that tests that run side by side do not meet.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        pytest.skip(f"no {' and no '.join(missing)} here (install iproute2)")
    # As many networks of four addresses in 10.0.0.0/8 as there can be processes; from its end, which few people use.
    network = ipaddress.ip_address("10.255.255.252") - 4 * (os.getpid() % 2**22)
    it = Namespace(f"sgp{os.getpid()}", str(network + 1), str(network + 2))
    known = json.loads(_do("ip", "-j", "-4", "route", "show", "match", f"{network}/30") or "[]")
    if any(route["dst"] != "default" for route in known):
        pytest.skip(f"{network}/30 is in use here")
    with ExitStack() as stack:
        try:
            _do("ip", "netns", "add", it.name)
            stack.callback(_do, "ip", "netns", "delete", it.name)
            if bad is None:
                _veth(it, stack)
            elif not _veth_with_netem(it, bad, stack):
                _tun(it, bad, stack)
        except OSError as error:  # root of a container, as a rule
            pytest.skip(f"a network namespace with a link to it cannot be made here: {error}")
        _do("ip", "-n", it.name, "link", "set", "lo", "up")
        _do("ip", "-n", it.name, "address", "add", it.address, "peer", it.here, "dev", f"{it.name}n")
        _do("ip", "address", "add", it.here, "peer", it.address, "dev", it.device)
        _do("ip", "link", "set", it.device, "up")
        it.up()
        yield it


def _veth(it: Namespace, stack: ExitStack) -> None:
    peer = ("type", "veth", "peer", "name", f"{it.name}n", "netns", it.name)
    _do("ip", "link", "add", it.device, *peer)
    stack.callback(_do, "ip", "link", "delete", it.device)


def _veth_with_netem(it: Namespace, bad: Bad, stack: ExitStack) -> bool:
    with ExitStack() as mine:
        _veth(it, mine)
        try:
            _do("tc", "qdisc", "add", "dev", it.device, "root", *bad.netem())
        except OSError:
            return False  # this kernel has no netem
        # One packet at a time is lost, not a 64 KiB parcel of them that this kernel never took apart.
        for netns in ([], ["-n", it.name]):
            _do("ip", *netns, "link", "set", f"{it.name}n" if netns else it.device, "gso_max_segs", "1")
        _do("tc", "-n", it.name, "qdisc", "add", "dev", f"{it.name}n", "root", *bad.netem())
        stack.push(mine.pop_all())
    return True


def _tun(it: Namespace, bad: Bad, stack: ExitStack) -> None:
    ends: list[int] = []
    with ExitStack() as mine:
        for device in (it.device, f"{it.name}n"):
            try:
                ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
                mine.callback(os.close, ends[-1])
                fcntl.ioctl(ends[-1], _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
            except OSError as error:
                pytest.skip(f"this kernel has no netem, and TUN devices cannot be made: {error}")
        _do("ip", "link", "set", f"{it.name}n", "netns", it.name)
        mine.pop_all()
    it.wire = Wire((ends[0], ends[1]), bad)
    stack.callback(it.wire.close)


def _do(*argv: str) -> str:
    """Run a command; what it printed. Raises OSError with its complaint when it fails."""
    done: subprocess.CompletedProcess[Any] = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return str(done.stdout)
