from __future__ import annotations

import base64
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import SSHCertificateBuilder, SSHCertificateType
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.nodes._host_certificate import certificate_fault
from pytest_sglang_perf.nodes._known_hosts import KnownHosts, KnownKey

NAMES = ("[node]:2222", "node")


def blob_of(public):
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return base64.b64decode(line.split()[1])


def certificate(authority, *, principals=(b"node",), kind=SSHCertificateType.HOST, after=0, before=2**62, option=None):
    builder = (
        SSHCertificateBuilder()
        .public_key(Ed25519PrivateKey.generate().public_key())
        .serial(1)
        .type(kind)
        .key_id(b"test")
        .valid_after(after)
        .valid_before(before)
    )
    builder = builder.valid_principals(list(principals)) if principals else builder.valid_for_all_principals()
    if option:
        builder = builder.add_critical_option(option, b"")
    return base64.b64decode(builder.sign(authority).public_bytes().split()[1])


def trust(*authorities, marker="@cert-authority", names=("node",)):
    keys = [KnownKey(names, "any", blob_of(key.public_key()), f"file:{n}", marker) for n, key in enumerate(authorities)]
    return KnownHosts(keys)


AUTHORITY = Ed25519PrivateKey.generate()


@pytest.mark.parametrize(
    "authority",
    [
        AUTHORITY,
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["ed25519", "p256", "p384", "rsa"],
)
def test_authorities_of_every_kind(authority):
    assert certificate_fault(certificate(authority), NAMES, "node", trust(authority)) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"principals": (b"other", b"more")}, "it is for other, more, not for node"),
        ({"principals": ()}, "no named host"),
        ({"kind": SSHCertificateType.USER}, "certifies a user"),
        ({"after": int(time.time()) + 3600}, "not valid yet"),
        ({"before": int(time.time()) - 3600}, "expired"),
        ({"option": b"force-command"}, "critical options that are not known here (force-command)"),
    ],
)
def test_each_fault_has_its_words(options, said):
    fault = certificate_fault(certificate(AUTHORITY, **options), NAMES, "node", trust(AUTHORITY))
    assert said in (fault or "")


@pytest.mark.parametrize("principal", [b"NODE", b"*", b"n?de", b"no*"])
def test_principals_are_patterns(principal):
    assert certificate_fault(certificate(AUTHORITY, principals=(principal,)), NAMES, "node", trust(AUTHORITY)) is None


def test_strangers_other_hosts_and_revoked_authorities():
    blob = certificate(AUTHORITY)
    stranger = Ed25519PrivateKey.generate()
    assert "no @cert-authority" in (certificate_fault(blob, NAMES, "node", trust(stranger)) or "")
    assert "no @cert-authority" in (certificate_fault(blob, NAMES, "node", trust(AUTHORITY, names=("other",))) or "")
    both = KnownHosts([*trust(AUTHORITY).keys, *trust(AUTHORITY, marker="@revoked").keys])
    assert "is revoked at file:0" in (certificate_fault(blob, NAMES, "node", both) or "")


@given(st.data())
def test_no_bit_of_a_certificate_may_change(data):
    blob = bytearray(certificate(AUTHORITY))
    position = data.draw(st.integers(0, len(blob) - 1))
    blob[position] ^= 1 << data.draw(st.integers(0, 7))
    assert certificate_fault(bytes(blob), NAMES, "node", trust(AUTHORITY)) is not None


@given(st.binary(max_size=200))
def test_junk_is_a_fault_and_never_a_crash(blob):
    assert certificate_fault(blob, NAMES, "node", trust(AUTHORITY)) is not None


def test_a_plain_key_is_no_certificate():
    blob = blob_of(AUTHORITY.public_key())
    assert certificate_fault(blob, NAMES, "node", trust(AUTHORITY)) == "it is not a certificate"
