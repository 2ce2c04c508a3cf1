"""From a node of the suite to a running agent on it."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport
from pytest_sglang_perf.suite import LocalNode, SimNode, SshNode, UrlNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_sglang_perf.nodes.transport import Transport

__all__ = ["OpenNode", "open_node"]

#: Without a heartbeat for this long, or a reconnect within the grace, the agent stops everything by itself.
TTL_S = 60.0
GRACE_S = 15.0
CONNECT_TIMEOUT_S = 15.0


@dataclass
class OpenNode:
    """A node with our agent on it.

    ``gpus`` are the indices that every reading of the GPUs must have; None where that is not known.
    """

    name: str
    transport: Transport
    client: AgentClient
    hello: dict[str, Any]
    simulated: bool = False
    time_scale: float = 1.0
    server_env: dict[str, str] = field(default_factory=dict)
    sim_profile: str = ""
    seed: int | None = None
    nvidia_smi: list[str] | None = None
    attached: UrlNode | None = None
    gpus: tuple[int, ...] | None = None
    _state: tempfile.TemporaryDirectory[str] | None = None

    @property
    def launch(self) -> list[str] | None:
        """What is launched in place of sglang: the simulated server on a simulated node, else None."""
        return [sys.executable, "-m", "pytest_sglang_perf.sim.server"] if self.simulated else None

    def close(self) -> None:
        """Say goodbye to the agent and close the way to it. Returns within a few seconds; never raises."""
        self.client.close()
        self.transport.close()
        if self._state is not None:
            self._state.cleanup()


def owner() -> dict[str, Any]:
    """Who we are, as a lease shows it to others."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return {"user": user, "host": socket.gethostname(), "pid": os.getpid()}


def open_node(
    name: str,
    node: SimNode | LocalNode | SshNode | UrlNode,
    *,
    run: str,
    environ: Mapping[str, str],
    ttl_s: float | None = None,
    grace_s: float | None = None,
) -> OpenNode:
    """Start the agent on a node.

    Raises:
        NodeError: one of its subclasses, saying what was tried and what to do.
    """
    ttl = ttl_s if ttl_s is not None else float(environ.get("SGLANG_PERF_TTL", TTL_S))
    grace = grace_s if grace_s is not None else float(environ.get("SGLANG_PERF_GRACE", GRACE_S))
    python = getattr(node, "agent_python", None) or "python3"
    nvidia_smi: list[str] | None = None
    opened: dict[str, Any] = {}
    if isinstance(node, SimNode):
        python = sys.executable
        state = tempfile.TemporaryDirectory(prefix="sglang-perf-sim-")
        opened = _simulated(node, state, environ)
        settings = [f"{name}={value}" for name, value in opened["server_env"].items()]
        nvidia_smi = ["/usr/bin/env", *settings, sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi"]
        transport: Transport = LocalTransport()
    elif isinstance(node, (LocalNode, UrlNode)):
        if isinstance(node, UrlNode):
            python = sys.executable
            opened["attached"] = node
        transport = LocalTransport()
    elif isinstance(node, SshNode):
        from pytest_sglang_perf.nodes.ssh import SshTransport

        transport = SshTransport(
            node.host,
            user=node.user,
            port=node.port,
            identity_files=_paths(node.identity_file),
            known_hosts=_paths(node.known_hosts),
            host_key=node.host_key,
            proxy_jump=node.proxy_jump,
            connect_timeout_s=node.connect_timeout_s or CONNECT_TIMEOUT_S,
        )
    else:
        assert_never(node)
    client = AgentClient(
        transport, run=run, owner=owner(), ttl_s=ttl, grace_s=grace, nvidia_smi=nvidia_smi, python=python
    )
    try:
        hello = client.connect()
    except BaseException:
        client.close()
        transport.close()
        raise
    return OpenNode(name=name, transport=transport, client=client, hello=hello, nvidia_smi=nvidia_smi, **opened)


def _paths(text: str | None) -> list[str]:
    return [str(Path(text).expanduser())] if text else []


def _simulated(node: SimNode, state: tempfile.TemporaryDirectory[str], environ: Mapping[str, str]) -> dict[str, Any]:
    from pytest_sglang_perf.sim.profiles import load_profile

    profile = load_profile(node.profile)
    seed = node.seed
    if environ.get("SGLANG_PERF_SIM_SEED"):
        seed = int(environ["SGLANG_PERF_SIM_SEED"])
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    scale = float(node.time_scale or profile.time_scale)
    env = {
        "SGLANG_SIM_PROFILE": node.profile,
        "SGLANG_SIM_SEED": str(seed),
        "SGLANG_SIM_TIME_SCALE": f"{scale:g}",
        "SGLANG_SIM_STATE": state.name,
    }
    if node.fail:
        env["SGLANG_SIM_FAIL"] = str(node.fail)
    return {
        "simulated": True,
        "time_scale": scale,
        "server_env": env,
        "sim_profile": node.profile,
        "seed": seed,
        "_state": state,
    }
