"""Host keys: known ones are accepted in every notation of known_hosts, all others are refused with advice."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shlex
import subprocess
import threading

import pytest

from pytest_sglang_perf.errors import HostKeyError
from tests import _sshd
from tests._sshd import fingerprint_of, keygen, public_key

pytestmark = pytest.mark.sshd


@pytest.fixture
def judge(sshd, tmp_path):
    """Connect with a known_hosts of these lines; None, or the message of the refusal."""

    def connect(*lines, server=sshd, **options):
        file = tmp_path / "known_hosts"
        file.write_text("\n".join(lines) + "\n")
        transport = server.transport(known_hosts=[file], **options)
        try:
            assert transport.open("echo in").receive(timeout=10) == b"in\n"
        except HostKeyError as error:
            return str(error)
        finally:
            transport.close()
        return None

    return connect


def hashed(name):
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_whichever_type_is_known_is_asked_for(sshd, judge, kind):
    assert judge(f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_keys[kind])}") is None


def test_all_known_types_are_offered_not_only_the_first(make_sshd, judge):
    server = make_sshd(host_keys=("rsa",))
    stranger = keygen(server.folder / "stranger")
    name = f"[127.0.0.1]:{server.port}"
    lines = [f"{name} {public_key(stranger)}", f"{name} {public_key(server.host_keys['rsa'])}"]
    assert judge(*lines, server=server) is None


@pytest.mark.parametrize(
    "notation",
    ["[127.0.0.1]:{port}", "127.0.0.1", "other,[127.0.0.1]:{port}", "[127.0.0.?]:*", "*,!else", "hashed"],
)
def test_every_notation_of_a_name_is_understood(sshd, judge, notation):
    name = notation.format(port=sshd.port)
    if notation == "hashed":
        name = hashed(f"[127.0.0.1]:{sshd.port}")
    assert judge(f"{name} {public_key(sshd.host_keys['ed25519'])} a comment") is None


def test_a_negated_name_does_not_count(sshd, judge):
    line = f"*,![127.0.0.1]:{sshd.port},!127.0.0.1 {public_key(sshd.host_keys['ed25519'])}"
    assert "is not known" in judge(line)


def test_an_unknown_key_is_refused_with_advice_that_works(sshd, judge, tmp_path):
    message = judge("# nothing")
    assert f"127.0.0.1 port {sshd.port}" in message
    assert fingerprint_of(sshd.host_keys["ed25519"]) in message
    assert f"`ssh-keyscan -p {sshd.port} 127.0.0.1 >> {tmp_path / 'known_hosts'}`" in message
    # The advice is a command; it must do what it says.
    command = message.partition("`")[2].partition("`")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True, timeout=20)
    assert judge(*(tmp_path / "known_hosts").read_text().splitlines()) is None


def test_the_other_advice_connects_by_hand_to_the_same_host(judge, tmp_path):
    message = judge("# nothing")
    command = next(part for part in message.split("`") if part.startswith("ssh "))
    # "accept-new" stands for the user's "yes".
    words = [*shlex.split(command), "-o", "StrictHostKeyChecking=accept-new", "echo", "in"]
    done = subprocess.run(words, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    assert done.stdout == b"in\n"
    assert judge(*(tmp_path / "known_hosts").read_text().splitlines()) is None


def test_strict_host_key_checking_no_is_not_obeyed(sshd, judge):
    config = sshd.config.read_text().replace("Host node", "Host node\n  StrictHostKeyChecking no", 1)
    lax = sshd.folder / "lax_config"
    lax.write_text(config)
    message = judge("# nothing", config_file=lax)
    assert "never trusted on first use" in message
    assert "StrictHostKeyChecking is" in message


def test_a_changed_key_names_both_and_the_line(sshd, judge, tmp_path):
    old = keygen(tmp_path / "old")
    message = judge("# a comment", f"[127.0.0.1]:{sshd.port} {public_key(old)}")
    assert "CHANGED" in message
    assert f"port {sshd.port}" in message
    assert fingerprint_of(old) in message
    assert fingerprint_of(sshd.host_keys["ed25519"]) in message
    assert f"{tmp_path / 'known_hosts'}:2" in message
    removal = message.partition("(`")[2].partition("`)")[0]
    subprocess.run(removal, shell=True, check=True, capture_output=True, timeout=20)
    assert public_key(old) not in (tmp_path / "known_hosts").read_text()


def test_a_line_for_the_port_beats_one_for_the_host(sshd, judge, tmp_path):
    old = keygen(tmp_path / "old")
    key = public_key(sshd.host_keys["ed25519"])
    assert "CHANGED" in judge(f"[127.0.0.1]:{sshd.port} {public_key(old)}", f"127.0.0.1 {key}")


def test_nothing_is_sent_to_a_host_with_a_wrong_key(make_sshd, judge):
    server = make_sshd()
    assert "is not known" in judge("# nothing", server=server)
    assert "Accepted" not in server.log()
    assert "authenticating" not in server.log().lower().replace("preauth", "")


def test_a_refused_handshake_leaves_no_timer(judge):
    assert judge("# nothing")
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


class TestMarkers:
    def test_a_revoked_key_is_refused_even_if_known(self, sshd, judge):
        name, key = f"[127.0.0.1]:{sshd.port}", public_key(sshd.host_keys["ed25519"])
        message = judge(f"{name} {key}", f"@revoked * {key}")
        assert "REVOKED" in message
        assert "known_hosts:2" in message

    def test_a_revoked_line_for_another_key_changes_nothing(self, sshd, judge, tmp_path):
        name, key = f"[127.0.0.1]:{sshd.port}", public_key(sshd.host_keys["ed25519"])
        assert judge(f"@revoked * {public_key(keygen(tmp_path / 'bad'))}", f"{name} {key}") is None

    def test_an_authority_line_does_not_spoil_the_file(self, sshd, judge, tmp_path):
        name, key = f"[127.0.0.1]:{sshd.port}", public_key(sshd.host_keys["ed25519"])
        assert judge(f"@cert-authority * {public_key(keygen(tmp_path / 'ca'))}", f"{name} {key}") is None

    def test_broken_lines_are_told_and_do_not_spoil_the_file(self, sshd, judge):
        name, key = f"[127.0.0.1]:{sshd.port}", public_key(sshd.host_keys["ed25519"])
        broken = [
            "short",
            "@unknown * ssh-rsa AAAA",
            "h ssh-rsa !!!",
            "\udcff".encode(errors="replace").decode(),
        ]
        assert judge(*broken, f"{name} {key}") is None
        message = judge(*broken)
        assert "known_hosts:1: fewer than the three fields" in message
        assert "known_hosts:2: unknown marker @unknown" in message


class TestCertificates:
    @pytest.fixture
    def certified(self, make_sshd, tmp_path):
        """A server whose only host key has a certificate; ``sign`` makes it anew with other options."""
        authority = keygen(tmp_path / "authority", kind="ed25519")
        folder = tmp_path / "sshd0"
        server = make_sshd(extra=f"HostCertificate {folder}/host_ed25519-cert.pub")

        def sign(*options, by=authority, principals="127.0.0.1"):
            subprocess.run(
                ["ssh-keygen", "-q", "-s", by, "-h", "-I", "node", "-n", principals, *options,
                 server.host_keys["ed25519"].with_suffix(".pub")],
                check=True, capture_output=True,
            )  # fmt: skip
            server.process.send_signal(1)  # SIGHUP: sshd reads its keys again
            _sshd.wait_until(lambda: "Received SIGHUP" in server.log())
            _sshd.wait_until(lambda: server.log().count("Server listening") >= 2)

        return server, authority, sign

    def test_signed_by_a_known_authority(self, certified, judge):
        server, authority, sign = certified
        sign()
        line = f"@cert-authority [127.0.0.1]:{server.port} {public_key(authority)}"
        assert judge(line, server=server) is None

    def test_signed_by_an_rsa_authority(self, certified, judge, tmp_path):
        server, _, sign = certified
        authority = keygen(tmp_path / "rsa_authority", kind="rsa")
        sign(by=authority)
        assert judge(f"@cert-authority * {public_key(authority)}", server=server) is None

    def test_signed_by_a_stranger(self, certified, judge, tmp_path):
        server, _, sign = certified
        sign()
        other = keygen(tmp_path / "other")
        message = judge(f"@cert-authority * {public_key(other)}", server=server)
        assert "is no @cert-authority of this host" in message

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"principals": "elsewhere"}, "it is for elsewhere, not for 127.0.0.1"),
            ({"options": ["-V", "20200101:20200102"]}, "expired"),
            ({"options": ["-V", "20990101:20990102"]}, "not valid yet"),
        ],
    )
    def test_not_for_this_host_or_time(self, certified, judge, options, said):
        server, authority, sign = certified
        sign(*options.pop("options", []), **options)
        message = judge(f"@cert-authority * {public_key(authority)}", server=server)
        assert "certificate" in message
        assert said in message

    def test_a_revoked_authority(self, certified, judge):
        server, authority, sign = certified
        sign()
        key = public_key(authority)
        assert "is revoked" in judge(f"@cert-authority * {key}", f"@revoked * {key}", server=server)

    def test_a_bad_certificate_for_a_key_that_is_known_anyway(self, certified, judge):
        server, authority, sign = certified
        sign(principals="elsewhere")
        lines = [f"@cert-authority * {public_key(authority)}", server.known_hosts.read_text().strip()]
        assert judge(*lines, server=server) is None


class TestPinned:
    @pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
    def test_any_of_the_nodes_keys_may_be_pinned(self, sshd, judge, kind):
        assert judge("# nothing", host_key=fingerprint_of(sshd.host_keys[kind])) is None

    def test_another_key_is_refused_though_known(self, sshd, judge, tmp_path):
        other = fingerprint_of(keygen(tmp_path / "other"))
        message = judge(sshd.known_hosts.read_text(), host_key=other)
        assert f"does not have the pinned host key {other}" in message
        for key in sshd.host_keys.values():
            assert fingerprint_of(key) in message

    def test_a_revoked_key_is_refused_though_pinned(self, sshd, judge):
        key = sshd.host_keys["ed25519"]
        assert "REVOKED" in judge(f"@revoked * {public_key(key)}", host_key=fingerprint_of(key))

    def test_the_public_key_itself_may_be_pinned(self, sshd, judge):
        assert judge("# nothing", host_key=public_key(sshd.host_keys["ecdsa"]) + " comment") is None

    @pytest.mark.parametrize("pin", ["MD5:" + hashlib.md5(b"").hexdigest(), "ssh-rsa", "ssh-rsa AAAA", "ssh-rsa !"])
    def test_what_is_no_key_is_refused(self, judge, pin):
        assert "ssh-keygen -l" in judge("# nothing", host_key=pin)


def test_a_host_key_alias_is_what_is_looked_up(sshd, judge):
    config = sshd.folder / "alias_config"
    config.write_text(sshd.config.read_text().replace("Host node", "Host node\n  HostKeyAlias the-node", 1))
    key = public_key(sshd.host_keys["ed25519"])
    assert judge(f"the-node {key}", config_file=config) is None
    assert "HostKeyAlias the-node" in judge(f"[127.0.0.1]:{sshd.port} {key}", config_file=config)
