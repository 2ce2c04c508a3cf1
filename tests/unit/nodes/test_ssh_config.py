from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.errors import NodeUnreachable
from pytest_sglang_perf.nodes._ssh_config import Hop, _home, parse_hops, resolve

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh binary here")


@pytest.fixture(params=[pytest.param("ssh", marks=needs_ssh), "built-in"])
def either(request, monkeypatch, tmp_path):
    """The same questions to ``ssh -G`` and to the built-in parser."""
    if request.param == "built-in":
        monkeypatch.setenv("PATH", str(tmp_path))
    return request.param


@pytest.fixture
def ask(tmp_path):
    def resolve_text(text, host="node", **options):
        config = tmp_path / "config"
        config.write_text(text)
        return resolve(host, config_file=config, **options)

    return resolve_text


@pytest.mark.usefixtures("either")
class TestEither:
    def test_an_unknown_host_is_itself(self, ask):
        found = ask("", host="some.host")
        assert (found.hostname, found.port, found.proxy_jump, found.proxy_command) == ("some.host", 22, (), None)
        assert found.host_key_names == ("some.host",)
        assert found.known_hosts[0] == _home() / ".ssh" / "known_hosts"
        assert _home() / ".ssh" / "id_ed25519" in found.identity_files

    def test_the_first_value_wins_and_wildcards_count(self, ask):
        found = ask("Host no*\n  Port 2222\nHost node\n  Port 3333\n  HostName Real.Host\n  User me\n")
        assert (found.port, found.user, found.hostname) == (2222, "me", "real.host") or found.hostname == "Real.Host"
        assert found.host_key_names == ("[real.host]:2222", "real.host")

    def test_arguments_win(self, ask):
        found = ask("Host node\n  Port 2222\n  User me\n", user="you", port=4444)
        assert (found.user, found.port) == ("you", 4444)
        assert found.command.endswith("-l you -p 4444 node")

    def test_files_are_expanded(self, ask):
        found = ask(
            "Host node\n  HostName real\n  Port 7\n  IdentityFile ~/keys/%h-%p\n"
            "  UserKnownHostsFile /etc/a ~/b\n  GlobalKnownHostsFile none\n"
        )
        assert found.identity_files[0] == _home() / "keys" / "real-7"
        assert found.known_hosts == (Path("/etc/a"), _home() / "b")
        assert found.global_known_hosts == ()

    def test_the_agent(self, ask, monkeypatch):
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
        monkeypatch.setenv("OTHER", "/run/other")
        assert ask("").identity_agent == "/run/agent"
        assert ask("IdentityAgent none\n").identity_agent is None
        assert ask("IdentityAgent $OTHER\n").identity_agent == "/run/other"
        assert ask("IdentityAgent /run/third\nIdentitiesOnly yes\n").identity_agent == "/run/third"
        assert ask("IdentitiesOnly yes\n").identities_only
        monkeypatch.delenv("SSH_AUTH_SOCK")
        assert ask("").identity_agent is None

    def test_ways(self, ask):
        assert ask("ProxyJump a@b:33\n").proxy_jump == (Hop("b", "a", 33),)
        assert ask("ProxyJump none\n").proxy_jump == ()
        assert ask("ProxyCommand none\n").proxy_command is None
        assert ask("ProxyCommand nc %h %p # %%\n").proxy_command == "nc node 22 # %"
        assert ask("ProxyCommand nc %h %p\n", proxy_jump=(Hop("c"),)).proxy_command is None

    def test_the_alias_of_a_host_key(self, ask):
        assert ask("HostKeyAlias Known-As\nPort 2222\n").host_key_names == ("known-as",)

    def test_own_known_hosts_with_a_blank_in_the_name(self, ask, tmp_path):
        file = tmp_path / "known hosts"
        found = ask("", known_hosts=(file, tmp_path / "more"))
        assert found.known_hosts == (file, tmp_path / "more")

    @pytest.mark.parametrize("user", ["$(id)", "a;b", "`x`", "a b"])
    def test_nothing_for_a_shell_reaches_a_proxy_command(self, ask, user):
        with pytest.raises(NodeUnreachable):
            ask("ProxyCommand echo %r\n", user=user)

    def test_a_token_that_is_not_known_is_an_error(self, ask):
        with pytest.raises(NodeUnreachable, match=r"%Z"):
            ask("ProxyCommand echo %Z\n")


