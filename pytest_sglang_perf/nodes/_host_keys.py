"""Which host key a node may show, and what to say when it shows another.

Nothing is ever trusted on first use, whatever StrictHostKeyChecking says.
"""

from __future__ import annotations

import base64
import shlex
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import HostKeyError

from ._host_certificate import certificate_fault
from ._known_hosts import KnownHosts, KnownKey, fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    import paramiko

    from ._ssh_config import HostConfig

__all__ = ["HostKeyPolicy"]

# In order of preference. A key type is not an algorithm: one RSA key serves two signature algorithms.
_ALGORITHMS = (
    ("ssh-ed25519", "ssh-ed25519"),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"),
    ("ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384"),
    ("ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521"),
    ("ssh-rsa", "rsa-sha2-512"),
    ("ssh-rsa", "rsa-sha2-256"),
)
_CERTIFICATE = "-cert-v01@openssh.com"


class HostKeyPolicy:
    """Judges the keys of one host.

    Args:
        config: the host; names the known_hosts files.
        pinned: the fingerprint or public key that stands instead of those files (not of ``@revoked`` lines).
        direct: whether ``ssh-keyscan`` could reach the host, for the advice.
    """

    def __init__(self, config: HostConfig, *, pinned: str | None, direct: bool) -> None:
        self._config = config
        self._pinned = _normalise(pinned) if pinned else None
        self._direct = direct
        self._files = (*config.known_hosts, *config.global_known_hosts)
        self._known = KnownHosts.load(self._files)
        self._shown: dict[str, str] = {}

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Host key algorithms to offer: all those that can be verified first, so that the node picks one."""
        names = self._config.host_key_names
        types = {key.key_type for key in self._known.of(names)}
        wanted = [algorithm for key_type, algorithm in _ALGORITHMS if key_type in types]
        others = [algorithm for key_type, algorithm in _ALGORITHMS if key_type not in types]
        certified = (
            [algorithm + _CERTIFICATE for _, algorithm in _ALGORITHMS]
            if self._known.authorities(names) and not self._pinned
            else []
        )
        shown = {algorithm for key_type, algorithm in _ALGORITHMS if key_type in self._shown}
        return tuple(a for a in (*certified, *wanted, *others) if a not in shown)

    def accepts(self, key: paramiko.PKey) -> bool:
        """Whether ``key`` is the host's. False: it is not the pinned one, but another type may be.

        Raises:
            HostKeyError: the key is revoked, unknown, or not the one that is known.
        """
        names, blob = self._config.host_key_names, key.asbytes()
        if revoked := self._known.revoked(names, blob):
            raise HostKeyError(
                f"the host key of {self._host} is REVOKED: {key.get_name()} {fingerprint(blob)} is marked "
                f"@revoked at {revoked.where}. Do not connect; ask whoever runs the node for its new key."
            )
        if self._pinned:
            self._shown[key.get_name()] = fingerprint(blob)
            return self._pinned == fingerprint(blob)
        fault = ""
        if key.public_blob is not None:
            fault = certificate_fault(key.public_blob.key_blob, names, names[-1], self._known) or ""
            if not fault:
                return True
        known = self._known.of(names)
        if any(entry.key_type == key.get_name() and entry.blob == blob for entry in known):
            return True
        shown = f"{key.get_name()} {fingerprint(blob)}"
        if fault:
            raise HostKeyError(
                f"the host certificate of {self._host} is not accepted: {fault}. The node shows {shown}. "
                f"Fix the certificate, the @cert-authority line, or add the key itself: {self._advice()}"
            )
        raise self._changed(shown, known) if known else self._unknown(shown)

    def no_acceptable_key(self) -> HostKeyError:
        """The error for a node that has no key of the types that are left to offer."""
        if self._pinned:
            seen = "; ".join(f"{key_type} {mark}" for key_type, mark in self._shown.items()) or "none of use"
            return HostKeyError(
                f"{self._host} does not have the pinned host key {self._pinned}; it shows: {seen}. "
                "Either the node was set up anew (then update `host_key` after checking on the node with "
                "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`), or something else answers in its place."
            )
        return HostKeyError(f"{self._host} offers no host key of a type that can be verified here")

    @property
    def _host(self) -> str:
        alias = f" (HostKeyAlias {self._config.host_key_alias})" if self._config.host_key_alias else ""
        return f"{self._config.hostname} port {self._config.port}{alias}"

    def _changed(self, shown: str, known: Sequence[KnownKey]) -> HostKeyError:
        expected = "; ".join(str(key) for key in known)
        file = shlex.quote(known[0].where.rpartition(":")[0])
        name = shlex.quote(self._config.host_key_names[0])
        return HostKeyError(
            f"the host key of {self._host} has CHANGED: it shows {shown}, known are: {expected}. "
            "Either the node was set up anew or something else answers in its place. Once you have checked "
            "which, remove the old lines "
            f"(`ssh-keygen -R {name} -f {file}`) and add the new key: {self._advice()}"
        )

    def _unknown(self, shown: str) -> HostKeyError:
        files = ", ".join(str(file) for file in self._files) or "no known_hosts file"
        message = [
            f"the host key of {self._host} is not known: it shows {shown}, which is in none of {files}.",
            f"Check the fingerprint, then {self._advice()}",
        ]
        if self._config.strict_host_keys in {"no", "off", "false", "accept-new"}:
            message.append(
                f"(ssh would accept it, because StrictHostKeyChecking is {self._config.strict_host_keys}; "
                "here a key is never trusted on first use.)"
            )
        message += [f"Note: {problem} (line ignored)." for problem in self._known.problems[:5]]
        message += [f"Note: {limit}" for limit in self._config.limits]
        return HostKeyError("\n".join(message))

    def _advice(self) -> str:
        file = shlex.quote(str(self._config.known_hosts[0] if self._config.known_hosts else "~/.ssh/known_hosts"))
        by_hand = f"connect once by hand (`{self._config.command}`)"
        if not self._direct or self._config.host_key_alias:
            return by_hand + ", or pin the fingerprint as `host_key` of the node."
        port = f"-p {self._config.port} " if self._config.port != 22 else ""
        scan = f"`ssh-keyscan {port}{shlex.quote(self._config.hostname)} >> {file}`"
        return f"run {scan}, or {by_hand}, or pin the fingerprint as `host_key` of the node."


def _normalise(pinned: str) -> str:
    """The fingerprint of a pinned key, which may be given as such or as the public key itself."""
    text = pinned.strip()
    if text.startswith("SHA256:"):
        return text.rstrip("=")
    words = text.split()
    try:
        blob = base64.b64decode(words[1] if len(words) > 1 else "", validate=True)
    except ValueError:
        blob = b""
    if not blob.startswith(len(words[0]).to_bytes(4, "big") + words[0].encode()):
        raise HostKeyError(
            f"host_key {pinned!r} is neither a fingerprint (SHA256:… as `ssh-keygen -l` prints it) nor a public "
            "key (ssh-ed25519 AAAA…)"
        )
    return fingerprint(blob)
