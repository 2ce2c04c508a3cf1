"""One authenticated SSH connection, or a chain of them through jump hosts.

Every hop is made alike: a stream, a handshake, a host key that is verified before anything secret is sent,
then a key that is accepted. What paramiko does not do by itself stands in :class:`_Transport`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_REQUEST,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.ssh_exception import IncompatiblePeer

from pytest_sglang_perf.errors import NodeUnreachable

from . import _ssh_auth, _ssh_config
from ._host_keys import HostKeyPolicy
from ._ssh_wire import ProxySocket, Wire, dial

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ._deadline import Deadline
    from ._ssh_config import Hop, HostConfig
    from ._ssh_wire import Stream

__all__ = ["UNKNOWN_STATUS", "Connection", "Settings", "close_channels", "connect"]

# An exit status before the node reports one. Not paramiko's -1, which is death by SIGHUP here.
UNKNOWN_STATUS = -(1 << 31)
_MOST_HOPS = 8
_JOIN_S = 1.0
# paramiko logs every failure that it raises, with a traceback, and pytest would show that with a failed test.
# To read along, set the level of this logger.
_LOG = logging.getLogger("pytest_sglang_perf.paramiko")
if _LOG.level == logging.NOTSET:
    _LOG.setLevel(logging.CRITICAL)
# Old algorithms that no sshd of the last ten years needs; paramiko still offers them.
_DISABLED = {
    "ciphers": ["3des-cbc", "aes128-cbc", "aes192-cbc", "aes256-cbc"],
    "macs": ["hmac-md5", "hmac-md5-96", "hmac-sha1-96"],
}


def _on_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    # paramiko knows "exit-status" only; a process that a signal ended would look like one without any status.
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = message.get_text()
        number = getattr(signal, f"SIG{name.partition('@')[0]}", None)
        if isinstance(number, signal.Signals):
            channel.exit_status = -number
        channel.status_event.set()
        return
    message.packet.seek(start)
    channel._handle_request(message)  # type: ignore[attr-defined]  # noqa: SLF001


def _on_close(channel: paramiko.Channel, message: paramiko.Message) -> None:
    # So that a channel that ended without this mark was cut off, not closed by the node.
    channel._handle_eof(message)  # type: ignore[attr-defined]  # noqa: SLF001
    channel._handle_close(message)  # type: ignore[attr-defined]  # noqa: SLF001


class _Transport(paramiko.Transport):
    """paramiko's transport, with the host key types of our choice, counted keepalives and exit signals."""

    _channel_handler_table = {  # noqa: RUF012 - as in the base class
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _on_request,
        MSG_CHANNEL_CLOSE: _on_close,
    }

    def __init__(self, wire: Wire, host_key_algorithms: Sequence[str]) -> None:
        # The base class takes anything that sends, receives, closes and has a timeout.
        super().__init__(cast("socket.socket", wire), disabled_algorithms=_DISABLED)
        self.set_log_channel(_LOG.name)
        self.wire = wire
        self.farewell = ""
        """The server's reason for a disconnect, which paramiko only logs."""
        self._host_key_algorithms = tuple(host_key_algorithms)

    @property
    def preferred_keys(self) -> Sequence[str]:
        return self._host_key_algorithms

    def ask_alive(self) -> None:
        """Send a request that the node must answer, if that is possible without waiting.

        During a key exchange the exchange itself is the question, and while another thread is stuck writing,
        that write is.
        """
        if not self.clear_to_send.is_set() or self.clear_to_send_lock.locked():
            return
        message = paramiko.Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)  # "want reply"
        self._send_user_message(message)  # type: ignore[attr-defined]

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()


