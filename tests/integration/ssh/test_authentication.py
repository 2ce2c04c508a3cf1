"""Keys from files and from the agent; and one clear error where none fits."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest

from pytest_sglang_perf.errors import NodeUnreachable
from tests._sshd import keygen, public_key, wait_until

pytestmark = pytest.mark.sshd


@pytest.fixture
def agent(tmp_path_factory):
    """A real ssh-agent without keys; its socket."""
    folder = tmp_path_factory.mktemp("a")  # short: the path of a Unix socket has 108 bytes at most
    path = folder / "s"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    wait_until(path.exists, what="the agent's socket")
    yield path
    process.terminate()
    process.wait(10)


def add(agent, *arguments, passphrase=None):
    environment = os.environ | {"SSH_AUTH_SOCK": str(agent)}
    if passphrase is not None:
        helper = agent.parent / "askpass"
        helper.write_text(f"#!/bin/sh\necho {passphrase}\n")
        helper.chmod(0o700)
        environment |= {"SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(
        ["ssh-add", "-q", *arguments],
        env=environment,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def configured(sshd, tmp_path):
    """A configuration file with these lines for ``node`` and no key of its own."""

    def write(*lines):
        config = tmp_path / "config"
        config.write_text(
            f"Host node\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n"
            f"  UserKnownHostsFile {sshd.known_hosts}\n  GlobalKnownHostsFile none\n"
            + "".join(f"  {line}\n" for line in lines)
        )
        return config

    return write


def enters(transport):
    with contextlib.closing(transport):
        return transport.open("echo in").receive(timeout=10) == b"in\n"


def refusal(transport):
    with contextlib.closing(transport), pytest.raises(NodeUnreachable) as caught:
        transport.open("true")
    return str(caught.value)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_key_files_of_every_kind(make_sshd, tmp_path, kind):
    key = keygen(tmp_path / "key", kind=kind)
    server = make_sshd(authorized=(public_key(key),))
    assert enters(server.transport(identity_files=[key]))


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_keys_in_the_agent(make_sshd, tmp_path, agent, configured, kind):
    key = keygen(tmp_path / "key", kind=kind)
    server = make_sshd(authorized=(public_key(key),))
    add(agent, key)
    key.unlink()
    config = configured(f"IdentityAgent {agent}", f"IdentityFile {tmp_path}/none")
    config.write_text(
        config.read_text()
        .replace(f"Port {server.transport and _port(config)}", f"Port {server.port}")
        .replace(f"{_known(config)}", f"{server.known_hosts}")
    )
    assert enters(server.transport(config_file=config))


def _port(config):
    return config.read_text().split("Port ")[1].split()[0]


def _known(config):
    return config.read_text().split("UserKnownHostsFile ")[1].split()[0]


def test_the_agent_of_the_environment(sshd, agent, configured, monkeypatch, tmp_path):
    add(agent, sshd.user_key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert enters(sshd.transport(config_file=configured(f"IdentityFile {tmp_path}/none")))


def test_an_encrypted_key_that_the_agent_holds(make_sshd, tmp_path, agent):
    key = keygen(tmp_path / "locked", passphrase="secret words")
    server = make_sshd(authorized=(public_key(key),))
    add(agent, key, passphrase="'secret words'")
    config = server.folder / "with_agent"
    config.write_text(server.config.read_text().replace("IdentityAgent none", f"IdentityAgent {agent}"))
    key.with_name("locked.pub").unlink()  # the header of the file must do
    assert enters(server.transport(config_file=config, identity_files=[key]))


def test_a_public_key_file_names_a_key_of_the_agent(sshd, tmp_path, agent, configured):
    add(agent, sshd.user_key)
    for number in range(7):  # more than sshd forgives
        add(agent, keygen(tmp_path / f"other{number}"))
    lines = [f"IdentityAgent {agent}", f"IdentityFile {sshd.user_key}.pub", "IdentitiesOnly yes"]
    assert enters(sshd.transport(config_file=configured(*lines)))


def test_an_encrypted_key_alone_is_explained_without_a_prompt(sshd, tmp_path):
    key = keygen(tmp_path / "locked", passphrase="secret words")
    message = refusal(sshd.transport(identity_files=[key]))
    assert f"{key} is encrypted" in message
    assert f"ssh-add {key}" in message


def test_an_encrypted_default_key_is_a_note_not_the_end(sshd, tmp_path, configured):
    key = keygen(tmp_path / "locked", passphrase="secret words")
    lines = ["IdentityAgent none", f"IdentityFile {key}", f"IdentityFile {sshd.user_key}"]
    assert enters(sshd.transport(config_file=configured(*lines)))
    message = refusal(sshd.transport(config_file=configured("IdentityAgent none", f"IdentityFile {key}")))
    assert "There was no key to try" in message
    assert f"ssh-add {key}" in message


def test_a_wrong_key_is_named(sshd, tmp_path, configured):
    key = keygen(tmp_path / "wrong")
    message = refusal(sshd.transport(config_file=configured("IdentityAgent none", f"IdentityFile {key}")))
    assert f"{key} SHA256:" in message
    assert f"ssh-copy-id -p {sshd.port}" in message
    assert "Passwords are never used" in message


def test_a_missing_user_is_named(sshd):
    message = refusal(sshd.transport(user="nobody-of-that-name"))
    assert "does not let user nobody-of-that-name in" in message
    assert str(sshd.user_key) in message


def test_no_agent_and_no_key_is_one_clear_error(sshd, tmp_path, configured, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    message = refusal(sshd.transport(config_file=configured(f"IdentityFile {tmp_path}/none")))
    assert "There was no key to try" in message
    assert "no agent was asked (SSH_AUTH_SOCK is not set" in message


def test_a_dead_agent_is_told(sshd, tmp_path, configured):
    dead = tmp_path / "gone.sock"
    message = refusal(sshd.transport(config_file=configured(f"IdentityAgent {dead}", "IdentityFile none")))
    assert f"the agent at {dead} does not answer" in message


def test_an_agent_that_never_answers_costs_no_more_than_the_timeout(sshd, tmp_path_factory, configured):
    path = tmp_path_factory.mktemp("b") / "s"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        started = time.monotonic()
        config = configured(f"IdentityAgent {path}", "IdentityFile none")
        message = refusal(sshd.transport(config_file=config, connect_timeout_s=1.0))
    assert time.monotonic() - started < 6
    assert f"the agent at {path} does not answer" in message


def test_an_agent_that_refuses_to_sign_does_not_spoil_the_next_key(sshd, tmp_path, agent, configured):
    """In paramiko the refusal kills the connection, and every further key with it."""
    vetoed = keygen(tmp_path / "vetoed")
    # "-c" asks for a confirmation that nobody here can give.
    add(agent, "-c", vetoed)
    lines = [f"IdentityAgent {agent}", f"IdentityFile {vetoed}.pub"]
    config = configured(*lines, f"IdentityFile {sshd.user_key}")
    assert enters(sshd.transport(config_file=config))
    message = refusal(sshd.transport(config_file=configured(*lines)))
    assert "the agent did not sign" in message


def test_too_many_keys_is_recognised(sshd, tmp_path, agent, configured):
    for number in range(7):
        add(agent, keygen(tmp_path / f"other{number}"))
    message = refusal(sshd.transport(config_file=configured(f"IdentityAgent {agent}", "IdentityFile none")))
    assert "Too many authentication failures" in message
    assert "IdentitiesOnly yes" in message


def test_the_nodes_own_file_is_tried_before_the_agent(sshd, tmp_path, agent, configured):
    for number in range(7):
        add(agent, keygen(tmp_path / f"other{number}"))
    config = configured(f"IdentityAgent {agent}", "IdentityFile none")
    assert enters(sshd.transport(config_file=config, identity_files=[sshd.user_key]))


def test_a_server_that_wants_passwords_is_told_apart(make_sshd):
    server = make_sshd(extra="PubkeyAuthentication no\nPasswordAuthentication yes")
    assert "the node also wants password" in refusal(server.transport())


def test_a_second_factor_is_told_apart(make_sshd):
    server = make_sshd(extra="PasswordAuthentication yes\nAuthenticationMethods publickey,password")
    assert "the node also wants password" in refusal(server.transport())


def test_two_keys_as_two_factors(make_sshd, tmp_path):
    second = keygen(tmp_path / "second")
    first = keygen(tmp_path / "first")
    server = make_sshd(
        extra="AuthenticationMethods publickey,publickey", authorized=(public_key(first), public_key(second))
    )
    assert enters(server.transport(identity_files=[first, second]))


def test_a_missing_identity_file_is_told_before_anything_else(sshd, tmp_path):
    assert "does not exist" in refusal(sshd.transport(identity_files=[tmp_path / "none"]))


def test_a_file_that_is_no_key_is_told(sshd, tmp_path):
    junk = tmp_path / "junk"
    junk.write_text("not a key\n")
    assert f"{junk} cannot be used" in refusal(sshd.transport(identity_files=[junk]))


def test_a_user_certificate_beside_the_key_is_used(make_sshd, tmp_path):
    authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "key")
    server = make_sshd(extra=f"TrustedUserCAKeys {authority}.pub", authorized=("# nobody",))
    subprocess.run(
        ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", server.user, f"{key}.pub"],
        check=True,
        capture_output=True,
    )
    assert enters(server.transport(identity_files=[key]))


def test_an_answer_that_never_comes_is_no_reason_to_wait(make_sshd):
    server = make_sshd()
    transport = server.transport(connect_timeout_s=2.0)
    # The session process stops right after the handshake: key exchange done, no answer to authentication.
    with contextlib.closing(transport):
        import threading

        from pytest_sglang_perf.nodes import _ssh_auth

        real = _ssh_auth.authenticate

        def freeze(*args, **kwargs):
            for pid in server.sessions():
                os.kill(pid, signal.SIGSTOP)
            return real(*args, **kwargs)

        _ssh_auth.authenticate = freeze
        started = time.monotonic()
        try:
            with pytest.raises(NodeUnreachable, match="no answer within 2 s"):
                transport.open("true")
        finally:
            _ssh_auth.authenticate = real
        assert time.monotonic() - started < 6
        assert threading.active_count() < 50
