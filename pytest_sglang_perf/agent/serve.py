"""``serve``: become the guardian, and start the agent below it."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
from typing import List, Tuple

from . import prctl
from .guardian import Guard, GuardedSide

__all__ = ["main"]

_SCOPED = "SGLANG_PERF_SCOPED"
_ABOVE_CEILING_S = 60


def main(arguments: List[str]) -> int:
    """Serve one controller on standard input and output; returns the exit status."""
    parser = argparse.ArgumentParser(prog="agent serve")
    parser.add_argument("--max-runtime", type=float, default=86400.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    _enter_scope(options.max_runtime)
    prctl.become_subreaper()
    above, below = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.fork()
    if agent == 0:
        above.close()
        # A signal to the guardian's group must not hit both.
        os.setsid()
        _serve(below, options.max_runtime)
    below.close()
    _let_go_of_standard_streams()
    return Guard(above, agent, options.max_runtime).watch()


def _serve(guardian: socket.socket, max_runtime_s: float) -> None:
    status = 70
    try:
        read_fd, write_fd = _claim_standard_streams()
        prctl.become_subreaper()
        from .service import Service

        async def serve() -> int:
            return await Service(GuardedSide(guardian), max_runtime_s).run(read_fd, write_fd)

        status = asyncio.run(serve())
    finally:
        sys.stderr.flush()
        # Threads may still block in reads and writes that nobody will end.
        os._exit(status)


def _claim_standard_streams() -> Tuple[int, int]:
    """Take the protocol's descriptors out of the way of prints and of children."""
    read_fd, write_fd = os.dup(0), os.dup(1)  # not inheritable
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return read_fd, write_fd


def _let_go_of_standard_streams() -> None:
    """The controller has to see the end of the agent's output, not of the guardian's."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _enter_scope(max_runtime: float) -> None:
    """Where the user has a systemd, let it end all of us, should guardian and agent both be gone or stuck.

    A scope keeps our descriptors and our parent, and its cgroup holds every descendant. It must be tried before,
    since a failing systemd-run would take our only standard input with it.
    """
    runner = shutil.which("systemd-run")
    bus = f"/run/user/{os.getuid()}/systemd/private"
    if runner is None or os.environ.get(_SCOPED) or not os.path.exists(bus):
        return
    limit = f"RuntimeMaxSec={int(max_runtime) + _ABOVE_CEILING_S}"
    prefix = [runner, "--user", "--scope", "--quiet", "--collect", "-p", limit, "--"]
    try:
        works = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=3, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if works.returncode == 0:
        os.environ[_SCOPED] = "1"
        os.execv(runner, [*prefix, sys.executable, "-I", sys.argv[0], *sys.argv[1:]])
