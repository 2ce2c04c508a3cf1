"""What OpenSSH's configuration says about one host.

``ssh -G`` is asked, because only ``ssh`` itself knows all of ``Include``, ``Match`` and the order in which
the first value wins. Where there is no ``ssh`` binary, paramiko's parser stands in and tells its limits.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import paramiko

from pytest_sglang_perf.errors import NodeUnreachable

__all__ = ["Hop", "HostConfig", "parse_hops", "resolve"]

# `Match exec` may run a command of the user's; nothing that answers a configuration question takes longer.
_RESOLVE_TIMEOUT_S = 10.0
_MATCH_ALONE = {"all", "canonical", "final"}
_MATCH_WITH_VALUE = {"host", "originalhost", "user", "localuser"}
_DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ed25519")
_DEFAULT_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# Characters that a shell would interpret; a host or user with one of them never reaches a ProxyCommand.
_SHELL_UNSAFE = re.compile(r"[\s'\"`$\\;&<>|(){}*?!#~\x00-\x1f]")


@dataclass(frozen=True)
class HostConfig:
    """One host as OpenSSH would reach it. Paths are absolute, tokens and ``~`` are expanded."""

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    """Path of the agent's socket, or None where no agent is to be asked."""
    known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    host_key_alias: str | None = None
    proxy_jump: tuple[Hop, ...] = ()
    proxy_command: str | None = None
    address_family: str = "any"
    bind_address: str | None = None
    command: str = "ssh"
    """What reaches the same host by hand, quoted for a shell."""
    strict_host_keys: str = "ask"
    """What the user told ``ssh``. Only quoted in advice: host keys are always verified here."""
    limits: tuple[str, ...] = field(default=())
    """What could not be honoured, as sentences for error messages."""

    @property
    def host_key_names(self) -> tuple[str, ...]:
        """The names to look up in known_hosts, the most specific first."""
        if self.host_key_alias:
            return (self.host_key_alias.lower(),)
        host = self.hostname.lower()
        return (host,) if self.port == 22 else (f"[{host}]:{self.port}", host)

    def __str__(self) -> str:
        shown = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{shown}:{self.port}"