@needs_ssh
class TestAskingSsh:
    def test_includes_and_matches(self, ask, tmp_path):
        (tmp_path / "more").write_text('Match originalhost node exec "true"\n  Port 2345\n')
        assert ask(f"Include {tmp_path}/more\n").port == 2345
        assert ask(f"Include {tmp_path}/more\n").limits == ()

    def test_a_file_with_a_blank_in_its_name_that_exists(self, ask, tmp_path):
        (tmp_path / "known hosts").write_text("")
        found = ask(f'UserKnownHostsFile /etc/a "{tmp_path}/known hosts" /etc/b\n')
        assert found.known_hosts == (Path("/etc/a"), tmp_path / "known hosts", Path("/etc/b"))

    def test_an_ssh_that_hangs_costs_only_the_timeout(self, tmp_path, monkeypatch):
        fake = tmp_path / "ssh"
        fake.write_text("#!/bin/sh\nexec sleep 60\n")
        fake.chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(NodeUnreachable, match="did not answer"):
            resolve("node", timeout=0.3)


class TestWithoutSsh:
    @pytest.fixture(autouse=True)
    def _no_ssh(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))

    @pytest.mark.parametrize("line", ["Include more", "include=more", "  Include more"])
    def test_an_include_is_a_limit_that_errors_will_tell(self, ask, line):
        limits = ask(f"{line}\nHost node\n  Port 3\n").limits
        assert len(limits) == 1
        assert "install the OpenSSH client" in limits[0]

    @pytest.mark.parametrize(
        "text",
        [
            "Match localnetwork 10.0.0.0/8\n  Port 3\n",
            "Match host\n",
            'Match exec "true"\n',
            'Match "\n',
            "Gibberish\n",
        ],
    )
    def test_what_the_parser_cannot_read_is_an_error(self, ask, text):
        with pytest.raises(NodeUnreachable, match="install the OpenSSH client"):
            ask(text)

    def test_matches_that_it_can_read(self, ask):
        assert ask("Match originalhost no* user *\n  Port 3\nMatch all\n  Port 4\n").port == 3


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("a", (Hop("a"),)),
        ("u@a:22,b", (Hop("a", "u", 22), Hop("b"))),
        ("ssh://u@a:22/", (Hop("a", "u", 22),)),
        ("[::1]:2222", (Hop("::1", None, 2222),)),
        ("u@x@a", (Hop("a", "u@x"),)),
        ("fe80::1", (Hop("fe80::1"),)),
        ("none", ()),
        ("", ()),
    ],
)
def test_hops(text, hops):
    assert parse_hops(text) == hops


@pytest.mark.parametrize("text", ["a:0", "a:65536", "a:x", ":22", "u@", "-oX=y", "a,,b"])
def test_what_is_no_hop(text):
    with pytest.raises(NodeUnreachable, match="is not of the form"):
        parse_hops(text)


@given(
    host=st.from_regex(r"[a-z][a-z0-9.]{0,9}", fullmatch=True) | st.ip_addresses().map(str),
    user=st.none() | st.from_regex(r"[a-z_]{1,5}", fullmatch=True),
    port=st.none() | st.integers(1, 65535),
)
def test_hops_read_what_they_write(host, user, port):
    hop = Hop(host, user, port)
    assert parse_hops(f"{hop},{hop}") == (hop, hop)


@pytest.mark.parametrize("host", ["", "-v", "a b", "a\tb", "a\n"])
def test_what_is_no_host(host):
    with pytest.raises(NodeUnreachable, match="is not a host name"):
        resolve(host)
