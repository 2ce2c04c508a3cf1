"""Public-key authentication: which keys there are, their order, and what to say when none fits.

No password and no passphrase is ever asked for. A key file that is encrypted counts only when the agent holds
the same key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from pytest_sglang_perf.errors import NodeUnreachable

from ._known_hosts import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ._deadline import Deadline
    from ._ssh_config import HostConfig

__all__ = ["Identities", "authenticate", "gather"]

_OPENSSH_MAGIC = b"openssh-key-v1\x00"
_PUBLIC_PREFIXES = ("ssh-", "ecdsa-sha2-", "sk-")


@dataclass
class Identities:
    """Keys to try, in order, and what was found on the way that explains a failure."""

    keys: list[tuple[str, paramiko.PKey]] = field(default_factory=list)
    """``(how to name it, key)``."""
    remarks: list[str] = field(default_factory=list)


class _AgentKey(paramiko.AgentKey):
    """A key in the agent whose refusal to sign costs one attempt.

    paramiko signs in the thread that reads the connection, where an exception (a locked agent, a confirmation
    that nobody gives) ends the connection and with it the chance of every further key. An empty signature is
    merely rejected.
    """

    refusal = ""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> paramiko.Message:  # type: ignore[override]
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.refusal = str(error) or type(error).__name__
            empty = paramiko.Message()
            empty.add_string(algorithm or self.get_name())
            empty.add_string(b"")
            return empty.asbytes()  # type: ignore[return-value]  # paramiko's own agent keys return bytes


class _Agent(AgentSSH):
    """An agent at a given socket; paramiko's own reads only SSH_AUTH_SOCK and waits for ever."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


@contextlib.contextmanager
def gather(config: HostConfig, explicit: Sequence[Path], *, deadline: Deadline) -> Iterator[Identities]:
    """Collect the keys to try for ``config``; the agent is connected for as long as the context lasts.

    The order is that of ``ssh``, with the node's own files (``explicit``) before everything: they come first,
    then configured files that the agent holds, then the agent's other keys, then the remaining files. Servers
    cut the connection after six failures by default.

    Raises:
        NodeUnreachable: a file of ``explicit`` does not exist or cannot be used.
    """
    found = Identities()
    with contextlib.ExitStack() as stack:
        held = _held_by_agent(config, stack, found.remarks, deadline)
        for path in explicit:
            found.keys += _explicit(path, held, found.remarks)
        later: list[tuple[str, paramiko.PKey]] = []
        for path in config.identity_files:
            if path in explicit or not path.is_file():
                continue
            for name, key in _from_file(path, held, found.remarks):
                (found.keys if isinstance(key, _AgentKey) else later).append((name, key))
        if not config.identities_only:
            used = {id(key) for _, key in found.keys}
            found.keys += [
                (f"agent key {key.comment!r} {fingerprint(blob)}", key)
                for blob, key in held.items()
                if id(key) not in used
            ]
        found.keys += later
        yield found


def _held_by_agent(
    config: HostConfig, stack: contextlib.ExitStack, remarks: list[str], deadline: Deadline
) -> dict[bytes, _AgentKey]:
    if config.identity_agent is None:
        remarks.append("no agent was asked (SSH_AUTH_SOCK is not set, or IdentityAgent is none)")
        return {}
    try:
        agent = _Agent(config.identity_agent, max(deadline.left(), 0.1))
    except (OSError, paramiko.SSHException) as error:
        remarks.append(f"the agent at {config.identity_agent} does not answer ({error})")
        return {}
    stack.enter_context(contextlib.closing(agent))
    return {key.blob: _AgentKey(agent, key.blob, key.comment) for key in agent.get_keys()}


def _explicit(path: Path, held: Mapping[bytes, paramiko.PKey], remarks: list[str]) -> list[tuple[str, paramiko.PKey]]:
    """The key of a file that the node names: unlike a default of ``ssh``, one that fails is an error."""
    if not path.is_file():
        raise NodeUnreachable(f"identity file {path} does not exist")
    own: list[str] = []
    keys = _from_file(path, held, own)
    if not keys:
        raise NodeUnreachable("; ".join((*own, *remarks)))
    return keys