@dataclass(frozen=True)
class Settings:
    """What a node says beyond its host name; everything else comes from the ssh configuration."""

    user: str | None = None
    port: int | None = None
    identity_files: tuple[Path, ...] = ()
    known_hosts: tuple[Path, ...] = ()
    config_file: Path | None = None
    proxy_jump: tuple[Hop, ...] | None = None
    host_key: str | None = None
    keepalive_s: float = 5.0

    @property
    def dead_after_s(self) -> float:
        return 3 * self.keepalive_s

    def for_hop(self, hop: Hop, before: tuple[Hop, ...] | None) -> Settings:
        """The settings of a jump host: its own user, port and keys, the same configuration and trust."""
        return replace(self, user=hop.user, port=hop.port, identity_files=(), proxy_jump=before, host_key=None)


class Connection:
    """An authenticated connection to ``config``, and those that it passes through."""

    def __init__(self, config: HostConfig, transport: _Transport, via: Connection | None) -> None:
        self.config = config
        self.transport = transport
        self._via = via

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def loss(self) -> str:
        """Why the connection ended, in words."""
        if self._via is not None and not self._via.alive:
            return f"at the jump host {self._via.config}: {self._via.loss()}"
        if self.transport.farewell:
            return f"the node said: {self.transport.farewell}"
        return self.transport.wire.reason or _first_line(self.transport.saved_exception) or "it was closed"

    def close(self) -> None:
        """End all threads and sockets of this connection; returns within about a second a hop."""
        _end(self.transport)
        if self._via is not None:
            self._via.close()


