"""A real OpenSSH server for tests: private configuration, its own host keys, a free port on 127.0.0.1.

Every process it made is gone after :meth:`Sshd.stop`, sessions too. It runs as the current user.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_sglang_perf.nodes.ssh import SshTransport

REQUIRE = "SGLANG_PERF_REQUIRE_SSHD"
_START_S = 20.0
_KINDS = ("ed25519", "ecdsa", "rsa")


def need_sshd() -> Path:
    """The path of sshd, or skip with the reason; fail instead where the environment demands one."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    missing = "sshd" if found is None else "ssh-keygen" if shutil.which("ssh-keygen") is None else ""
    if missing:
        reason = f"no {missing} here (install the OpenSSH server)"
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{reason}, and {REQUIRE}=1")
        pytest.skip(reason)
    assert found is not None
    return Path(found)


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "", comment: str = "test") -> Path:
    """Make a key pair ``path`` and ``path.pub``."""
    bits = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", comment, "-f", str(path)],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def public_key(path: Path) -> str:
    """``type base64`` of the public half of ``path``."""
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


def fingerprint_of(path: Path) -> str:
    """What ``ssh-keygen -l`` says."""
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(path)], check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


@dataclass
class Sshd:
    """A running server. ``user_key`` opens it, ``known_hosts`` knows all its host keys."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    user: str
    user_key: Path
    host_keys: dict[str, Path]
    known_hosts: Path
    config: Path
    """An ssh configuration in which nothing of this machine's user is used, and ``node`` is this server."""
    argv: list[str] = field(default_factory=list)

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def transport(self, **overrides: Any) -> SshTransport:
        """A transport to this server; ``overrides`` as for :class:`SshTransport`."""
        settings: dict[str, Any] = {
            "host": "node",
            "config_file": self.config,
            "connect_timeout_s": 15.0,
        } | overrides
        return SshTransport(settings.pop("host"), **settings)

    def sessions(self) -> list[int]:
        """Pids of the processes that serve one connection each."""
        return [pid for pid in _descendants(self.process.pid) if b"sshd" in _command(pid)]

    def stop(self) -> None:
        """Stop the listener and every session, with all that they started."""
        pids = [*_descendants(self.process.pid), self.process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


def start(
    folder: Path,
    *,
    extra: str = "",
    host_keys: tuple[str, ...] = _KINDS,
    authorized: tuple[str, ...] | None = None,
    address: str = "127.0.0.1",
    inside: tuple[str, ...] = (),
) -> Sshd:
    """Start a server whose files live in ``folder``.

    Args:
        folder: an empty folder.
        extra: further lines of sshd_config; they win over the defaults here.
        host_keys: kinds of host keys.
        authorized: lines of authorized_keys instead of the user key's.
        address: where it listens; it must be reachable from here.
        inside: a command that runs sshd in another place, as ``ip netns exec NAME`` does.
    """
    binary = need_sshd()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    keys = {kind: keygen(folder / f"host_{kind}", kind=kind) for kind in host_keys}
    user_key = keygen(folder / "id_user", comment="user of the test")
    (folder / "authorized_keys").write_text("\n".join(authorized or (public_key(user_key),)) + "\n")
    for _ in range(5):  # somebody else may take the port that was free a moment ago
        port = _free_port()
        lines = [
            extra,
            f"ListenAddress {address}",
            f"Port {port}",
            *(f"HostKey {key}" for key in keys.values()),
            f"AuthorizedKeysFile {folder}/authorized_keys",
            f"PidFile {folder}/sshd.pid",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PubkeyAuthentication yes",
            "PermitRootLogin prohibit-password",
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "PrintMotd no",
            "MaxStartups 100",
            "LogLevel VERBOSE",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        _privilege_separation_folder()
        argv = [*inside, str(binary), "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "sshd.log").open("ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if _listening(process, address, port):
            break
    else:
        pytest.fail(f"sshd does not start: {(folder / 'sshd.log').read_text(errors='replace')}")
    known_hosts = folder / "known_hosts"
    known_hosts.write_text("".join(f"[{address}]:{port} {public_key(key)}\n" for key in keys.values()))
    user = getpass.getuser()
    config = folder / "ssh_config"
    config.write_text(
        f"Host node\n  HostName {address}\n  Port {port}\n  User {user}\n"
        f"  IdentityFile {user_key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"Host *\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    return Sshd(folder, port, process, user, user_key, keys, known_hosts, config, argv)


def wait_until(condition, *, timeout: float = 10.0, what: str = "the condition") -> None:
    """Poll ``condition`` until it is true; fail after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {timeout:g} s"
        time.sleep(0.01)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _listening(process: subprocess.Popen[bytes], address: str, port: int) -> bool:
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1) as sock:
            if sock.recv(4) == b"SSH-":
                return True
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
    process.wait()
    return False


def _privilege_separation_folder() -> None:
    # Debian's sshd insists on it, and only root can make it; other systems have it already.
    with contextlib.suppress(OSError):
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