def _from_file(path: Path, held: Mapping[bytes, paramiko.PKey], remarks: list[str]) -> list[tuple[str, paramiko.PKey]]:
    blob = _public_blob(path)
    if blob is not None and blob in held:
        return [(f"{path} (from the agent) {fingerprint(blob)}", held[blob])]
    try:
        key = paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        # `cryptography` reports a missing passphrase as a TypeError.
        remarks.append(
            f"{path} is encrypted and the agent does not hold it; no passphrase is ever asked for here: "
            f"run `ssh-add {path}` first"
        )
    except (ValueError, UnsupportedAlgorithm, UnknownKeyType, paramiko.SSHException, OSError) as error:
        if _is_public(path):
            remarks.append(f"{path} is a public key, and the agent does not hold its private half")
        else:
            remarks.append(f"{path} cannot be used ({_short(error)})")
    else:
        return [(f"{path} {key.fingerprint}", key)]
    return []


def _public_blob(path: Path) -> bytes | None:
    """The public half of a key file, had without its passphrase."""
    for candidate in (path, path.with_name(path.name + ".pub")):
        try:
            text = candidate.read_bytes()
        except OSError:
            continue
        words = text.split()
        try:
            if len(words) >= 2 and words[0].decode(errors="replace").startswith(_PUBLIC_PREFIXES):
                return base64.b64decode(words[1])
            if b"BEGIN OPENSSH PRIVATE KEY" in text:
                return _openssh_public_blob(base64.b64decode(b"".join(text.splitlines()[1:-1])))
        except (binascii.Error, ValueError):
            continue
    return None


def _openssh_public_blob(data: bytes) -> bytes | None:
    # PROTOCOL.key: magic, cipher, kdf, kdf options, number of keys, then the public key in the clear.
    if not data.startswith(_OPENSSH_MAGIC):
        return None
    message = paramiko.Message(data[len(_OPENSSH_MAGIC) :])
    for _ in range(3):
        message.get_binary()
    message.get_int()
    return message.get_binary()


def _is_public(path: Path) -> bool:
    try:
        return path.read_bytes().decode(errors="replace").startswith(_PUBLIC_PREFIXES)
    except OSError:
        return False


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def authenticate(
    transport: paramiko.Transport, config: HostConfig, identities: Identities, *, deadline: Deadline
) -> None:
    """Try each key in turn.

    Raises:
        NodeUnreachable: none was accepted; names the keys that were tried and what else would help.
    """
    tried: list[str] = []
    accepted = ""
    for name, key in identities.keys:
        transport.auth_timeout = max(deadline.left(), 0.1)
        tried.append(name)
        try:
            more = transport.auth_publickey(config.user, key)
        except paramiko.BadAuthenticationType as error:
            accepted = ", ".join(error.allowed_types)
            break
        except (paramiko.SSHException, EOFError, OSError) as error:
            if isinstance(key, _AgentKey) and key.refusal:
                tried[-1] += f" (the agent did not sign: {key.refusal})"
            if deadline.over():
                raise _refused(config, tried, identities, f"no answer within {deadline.seconds:g} s") from error
            if not transport.is_active():
                # paramiko keeps no trace of the reason that the server gave; ours does.
                why = getattr(transport, "farewell", "") or _short(error)
                raise _refused(config, tried, identities, f"the connection ended ({why})") from error
            if not isinstance(error, paramiko.AuthenticationException):
                tried[-1] += f" ({_short(error)})"
            continue
        if transport.is_authenticated():
            return
        # One factor of several; a further public key may be the next.
        accepted = ", ".join(more)
        if "publickey" not in more:
            break
    raise _refused(config, tried, identities, f"the node also wants {accepted}" if accepted else "")


def _refused(config: HostConfig, tried: list[str], identities: Identities, why: str) -> NodeUnreachable:
    lines = [f"{config} does not let user {config.user} in" + (f": {why}." if why else ".")]
    lines.append(f"Keys tried: {'; '.join(tried)}." if tried else "There was no key to try.")
    lines += [f"Note: {remark}." for remark in identities.remarks]
    lines += [f"Note: {limit}" for limit in config.limits]
    if "Too many authentication failures" in why:
        lines.append(
            "Name the right key (`identity_files` of the node, or IdentityFile with `IdentitiesOnly yes`): "
            "the server counts every key that an agent offers."
        )
    else:
        lines.append(
            f"Check the user name, and that one of these keys is in its authorized_keys there "
            f"(`ssh-copy-id -p {config.port} {config.user}@{config.hostname}`). "
            "Passwords are never used here."
        )
    return NodeUnreachable("\n".join(lines))
