"""OpenSSH's known_hosts files: read whole, matched as ``ssh`` matches, judged strictly.

paramiko's own loader gives up at the first ``@revoked`` or ``@cert-authority`` line and prefers only the
first key type it knows of a host. This one keeps every line and remembers where it stood.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["KnownHosts", "KnownKey", "fingerprint"]

_MARKERS = ("@revoked", "@cert-authority")


def fingerprint(blob: bytes) -> str:
    """The SHA256 fingerprint of a public key blob, as ``ssh-keygen -l`` prints it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii")
    return "SHA256:" + digest.rstrip("=")


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    names: tuple[str, ...]
    """Patterns, possibly negated or hashed."""
    key_type: str
    blob: bytes
    where: str
    """``file:line``."""
    marker: str = ""
    """Empty, ``@revoked`` or ``@cert-authority``."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)

    def matches(self, name: str) -> bool:
        """Whether this line speaks of ``name`` (lower case, ``[host]:port`` where the port is not 22)."""
        hit = False
        for pattern in self.names:
            if pattern.startswith("|"):
                hit = hit or _matches_hash(pattern, name)
            elif pattern.startswith("!"):
                if _matches_glob(pattern[1:], name):
                    return False
            else:
                hit = hit or _matches_glob(pattern, name)
        return hit

    def __str__(self) -> str:
        return f"{self.key_type} {self.fingerprint} ({self.where})"


@dataclass
class KnownHosts:
    """All lines of some known_hosts files, and the lines that could not be read."""

    keys: list[KnownKey] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, files: Iterable[Path]) -> KnownHosts:
        """Read ``files``. A missing file is an empty one; a line that makes no sense is kept as a problem."""
        known = cls()
        for file in files:
            try:
                text = file.read_bytes().decode("utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                known.problems.append(f"{file}: {error.strerror}")
                continue
            for number, line in enumerate(text.split("\n"), start=1):
                known._add(line.strip(), f"{file}:{number}")
        return known

    def _add(self, line: str, where: str) -> None:
        if not line or line.startswith("#"):
            return
        fields = line.split(None, 4)
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if marker and marker not in _MARKERS:
            self.problems.append(f"{where}: unknown marker {marker}")
            return
        if len(fields) < 3:
            self.problems.append(f"{where}: fewer than the three fields host, key type and key")
            return
        names, key_type, encoded = fields[:3]
        try:
            blob = base64.b64decode(encoded, validate=True)
        except ValueError:
            self.problems.append(f"{where}: the key is not base64")
            return
        # The blob begins with its own type; a line whose words disagree was damaged by hand.
        if not blob.startswith(len(key_type).to_bytes(4, "big") + key_type.encode()):
            self.problems.append(f"{where}: the key is not of the type {key_type} that the line names")
            return
        self.keys.append(KnownKey(tuple(names.split(",")), key_type, blob, where, marker))

    def of(self, names: Sequence[str]) -> list[KnownKey]:
        """The plain keys of a host.

        ``names`` are alternatives, the most specific first. As in ``ssh``, a key stored for ``host`` also
        counts for ``host`` at another port, unless that port has lines of its own.
        """
        return self._select(names, "")

    def authorities(self, names: Sequence[str]) -> list[KnownKey]:
        """The keys that may sign host certificates of a host."""
        return [key for key in self.keys if key.marker == "@cert-authority" and _any(key, names)]

    def revoked(self, names: Sequence[str], blob: bytes) -> KnownKey | None:
        """The line that revokes ``blob`` for a host, if there is one."""
        for key in self.keys:
            if key.marker == "@revoked" and key.blob == blob and _any(key, names):
                return key
        return None

    def _select(self, names: Sequence[str], marker: str) -> list[KnownKey]:
        for name in names:
            found = [key for key in self.keys if key.marker == marker and key.matches(name)]
            if found:
                return found
        return []


def _any(key: KnownKey, names: Sequence[str]) -> bool:
    return any(key.matches(name) for name in names)


def _matches_hash(pattern: str, name: str) -> bool:
    # "|1|salt|hash": HMAC-SHA1 of the name, keyed with the salt.
    parts = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _matches_glob(pattern: str, name: str) -> bool:
    # Only `*` and `?` are special; the brackets of "[host]:port" are not a set of characters.
    translated = fnmatch.translate(pattern.lower().replace("[", "[[]"))
    return re.match(translated, name) is not None