@dataclass(frozen=True)
class Hop:
    """One station of a ProxyJump, before its own configuration is looked up."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{user}{host}{port}"


def parse_hops(text: str) -> tuple[Hop, ...]:
    """Read the value of a ProxyJump: ``[user@]host[:port]`` or ``ssh://…``, comma-separated, or ``none``.

    Raises:
        NodeUnreachable: a hop has no host or a port that is none.
    """
    if text.strip().lower() in {"", "none"}:
        return ()
    return tuple(_parse_hop(part.strip()) for part in text.split(","))


def _parse_hop(text: str) -> Hop:
    rest = text.removeprefix("ssh://").rstrip("/")
    user, _, rest = rest.rpartition("@")
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:  # a bare IPv6 address has more than one colon and no port
        host, port = rest, ""
    if not host or host.startswith("-") or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise NodeUnreachable(f"proxy jump {text!r} is not of the form [user@]host[:port]")
    return Hop(host, user or None, int(port) if port else None)


def resolve(
    host: str,
    *,
    user: str | None = None,
    port: int | None = None,
    config_file: Path | None = None,
    known_hosts: tuple[Path, ...] = (),
    proxy_jump: tuple[Hop, ...] | None = None,
    timeout: float = _RESOLVE_TIMEOUT_S,
) -> HostConfig:
    """Look up ``host`` as ``ssh`` would, with everything else as on its command line.

    Raises:
        NodeUnreachable: the host's name or the configuration is malformed.
    """
    if not host or host.startswith("-") or re.search(r"\s", host):
        raise NodeUnreachable(f"{host!r} is not a host name")
    if config_file is not None and not config_file.is_file():
        raise NodeUnreachable(f"the ssh configuration {config_file} does not exist")
    options = _options(user, port, config_file)
    ssh = shutil.which("ssh")
    if ssh is None:
        values, limits = _ask_paramiko(host, user=user, port=port, config_file=config_file)
    else:
        values, limits = _ask_ssh([ssh, "-G", "-T", *options, "--", host], timeout), ()
    if known_hosts:
        values["userknownhostsfile"] = [shlex.join(str(file) for file in known_hosts)]
        options += ["-o", f"UserKnownHostsFile={' '.join(str(file) for file in known_hosts)}"]
    if proxy_jump is not None:
        values["proxyjump"] = [",".join(str(hop) for hop in proxy_jump)]
        if proxy_jump:
            values.pop("proxycommand", None)
        options += ["-J", ",".join(str(hop) for hop in proxy_jump) or "none"]
    return _build(host, values, limits, command=shlex.join(["ssh", *options, host]))


def _options(user: str | None, port: int | None, config_file: Path | None) -> list[str]:
    options: list[str] = []
    if config_file is not None:
        options += ["-F", str(config_file)]
    if user is not None:
        options += ["-l", user]
    if port is not None:
        options += ["-p", str(port)]
    return options


def _ask_ssh(argv: list[str], timeout: float) -> dict[str, list[str]]:
    asked = f"`ssh -G {argv[-1]}`"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=min(timeout, _RESOLVE_TIMEOUT_S),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeUnreachable(f"{asked} did not answer: {error}") from error
    if done.returncode != 0:
        raise NodeUnreachable(f"{asked} rejects the configuration: {done.stderr.strip()}")
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value)
    return values


def _ask_paramiko(
    host: str, *, user: str | None, port: int | None, config_file: Path | None
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    # `-F` makes ssh read that file alone; without it the user's file comes before the system's.
    files = [config_file] if config_file else [_home() / ".ssh" / "config", Path("/etc/ssh/ssh_config")]
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()}
    limits = tuple(
        f"There is no ssh binary here, so `Include` in {file} was not followed; install the OpenSSH client "
        "or write host, user, port and key into the node itself."
        for file, text in texts.items()
        if re.search(r"^\s*include[\s=]", text, re.IGNORECASE | re.MULTILINE)
    )
    try:
        for text in texts.values():
            _check_matches(text)
        # Each file begins outside of any block, whatever block the one before it ended in.
        found = paramiko.SSHConfig.from_text("\nHost *\n".join(texts.values())).lookup(host)
    except (paramiko.SSHException, ValueError, OSError) as error:
        shown = ", ".join(str(file) for file in texts)
        raise NodeUnreachable(
            f"no ssh binary is here, and the configuration in {shown} is more than the built-in parser "
            f"reads ({error}); install the OpenSSH client"
        ) from error
    # The stubs say that all values are strings; those that may stand several times are lists.
    given = cast("dict[str, str | list[str] | None]", dict(found))
    values = {key: value if isinstance(value, list) else [value or "none"] for key, value in given.items()}
    values.setdefault("globalknownhostsfile", [" ".join(_DEFAULT_GLOBAL_KNOWN_HOSTS)])
    values.setdefault("userknownhostsfile", ["~/.ssh/known_hosts ~/.ssh/known_hosts2"])
    values.setdefault("identityfile", [f"~/.ssh/{name}" for name in _DEFAULT_IDENTITIES])
    if user is not None:
        values["user"] = [user]
    if port is not None:
        values["port"] = [str(port)]
    return values, limits


def _check_matches(text: str) -> None:
    # paramiko takes a condition that it does not know for one that is met, and for `exec` it needs a bash.
    for line in re.findall(r"^\s*match[\s=]+(.*)$", text, re.IGNORECASE | re.MULTILINE):
        words = shlex.split(line)
        while words:
            keyword = words.pop(0).lstrip("!").lower()
            if keyword in _MATCH_ALONE:
                continue
            if keyword not in _MATCH_WITH_VALUE:
                raise ValueError(f"Match {keyword}")
            del words[:1]


def _build(host: str, values: dict[str, list[str]], limits: tuple[str, ...], *, command: str) -> HostConfig:
    def first(key: str, default: str = "") -> str:
        return values.get(key, [default])[0]

    hostname = first("hostname", host)
    user = first("user") or _user()
    if not first("port", "22").isdecimal():
        raise NodeUnreachable(f"port {first('port')!r} in the ssh configuration of {host} is not a number")
    port = int(first("port", "22"))
    tokens = {
        "%": "%",
        "d": str(_home()),
        "h": hostname,
        "i": str(os.getuid()),
        "k": first("hostkeyalias") or hostname,
        "L": os.uname().nodename.split(".")[0],
        "l": os.uname().nodename,
        "n": host,
        "p": str(port),
        "r": user,
        "u": _user(),
    }
    proxy = first("proxycommand")
    if proxy.lower() == "none":
        proxy = ""
    if proxy and (unsafe := next((v for v in (hostname, user) if _SHELL_UNSAFE.search(v)), None)):
        raise NodeUnreachable(f"{unsafe!r} has characters that must not reach the shell of a ProxyCommand")
    alias = first("hostkeyalias")
    return HostConfig(
        alias=host,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(_path(name, tokens) for name in values.get("identityfile", []) if name.lower() != "none"),
        identities_only=first("identitiesonly", "no").lower() in {"yes", "true"},
        identity_agent=_agent(first("identityagent", "SSH_AUTH_SOCK"), tokens),
        known_hosts=_paths(first("userknownhostsfile"), tokens),
        global_known_hosts=_paths(first("globalknownhostsfile"), tokens),
        host_key_alias=None if alias.lower() in {"", "none"} else alias,
        proxy_jump=parse_hops(first("proxyjump")),
        proxy_command=_expand(proxy, tokens) or None,
        command=command,
        address_family=first("addressfamily", "any").lower(),
        bind_address=first("bindaddress") or None,
        strict_host_keys=first("stricthostkeychecking", "ask").lower(),
        limits=limits,
    )


def _agent(value: str, tokens: dict[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$"):
        return os.environ.get(value[1:].strip("{}")) or None
    return str(_path(value, tokens))


def _paths(value: str, tokens: dict[str, str]) -> tuple[Path, ...]:
    """Split a list of files. ``ssh -G`` prints them unquoted, so that a blank may also belong to a name."""
    if value.strip().lower() in {"", "none"}:
        return ()
    if '"' in value or "'" in value:
        return tuple(_path(word, tokens) for word in shlex.split(value))
    words = value.split()
    found: list[Path] = []
    while words:
        for count in range(len(words), 0, -1):
            path = _path(" ".join(words[:count]), tokens)
            if count == 1 or path.exists():
                found.append(path)
                del words[:count]
                break
    return tuple(found)


def _path(text: str, tokens: dict[str, str]) -> Path:
    expanded = _expand(text.strip('"'), tokens)
    if expanded == "~" or expanded.startswith("~/"):
        # As ssh does: the home of the password database, whatever $HOME says.
        expanded = str(_home()) + expanded[1:]
    return Path(re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), expanded))


def _expand(text: str, tokens: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise NodeUnreachable(f"%{match[1]} in {text!r} of the ssh configuration is not supported here")
        return tokens[match[1]]

    return re.sub(r"%(.)", value, text)


def _home() -> Path:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container that runs under a number without a name
        return Path.home()


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))
