"""A world for one experiment: a user's project, a node (here or behind sshd), and a look at what runs on it.

Everything that the experiment starts carries `MARK` in its environment, on the node too. That is more than the run's
id, which only servers and load carry: agents and guardians are found by it as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.agent import procfs
from pytest_sglang_perf.agent.sweep import RUN_VARIABLE
from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport
from tests import _sshd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_sglang_perf.agent.procfs import Process
    from tests._netns import Namespace

MARK = "SGLANG_PERF_CHAOS_MARK"
TTL_S, GRACE_S = 2.0, 1.0
#: What we promise: sglang's own drain takes 5 of these 15 s.
PROMISE_S = max(TTL_S, GRACE_S) + 15.0
#: How long a pytest session that lost its node may take to say so; several times what it needs on an idle machine.
SESSION_S = 120.0

_SUITE = """
default_node: it
nodes:
  it: {node}
servers:
  base: {{model: tiny/model, {python}args: {{disable-radix-cache: true}}{env}}}
workloads:
  short: {{input_len: 32, output_len: 32, concurrency: [8], requests: {{8: 48}}}}
trials: 2
"""

_TESTS = """
import pytest

pytestmark = pytest.mark.sglang(server="base", concurrency=8)

def test_it_serves(sglang_server):
    assert sglang_server.url

def test_it_is_measured(sglang_perf):
    assert sglang_perf.measure().output_throughput.value > 0
"""

# Behind sshd there is no simulated kind of node: an interpreter whose sglang is the simulated server stands for it.
_PYTHON = """#!/bin/sh
if [ "$1" = -m ] && [ "$2" = sglang.launch_server ]; then
  shift 2
  exec {python} -m pytest_sglang_perf.sim.server "$@"
