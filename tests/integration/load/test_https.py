"""Servers behind TLS, with a certificate that is trusted and with one that is not."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .scripted import answer, serve


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
def test_a_trusted_server(load, tls, certificate, monkeypatch, event_loop):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serve(lambda *_: answer(8), tls) as url:
        result, records = load(url, event_loop=event_loop, probe_server=False)
    assert result["valid"], result
    assert {record["output_tokens"] for record in records if record["status"] == "ok"} == {8}


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
def test_a_server_that_nobody_vouches_for(load, tls, event_loop):
    with serve(lambda *_: answer(8), tls) as url:
        result, records = load(url, event_loop=event_loop, probe_server=False)
    assert not result["valid"]
    assert not records
    assert any("certificate verify failed" in text.lower() for text in result["errors"]), result["errors"]
