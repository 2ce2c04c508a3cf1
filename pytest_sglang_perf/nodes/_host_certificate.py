"""Host certificates: is this one signed by an authority that known_hosts names, for this host, and in time?

The rules are those of OpenSSH's PROTOCOL.certkeys; the signature itself is checked by ``cryptography``.
"""

from __future__ import annotations

import base64
import fnmatch
import re
import time
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import SSHCertificate, SSHCertificateType

from ._known_hosts import fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._known_hosts import KnownHosts

__all__ = ["certificate_fault"]

_SHA1_SIGNATURE = b"\x00\x00\x00\x07ssh-rsa"


def certificate_fault(blob: bytes, names: Sequence[str], host: str, known: KnownHosts) -> str | None:
    """Say why the host certificate ``blob`` proves nothing about ``host``, or None if it proves it.

    ``names`` are the names to look up in known_hosts; ``host`` is the principal that the certificate must
    carry.
    """
    key_type = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
    try:
        certificate = serialization.load_ssh_public_identity(key_type + b" " + base64.b64encode(blob))
        if not isinstance(certificate, SSHCertificate):
            return "it is not a certificate"
        return _authority_fault(certificate, blob, names, known) or _content_fault(certificate, host)
    except (ValueError, UnsupportedAlgorithm) as error:
        return f"it cannot be read ({error})"


def _authority_fault(certificate: SSHCertificate, blob: bytes, names: Sequence[str], known: KnownHosts) -> str | None:
    key = certificate.signature_key()
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    authority = base64.b64decode(line.split()[1])
    if revoked := known.revoked(names, authority):
        return f"its authority {fingerprint(authority)} is revoked at {revoked.where}"
    trusted = next((entry for entry in known.authorities(names) if entry.blob == authority), None)
    if trusted is None:
        return f"its authority {fingerprint(authority)} is no @cert-authority of this host"
    # The signature ends the blob: its algorithm, then as many bytes as the authority's modulus has.
    if isinstance(key, RSAPublicKey) and blob[: -4 - key.key_size // 8].endswith(_SHA1_SIGNATURE):
        return f"{trusted} signed it with SHA-1"
    try:
        certificate.verify_cert_signature()
    except InvalidSignature:
        return f"the signature of {trusted} on it is wrong"
    return None


def _content_fault(certificate: SSHCertificate, host: str) -> str | None:
    if certificate.type is not SSHCertificateType.HOST:
        return "it certifies a user, not a host"
    now = time.time()
    if now < certificate.valid_after:
        return "it is not valid yet (or this machine's clock is wrong)"
    if now >= certificate.valid_before:
        return "it has expired (or this machine's clock is wrong)"
    if certificate.critical_options:
        options = ", ".join(sorted(name.decode(errors="replace") for name in certificate.critical_options))
        return f"it has critical options that are not known here ({options})"
    # PROTOCOL.certkeys lets a certificate without principals stand for every host; one that names nobody
    # proves nothing about this host, so it is refused here.
    principals = [name.decode(errors="replace").lower() for name in certificate.valid_principals]
    if not any(re.match(fnmatch.translate(name.replace("[", "[[]")), host.lower()) for name in principals):
        return f"it is for {', '.join(principals) or 'no named host'}, not for {host}"
    return None