fi
exec {python} "$@"
"""


class World:
    """One project and its node.

    Args:
        folder: an empty folder.
        ssh: the node is behind an sshd; otherwise it is this machine.
        far: the network in which that sshd, and so the node, lives; this machine's own if None.
    """

    def __init__(self, folder: Path, *, ssh: bool, far: Namespace | None = None) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.sshd: _sshd.Sshd | None = None
        self.seen: set[tuple[int, int]] = set()
        self.node_env = {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SGLANG_PERF_LEASE_DIR": str(folder / "lease"),
            "TMPDIR": str(folder / "tmp"),
            "SGLANG_SIM_PROFILE": "tiny",
            "SGLANG_SIM_TIME_SCALE": "50",
            MARK: self.mark,
        }
        (folder / "tmp").mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_perf.py").write_text(textwrap.dedent(_TESTS))
        if ssh:
            settings = " ".join(f'"{name}={value}"' for name, value in self.node_env.items())
            address, inside = (far.address, far.inside) if far is not None else ("127.0.0.1", ())
            extra = f"SetEnv {settings}"
            self.sshd = _sshd.start(
                folder / "sshd", extra=extra, host_keys=("ed25519",), address=address, inside=inside
            )
            self.point_to(self.sshd.port, address)
        else:
            self._suite("{kind: sim, profile: tiny, seed: 7}", python="")

    def point_to(self, port: int, host: str = "127.0.0.1") -> None:
        """Let the project reach its sshd through this port of ``host``."""
        assert self.sshd is not None
        known = self.folder / "known_hosts"
        known.write_text(f"[{host}]:{port} {_sshd.public_key(self.sshd.host_keys['ed25519'])}\n")
        wrapper = self.folder / "sglang-python"
        wrapper.write_text(_PYTHON.format(python=sys.executable))
        wrapper.chmod(0o755)
        self._suite(
            f"{{kind: ssh, host: {host}, port: {port}, user: {self.sshd.user}, known_hosts: {known}, "
            f"identity_file: {self.sshd.user_key}, agent_python: {sys.executable}}}",
            python=f"python: {wrapper}, ",
        )

    def _suite(self, node: str, *, python: str) -> None:
        (self.folder / "sglang-perf.yaml").write_text(_SUITE.format(node=node, python=python, env=""))

    # -- sessions ---------------------------------------------------------------------------------------------

    def start(self, *arguments: str, ttl_s: float = TTL_S, grace_s: float = GRACE_S) -> subprocess.Popen[bytes]:
        """A pytest session of the user's."""
        removed = {"CI", "GITHUB_ACTIONS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "COVERAGE_PROCESS_START"}
        env = {name: value for name, value in os.environ.items() if name not in removed}
        env |= self.node_env | {
            "SGLANG_PERF_TTL": f"{ttl_s:g}",
            "SGLANG_PERF_GRACE": f"{grace_s:g}",
            "SGLANG_PERF_LEASE_WAIT": "60",
        }
        with (self.folder / "session.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        """What the latest session has said."""
        return (self.folder / "session.txt").read_text(errors="replace")

    def finish(self, session: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a session, remembering what runs meanwhile; its exit code."""
        wait_for(lambda: self.look() and session.poll() is not None, "the session ends", SESSION_S, self.output)
        return int(session.returncode)

    def node_is_clean(self, session: subprocess.Popen[bytes]) -> None:
        """Assert that the node ends everything of a session that cannot reach it, which itself still runs."""
        here = (session.pid, getattr(procfs.process(session.pid), "start", 0))

        def on_the_node() -> list[Process]:
            return [one for one in self.processes() if (one.pid, one.start) != here]

        wait_for(lambda: not on_the_node(), "nothing of ours runs on the node", PROMISE_S, self.describe)

    # -- what runs --------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """What lives of ours on the node and here, found by its mark, by descent, or since it was seen before."""
        found = procfs.all_processes()
        marked = {pid for pid in found if procfs.variable(pid, MARK) == self.mark}
        pids = marked | procfs.descendants(found, marked)
        pids |= {pid for pid, start in self.seen if pid in found and found[pid].start == start}
        alive = [found[pid] for pid in sorted(pids) if not found[pid].dead]
        self.seen |= {(one.pid, one.start) for one in alive}
        return alive

    def look(self) -> bool:
        """Take note of what runs now; always true."""
        self.processes()
        return True

    def agents(self) -> list[Process]:
        """Agents: those that serve, below a guardian that serves too."""
        serving = {one.pid: one for one in self.processes() if " serve" in procfs.command(one.pid)}
        return [one for one in serving.values() if one.ppid in serving]

    def doing(self) -> str:
        """In one word, what the node is at: for who reads why an experiment failed."""
        commands = [procfs.command(one.pid) for one in self.processes()]
        if any(".pyz load" in command for command in commands):
            return "trial"
        if any("sim.server" in command or command.startswith("sglang::") for command in commands):
            return "server"
        return "agent" if self.agents() else "before or after"

    def nothing_is_left(self) -> float:
        """Assert that nothing of ours lives within what we promise; returns how long that took, in seconds."""
        began = time.monotonic()
        wait_for(lambda: not self.processes(), "nothing of ours runs", PROMISE_S, self.describe)
        return time.monotonic() - began

    def describe(self) -> str:
        """What lives, for people."""
        lines = [
            f"{one.pid} <- {one.ppid} {one.state} run={procfs.variable(one.pid, RUN_VARIABLE)} "
            f"{procfs.command(one.pid)[:160]}"
            for one in self.processes()
        ]
        return "\n".join([*lines, self.output()[-3000:]])

    def lease_is_free(self) -> None:
        """Assert that somebody else gets the whole node at once, with nothing to be reaped first."""
        owner: dict[str, Any] = {"user": "next", "host": "here", "pid": os.getpid()}
        transport = LocalTransport(env={name: self.node_env[name] for name in self.node_env if name != MARK})
        client = AgentClient(transport, run=uuid.uuid4().hex, owner=owner, python=sys.executable)
        try:
            client.connect(timeout=60)
            client.request("lease.acquire", timeout=30, gpus=None, wait_s=1.0, purpose="is it free?")
        finally:
            client.close()

    def next_session_passes(self) -> None:
        """Assert that a session of the user's passes now."""
        code = self.finish(self.start())
        assert code == 0, self.output()

    def close(self) -> None:
        """End whatever an experiment that failed has left."""
        for one in self.processes():
            with contextlib.suppress(OSError):
                procfs.kill(one, signal.SIGKILL)
        if self.sshd is not None:
            self.sshd.stop()


def wait_for(condition: Callable[[], object], what: str, timeout: float, more: Callable[[], str]) -> None:
    """Wait until ``condition`` is true; fail after ``timeout`` seconds, telling ``more``."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain until {what}\n{more()}"
        time.sleep(0.03)
