"""Where servers run, as a suite file says it: one model for each kind of node."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Api", "Canary", "LocalNode", "Node", "SimNode", "SshNode", "UrlNode"]

Api = Literal["generate", "completions", "chat"]
Seconds = Annotated[float, Field(gt=0)]
Gpus = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class Canary(_Model):
    """A small fixed measurement before and after the session, which voids it when the node itself moved."""

    server: str = Field(min_length=1, description="Server config that is booted for it.")
    workload: str | None = Field(None, description="Default: default_workload.")
    concurrency: Annotated[float, Field(gt=0)] = Field(description="One level of the workload.")
    margin: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="Change of its output throughput that the node is allowed, as a fraction."
    )
    boots: Annotated[int, Field(ge=1)] = Field(1, description="Boots before, and as many after.")


class _Booting(_Model):
    """What every node has on which we start an agent."""

    agent_python: str | None = Field(
        None, description="Python 3.9 or newer on the node that runs the agent. Default: found there."
    )
    canary: Canary | None = Field(None, description="Run before and after the session; voids it when the node moved.")
    gpus: Gpus | None = Field(None, description="GPU indices that belong to this session. Default: the whole node.")


class SimNode(_Booting):
    """An embedded simulation: the same agent, a simulated server and simulated GPUs."""

    kind: Literal["sim"]
    profile: str = Field("rtx-pro-6000-x8", description="Name of a simulated machine.")
    seed: int | None = Field(None, ge=0, description="Makes the simulated noise repeatable.")
    time_scale: float | None = Field(
        None, gt=0, description="Simulated seconds that pass in one real second. Default: the profile's."
    )
    fail: str | None = Field(
        None, min_length=1, description="Faults to show, for trying out a suite, such as 'crash:weights'."
    )


class LocalNode(_Booting):
    """This machine."""

    kind: Literal["local"]


class SshNode(_Booting):
    """A machine reached over SSH; what is not set here comes from ``~/.ssh/config``."""

    kind: Literal["ssh"]
    host: str = Field(min_length=1, description="Host as in ~/.ssh/config, or a name or address.")
    user: str | None = Field(None, min_length=1)
    port: int | None = Field(None, ge=1, le=65535)
    identity_file: str | None = Field(None, description="Private key file.")
    known_hosts: str | None = Field(None, description="File of known host keys. Default: ~/.ssh/known_hosts.")
    host_key: str | None = Field(
        None, description="The host's public key, such as 'ssh-ed25519 AAAA...', instead of known_hosts."
    )
    proxy_jump: str | None = Field(None, description="Hosts to go through: [user@]host[:port], ...")
    connect_timeout_s: Seconds | None = Field(None, description="Limit for one connection. Default: 15.")


class UrlNode(_Model):
    """A server that somebody else started: measured, never booted, never stopped."""

    kind: Literal["url"]
    url: str = Field(pattern=r"^https?://[^/\s]+(?:/.*)?$", description="Such as http://10.0.0.7:30000")
    api: Api = Field("generate", description="'generate' needs sglang; the others any OpenAI-like server.")
    model: str | None = Field(None, description="Model name for completions and chat. Default: asked for.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")


Node = Annotated[SimNode | LocalNode | SshNode | UrlNode, Field(discriminator="kind")]
