"""A node that is reached over SSH."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from pytest_sglang_perf.errors import NodeUnreachable

from ._deadline import Deadline
from ._forward import Forward
from ._ssh_channel import SshChannel
from ._ssh_config import parse_hops
from ._ssh_connection import UNKNOWN_STATUS, Settings, close_channels, connect

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from ._ssh_connection import Connection

__all__ = ["SshTransport"]


class SshTransport:
    """A :class:`~pytest_sglang_perf.nodes.transport.Transport` over one SSH connection, made when needed.

    Everything that ``ssh HOST`` would take from its configuration is taken from there, by asking ``ssh -G``;
    arguments stand before it, as on the command line of ``ssh``.

    Args:
        host: a name as one would type it after ``ssh``.
        user: login name.
        port: port of sshd.
        identity_files: private keys to try before all others.
        known_hosts: files that stand instead of UserKnownHostsFile.
        config_file: configuration instead of ``~/.ssh/config`` and the system's, as ``ssh -F``.
        proxy_jump: jump hosts as for ``ssh -J``, or ``none``.
        host_key: the only host key to accept, instead of known_hosts: its fingerprint (``SHA256:…``) or itself.
        connect_timeout_s: time for a whole connection, jump hosts included, and for starting a command.
        keepalive_s: after this silence the node is asked whether it lives; after three times as long without
            an answer the connection counts as lost.
    """

    def __init__(
        self,
        host: str,
        *,
        user: str | None = None,
        port: int | None = None,
        identity_files: Sequence[str | os.PathLike[str]] = (),
        known_hosts: Sequence[str | os.PathLike[str]] = (),
        config_file: str | os.PathLike[str] | None = None,
        proxy_jump: str | None = None,
        host_key: str | None = None,
        connect_timeout_s: float = 15.0,
        keepalive_s: float = 5.0,
    ) -> None:
        if connect_timeout_s <= 0 or keepalive_s <= 0:
            raise ValueError("connect_timeout_s and keepalive_s are positive")
        self._host = host
        self._settings = Settings(
            user=user,
            port=port,
            identity_files=tuple(Path(file).expanduser() for file in identity_files),
            known_hosts=tuple(Path(file).expanduser() for file in known_hosts),
            config_file=Path(config_file).expanduser() if config_file is not None else None,
            proxy_jump=parse_hops(proxy_jump) if proxy_jump is not None else None,
            host_key=host_key,
            keepalive_s=keepalive_s,
        )
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._channels: list[SshChannel] = []
        self._forwards: list[Forward] = []
        self._closed = False

    def open(self, command: str) -> SshChannel:
        """Run ``command`` through the login shell; a connection that was lost is made anew.

        Raises:
            NodeUnreachable, HostKeyError: with what was tried and what to do.
        """
        deadline = Deadline(self._connect_timeout_s)
        with self._lock:
            connection = self._connected(deadline)
            channel = SshChannel(self._session(connection, command, deadline), connection, self.describe())
            self._channels = [*(old for old in self._channels if not old.closed), channel]
            return channel

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        """Make 127.0.0.1:``port`` of the node reachable; yields the local port on 127.0.0.1.

        A connection that the node cannot make is reset; so is one whose SSH connection is lost, so that half
        an answer is never taken for a whole one.
        """
        with self._lock:
            forward = Forward(self._connected(Deadline(self._connect_timeout_s)), port)
            self._forwards.append(forward)
        try:
            yield forward.local_port
        finally:
            forward.close()
            with self._lock, contextlib.suppress(ValueError):
                self._forwards.remove(forward)

    def describe(self) -> str:
        connection = self._connection
        if connection is not None:
            return f"ssh {connection.config}"
        user = f"{self._settings.user}@" if self._settings.user else ""
        port = f":{self._settings.port}" if self._settings.port else ""
        return f"ssh {user}{self._host}{port}"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _connected(self, deadline: Deadline) -> Connection:
        if self._closed:
            raise NodeUnreachable(f"{self.describe()}: this transport was closed")
        if self._connection is not None and not self._connection.alive:
            self._drop()
        if self._connection is None:
            self._connection = connect(self._host, self._settings, deadline=deadline)
        return self._connection

    def _drop(self) -> None:
        for channel in self._channels:
            channel.leave()
        # The connection ends first: then nothing of what hangs on it can be stuck any more.
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for forward in self._forwards:
            forward.close()
        for channel in self._channels:
            channel.close()
        self._forwards.clear()
        self._channels.clear()

    def _session(self, connection: Connection, command: str, deadline: Deadline) -> paramiko.Channel:
        name = self.describe()
        try:
            session = connection.transport.open_session(timeout=deadline.left())
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            raise NodeUnreachable(
                f"{name} opens no session: {connection.loss() if not connection.alive else reason}. "
                "Does its sshd allow sessions for this user and key (MaxSessions, restrict)?"
            ) from error
        session.exit_status = UNKNOWN_STATUS
        # paramiko waits for ever for the answer to an exec; closing the channel is what ends that wait.
        alarm = threading.Timer(deadline.left(), close_channels, ([session],))
        alarm.daemon = True
        alarm.start()
        try:
            session.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            close_channels([session], timeout=1.0)
            if deadline.over():
                why = f"no answer within {deadline.seconds:g} s"
            else:
                why = "refused" if connection.alive else connection.loss()
            raise NodeUnreachable(
                f"{name} does not run commands: {why}. Does ForceCommand, a `command=` of authorized_keys "
                "or a login shell that is none stand in the way?"
            ) from error
        finally:
            alarm.cancel()
            alarm.join()
        return session