def close_channels(channels: Sequence[paramiko.Channel], *, timeout: float = 0.5) -> None:
    """Close ``channels``, waiting at most ``timeout`` seconds; never raises.

    Telling the node may block while the connection is stuck. Our side ends at once, and the thread that tells
    ends with the connection at the latest.
    """

    def close() -> None:
        for channel in channels:
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                channel.close()

    if not channels or sys.is_finalizing():
        return  # while the interpreter ends, a thread may be made but never runs, and start() waits for it for ever
    thread = threading.Thread(target=close, name="ssh: close", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends and starts no more threads
        close()
    else:
        thread.join(timeout)


class _Hop:
    """A channel of a jump host as the stream of the next connection."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv = channel.recv
        self.send = channel.send
        self.settimeout = channel.settimeout

    def close(self) -> None:
        close_channels([self._channel])


def _end(transport: _Transport) -> None:
    transport.close()
    # `close` does nothing for a transport that never became active, and never waits for the thread.
    transport.wire.close()
    if transport.is_alive():
        transport.join(_JOIN_S)
    # The handshake's timer is a thread that outlives a failed handshake and keeps the interpreter alive.
    transport.packetizer.complete_handshake()


def connect(host: str, settings: Settings, *, deadline: Deadline) -> Connection:
    """Resolve ``host``, reach it (through its jump hosts), verify its key and authenticate.

    Raises:
        NodeUnreachable, HostKeyError: with what was tried and what to do.
    """
    return _connect(host, settings, deadline, seen=())


def _connect(host: str, settings: Settings, deadline: Deadline, *, seen: tuple[str, ...]) -> Connection:
    config = _ssh_config.resolve(
        host,
        user=settings.user,
        port=settings.port,
        config_file=settings.config_file,
        known_hosts=settings.known_hosts,
        proxy_jump=settings.proxy_jump,
        timeout=deadline.left(),
    )
    if len(seen) >= _MOST_HOPS:
        raise NodeUnreachable(f"the jump hosts lead nowhere: {' <- '.join((*seen, host))}")
    jumps = config.proxy_jump
    policy = HostKeyPolicy(config, pinned=settings.host_key, direct=not (jumps or config.proxy_command))
    via: Connection | None = None
    try:
        if jumps:
            # As ssh does it: the last jump is reached through those before it, the first as its own
            # configuration says.
            last, before = jumps[-1], jumps[:-1] or None
            via = _connect(last.host, settings.for_hop(last, before), deadline, seen=(*seen, host))
        transport = _handshake(config, settings, policy, lambda: _stream(config, settings, via, deadline), deadline)
        try:
            with _ssh_auth.gather(config, settings.identity_files, deadline=deadline) as identities:
                _ssh_auth.authenticate(transport, config, identities, deadline=deadline)
        except BaseException:
            _end(transport)
            raise
    except BaseException:
        if via is not None:
            via.close()
        raise
    transport.wire.watch(settings.keepalive_s, transport.ask_alive)
    return Connection(config, transport, via)


def _stream(config: HostConfig, settings: Settings, via: Connection | None, deadline: Deadline) -> Stream:
    if via is not None:
        try:
            channel = via.transport.open_channel(
                "direct-tcpip", (config.hostname, config.port), ("127.0.0.1", 0), timeout=deadline.left()
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise NodeUnreachable(
                f"the jump host {via.config} does not connect to {config.hostname} port {config.port}: "
                f"{_first_line(error)}. Can you reach it from there, and does sshd there allow "
                "AllowTcpForwarding?"
            ) from error
        return _Hop(channel)
    if config.proxy_command:
        return ProxySocket(config.proxy_command)
    return dial(
        config.hostname,
        config.port,
        deadline=deadline,
        dead_after_s=settings.dead_after_s,
        address_family=config.address_family,
        bind_address=config.bind_address,
    )


def _handshake(
    config: HostConfig,
    settings: Settings,
    policy: HostKeyPolicy,
    stream: Callable[[], Stream],
    deadline: Deadline,
) -> _Transport:
    """Make a connection whose host key is the right one, before anything is sent over it."""
    while True:
        link = stream()
        transport = _Transport(Wire(link), policy.algorithms)
        transport.name = f"ssh {config}"
        transport.banner_timeout = transport.handshake_timeout = max(deadline.left(), 0.1)
        transport.clear_to_send_timeout = settings.dead_after_s
        try:
            _start(transport, config, link, policy, deadline)
            if policy.accepts(transport.get_remote_server_key()):
                return transport
        except BaseException:
            _end(transport)
            raise
        # Only a pinned key gets here: the node may have it beside the one that it showed.
        _end(transport)


def _start(transport: _Transport, config: HostConfig, link: Stream, policy: HostKeyPolicy, deadline: Deadline) -> None:
    where = f"{config.hostname} port {config.port}"
    try:
        transport.start_client(timeout=deadline.left())
    except IncompatiblePeer as error:
        if "host key" in str(error):
            raise policy.no_acceptable_key() from error
        raise NodeUnreachable(
            f"{where} and this client have no algorithm in common: {_first_line(error)}. "
            "An sshd older than OpenSSH 7.2 needs an update."
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise NodeUnreachable(_handshake_failure(transport, where, link, deadline, error)) from error
    # paramiko returns without a word when the time is up.
    if not transport.initial_kex_done:
        raise NodeUnreachable(_handshake_failure(transport, where, link, deadline, None))


def _handshake_failure(
    transport: _Transport, where: str, link: Stream, deadline: Deadline, error: Exception | None
) -> str:
    complaint = ""
    if isinstance(link, ProxySocket):
        # Reaps the command, so that all that it had to say is there.
        link.close()
        complaint = link.complaint
        where += f" (through ProxyCommand {link.command!r})"
    if complaint:
        return f"{where} is not reached: {complaint}"
    if not transport.remote_version:
        text = _first_line(error)
        if deadline.over() or error is None:
            return (
                f"{where} accepts connections but sent no SSH greeting within {deadline.seconds:g} s: "
                "the host is stuck, or something else listens there"
            )
        if "Indecipherable protocol version" in text or "Invalid SSH banner" in text:
            return f"what listens on {where} is no SSH server: {text}"
        return (
            f"{where} closed the connection before its SSH greeting ({transport.wire.reason or text}): "
            "MaxStartups reached, the address banned (fail2ban), or no sshd behind that port"
        )
    if deadline.over() or error is None:
        return f"the SSH handshake with {where} did not end within {deadline.seconds:g} s"
    why = transport.farewell or transport.wire.reason or _first_line(error)
    return f"the SSH handshake with {where} failed: {why}"


def _first_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, paramiko.ChannelException):
        return error.text
    return (str(error).splitlines() or [type(error).__name__])[0]
