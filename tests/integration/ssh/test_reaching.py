"""Ways to a node: configuration, jump hosts, proxy commands; and one clear error for each way that fails."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_sglang_perf.errors import ConnectionLost, HostKeyError, NodeUnreachable
from pytest_sglang_perf.nodes.ssh import SshTransport
from tests import _sshd
from tests._sshd import keygen, public_key, wait_until

pytestmark = pytest.mark.sshd


def says(transport, command="echo in"):
    with contextlib.closing(transport):
        return transport.open(command).receive(timeout=10).decode().strip()


def refusal(transport, error=NodeUnreachable):
    started = time.monotonic()
    with contextlib.closing(transport), pytest.raises(error) as caught:
        transport.open("true")
    return str(caught.value), time.monotonic() - started


@contextlib.contextmanager
def tcp_server(handle):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socks = []

        def accept():
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                socks.append(sock)
                handle(sock)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for sock in socks:
                sock.close()


class TestConfiguration:
    def test_included_files_and_match_blocks_count(self, sshd, tmp_path):
        included = tmp_path / "included"
        included.write_text(f'Match originalhost "bla*"\n  HostName 127.0.0.1\n  Port {sshd.port}\n')
        config = tmp_path / "config"
        config.write_text(f"Include {included}\nInclude {sshd.config}\nHost blackwell\n  HostName nowhere.invalid\n")
        text = sshd.config.read_text()
        included.write_text(included.read_text() + f"  IdentityFile {sshd.user_key}\n  User {sshd.user}\n")
        assert "Host node" in text
        transport = sshd.transport(host="blackwell", config_file=config)
        assert transport.describe() == "ssh blackwell"
        transport.open("true")
        assert transport.describe() == f"ssh {sshd.user}@127.0.0.1:{sshd.port}"
        transport.close()

    def test_arguments_stand_before_the_configuration(self, sshd, tmp_path):
        config = tmp_path / "config"
        config.write_text("Host node\n  HostName 127.0.0.1\n  Port 1\n  User nobody-of-that-name\n")
        transport = sshd.transport(
            config_file=config,
            user=sshd.user,
            port=sshd.port,
            identity_files=[sshd.user_key],
            known_hosts=[sshd.known_hosts],
        )
        assert says(transport) == "in"

    def test_without_an_ssh_binary_the_built_in_parser_serves(self, sshd, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert says(sshd.transport()) == "in"

    def test_without_an_ssh_binary_an_include_is_told(self, sshd, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        config = tmp_path / "config"
        config.write_text(f"Include {tmp_path}/more\n{sshd.config.read_text()}")
        assert says(sshd.transport(config_file=config)) == "in"
        message, _ = refusal(sshd.transport(config_file=config, user="nobody-of-that-name"))
        assert f"`Include` in {config} was not followed" in message
        assert "install the OpenSSH client" in message

    def test_a_broken_configuration_is_quoted(self, sshd, tmp_path):
        config = tmp_path / "config"
        config.write_text("Host node\n  Bogus yes\n")
        message, _ = refusal(sshd.transport(config_file=config))
        assert "line 2" in message
        assert "bogus" in message

    def test_a_missing_configuration_is_told(self, sshd, tmp_path):
        assert "does not exist" in refusal(sshd.transport(config_file=tmp_path / "none"))[0]

    @pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "", "two words"])
    def test_what_is_no_host_name_never_reaches_ssh(self, sshd, host):
        assert "is not a host name" in refusal(sshd.transport(host=host))[0]


class TestJumps:
    @pytest.fixture
    def chain(self, make_sshd, tmp_path):
        """Three servers ``one``, ``two`` and ``node``, each with a key and a known_hosts file of its own."""
        servers = {name: make_sshd() for name in ("one", "two", "node")}
        config = tmp_path / "config"
        config.write_text(
            "".join(
                f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
                f"  IdentityFile {server.user_key}\n  UserKnownHostsFile {server.known_hosts}\n"
                for name, server in servers.items()
            )
            + "Host via-one\n  ProxyJump one\n  HostKeyAlias the-node\n"
            + "Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n  GlobalKnownHostsFile none\n"
        )
        return servers, config

    def sessions(self, server):
        return server.log().count("Accepted publickey")

    @pytest.mark.parametrize("jump", ["one", "one,two", "two,one"])
    def test_through_one_jump_and_a_chain(self, chain, jump):
        servers, config = chain
        transport = SshTransport("node", config_file=config, proxy_jump=jump)
        assert says(transport, "echo $SSH_CONNECTION").split()[3] == str(servers["node"].port)
        for name, server in servers.items():
            assert self.sessions(server) == (name == "node" or name in jump.split(","))

    def test_the_order_of_the_chain_is_that_of_ssh(self, chain):
        servers, config = chain
        transport = SshTransport("node", config_file=config, proxy_jump="one,two")
        channel = transport.open("cat")
        assert transport._connection is not None
        last = transport._connection._via
        assert last is not None
        assert last._via is not None
        assert (last.config.port, last._via.config.port) == (servers["two"].port, servers["one"].port)
        channel.close()
        transport.close()

    def test_a_jump_in_the_configuration(self, chain):
        servers, config = chain
        text = config.read_text().replace("Host node\n", "Host node\n  ProxyJump one\n")
        config.write_text(text)
        assert says(SshTransport("node", config_file=config)) == "in"
        assert self.sessions(servers["one"]) == 1
        assert says(SshTransport("node", config_file=config, proxy_jump="none")) == "in"
        assert self.sessions(servers["one"]) == 1

    def test_a_jump_host_with_a_jump_of_its_own(self, chain):
        servers, config = chain
        text = config.read_text().replace("Host node\n", "Host node\n  ProxyJump two\n")
        config.write_text(text.replace("Host two\n", "Host two\n  ProxyJump one\n"))
        assert says(SshTransport("node", config_file=config)) == "in"
        assert all(self.sessions(server) == 1 for server in servers.values())

    @pytest.mark.parametrize("name", ["one", "two", "node"])
    def test_every_hop_is_verified(self, chain, name, tmp_path):
        servers, config = chain
        servers[name].known_hosts.write_text(
            f"[127.0.0.1]:{servers[name].port} {public_key(keygen(tmp_path / 'other'))}\n"
        )
        transport = SshTransport("node", config_file=config, proxy_jump="one,two")
        message, _ = refusal(transport, HostKeyError)
        assert f"127.0.0.1 port {servers[name].port} has CHANGED" in message

    def test_the_advice_behind_a_jump_is_not_a_keyscan(self, chain):
        servers, config = chain
        servers["node"].known_hosts.write_text("")
        transport = SshTransport("node", config_file=config, proxy_jump="one")
        message, _ = refusal(transport, HostKeyError)
        assert "ssh-keyscan" not in message
        assert f"`ssh -F {config} -J one node`" in message

    def test_a_jump_that_cannot_reach_the_node(self, chain):
        servers, config = chain
        servers["node"].stop()
        transport = SshTransport("node", config_file=config, proxy_jump="one")
        message, _ = refusal(transport)
        assert f"the jump host {servers['one'].user}@127.0.0.1:{servers['one'].port} does not connect" in message

    def test_a_loop_of_jumps_ends(self, chain):
        _, config = chain
        text = config.read_text().replace("Host one\n", "Host one\n  ProxyJump two\n")
        config.write_text(text.replace("Host two\n", "Host two\n  ProxyJump one\n"))
        message, _ = refusal(SshTransport("node", config_file=config, proxy_jump="one"))
        assert "lead nowhere" in message

    def test_a_jump_host_that_freezes_is_named(self, chain):
        servers, config = chain
        transport = SshTransport("node", config_file=config, proxy_jump="one", keepalive_s=0.4)
        channel = transport.open("cat")
        for pid in servers["one"].sessions():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ConnectionLost, match=r"connection lost: .*nothing was heard"):
            channel.receive(timeout=20)
        transport.close()

    def test_close_does_not_wait_for_a_frozen_jump_host(self, chain):
        servers, config = chain
        transport = SshTransport("node", config_file=config, proxy_jump="one", keepalive_s=60)
        transport.open("cat >/dev/null")
        assert transport._connection is not None
        assert transport._connection._via is not None
        # Small, so that the write itself is stuck and not only the window of a channel used up.
        outer = transport._connection._via.transport.wire._stream
        assert isinstance(outer, socket.socket)
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with tcp_server(lambda _: None) as target, transport.forward(target) as port:
            client = socket.create_connection(("127.0.0.1", port), timeout=1)
            client.sendall(b"x")
            wait_until(lambda: len([t for t in threading.enumerate() if t.name.startswith("forward")]) == 3)
            for pid in servers["one"].sessions():
                os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                client.sendall(b"x" * (64 << 20))
            started = time.monotonic()
            transport.close()
            assert time.monotonic() - started < 4
            client.close()

    def test_large_transfers_through_a_chain(self, chain):
        _, config = chain
        transport = SshTransport("node", config_file=config, proxy_jump="one,two")
        channel = transport.open("cat")
        size = 5 << 20
        sender = threading.Thread(target=channel.send, args=(b"x" * size,), kwargs={"timeout": 20})
        sender.start()
        got = 0
        while got < size:
            got += len(channel.receive(timeout=20))
        sender.join()
        transport.close()

    def test_a_malformed_jump_is_told_at_once(self):
        with pytest.raises(NodeUnreachable, match="is not of the form"):
            SshTransport("node", proxy_jump="user@:22")


class TestProxyCommand:
    RELAY = (
        "import socket,sys,threading,os\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "    while d:=os.read(0,65536): s.sendall(d)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while d:=s.recv(65536): os.write(1,d)\n"
    )

    def config(self, sshd, tmp_path, command):
        config = tmp_path / "config"
        config.write_text(sshd.config.read_text().replace("Host node", f"Host node\n  ProxyCommand {command}", 1))
        return config

    def relay(self, tmp_path):
        script = tmp_path / "relay with space.py"
        script.write_text(self.RELAY)
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} %h %p"

    def test_a_command_carries_the_connection_and_is_reaped(self, sshd, tmp_path):
        transport = sshd.transport(config_file=self.config(sshd, tmp_path, self.relay(tmp_path)))
        channel = transport.open("cat")
        channel.send(b"x" * (1 << 20), timeout=20)
        got = 0
        while got < 1 << 20:
            got += len(channel.receive(timeout=20))
        process = transport._connection.transport.wire._stream._process
        transport.close()
        assert process.returncode is not None

    def test_its_complaint_is_the_error(self, sshd, tmp_path):
        config = self.config(sshd, tmp_path, "sh -c 'echo gateway says no >&2; exit 1'")
        message, took = refusal(sshd.transport(config_file=config))
        assert "gateway says no" in message
        assert took < 10

    def test_a_command_that_is_not_there(self, sshd, tmp_path):
        message, _ = refusal(sshd.transport(config_file=self.config(sshd, tmp_path, "/no/such/program")))
        assert "/no/such/program" in message
        assert "not found" in message

    def test_a_command_that_says_nothing_is_ended(self, sshd, tmp_path):
        config = self.config(sshd, tmp_path, "sleep 60")
        message, took = refusal(sshd.transport(config_file=config, connect_timeout_s=0.5))
        assert "through ProxyCommand 'sleep 60'" in message
        assert took < 5

    def test_a_user_that_a_shell_would_read_never_reaches_one(self, sshd, tmp_path):
        config = self.config(sshd, tmp_path, "echo %r")
        message, _ = refusal(sshd.transport(config_file=config, user="$(touch /tmp/x)"))
        assert "ssh" in message
        assert re.search("must not reach the shell|rejects the configuration", message)


class TestNoConnection:
    def test_a_name_without_address(self, sshd):
        message, took = refusal(sshd.transport(host="no-such-host.invalid", connect_timeout_s=5))
        assert "the name no-such-host.invalid has no address" in message
        assert took < 8

    def test_a_closed_port(self, sshd):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        message, took = refusal(sshd.transport(port=port))
        assert f"cannot connect to 127.0.0.1 port {port}" in message
        assert "refused" in message
        assert took < 5

    def test_a_port_that_never_answers(self, sshd):
        with tcp_server(lambda _: None) as port:
            message, took = refusal(sshd.transport(port=port, connect_timeout_s=1.0))
        assert "sent no SSH greeting within 1 s" in message
        assert took < 4

    def test_a_backlog_that_is_full(self, sshd):
        # What a firewall that drops packets looks like: the SYN is never answered.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            message, took = refusal(sshd.transport(port=address[1], connect_timeout_s=1.0))
            for filler in fillers:
                filler.close()
        assert "did not answer within 1 s" in message or "no SSH greeting within 1 s" in message
        assert took < 4

    def test_another_kind_of_server(self, sshd):
        with tcp_server(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)) as port:
            message, took = refusal(sshd.transport(port=port, connect_timeout_s=5))
        assert "is no SSH server" in message
        assert took < 8

    def test_a_server_that_hangs_up(self, sshd):
        with tcp_server(lambda sock: sock.close()) as port:
            message, took = refusal(sshd.transport(port=port, connect_timeout_s=5))
        assert "closed the connection before its SSH greeting" in message
        assert "MaxStartups" in message
        assert took < 5

    def test_a_server_that_stops_in_the_middle_of_the_handshake(self, sshd):
        with tcp_server(lambda sock: sock.sendall(b"SSH-2.0-Stuck\r\n")) as port:
            message, took = refusal(sshd.transport(port=port, connect_timeout_s=1.0))
        assert "handshake" in message
        assert "within 1 s" in message
        assert took < 4
        assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

    def test_no_algorithm_in_common(self, make_sshd):
        message, _ = refusal(make_sshd(extra="Ciphers chacha20-poly1305@openssh.com").transport())
        assert "no algorithm in common" in message

    def test_no_more_sessions(self, make_sshd):
        transport = make_sshd(extra="MaxSessions 1").transport()
        first = transport.open("cat")
        with pytest.raises(NodeUnreachable, match=r"opens no session.*MaxSessions"):
            transport.open("true")
        first.send(b"alive", timeout=5)
        assert first.receive(timeout=5) == b"alive"
        transport.close()

    def test_a_closed_transport(self, sshd):
        transport = sshd.transport()
        transport.close()
        with pytest.raises(NodeUnreachable, match="was closed"):
            transport.open("true")

    def test_paramiko_does_not_log_its_tracebacks_into_the_users_report(self, sshd, caplog):
        with tcp_server(lambda sock: sock.close()) as port:
            refusal(sshd.transport(port=port))
        assert caplog.text == ""

    def test_many_failures_leave_no_descriptor_or_thread(self, sshd, tmp_path):
        def failures():
            with tcp_server(lambda sock: sock.close()) as port:
                refusal(sshd.transport(port=port))
            refusal(sshd.transport(user="nobody-of-that-name"))
            (tmp_path / "empty").write_text("")
            refusal(sshd.transport(known_hosts=[tmp_path / "empty"]), HostKeyError)

        failures()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            failures()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    def test_a_failure_prints_nothing_by_itself(self, sshd):
        """paramiko logs each failure with a traceback; without logging set up that goes to standard error."""
        script = f"""
from pytest_sglang_perf.errors import NodeUnreachable
from pytest_sglang_perf.nodes.ssh import SshTransport
transport = SshTransport("node", config_file={str(sshd.config)!r}, user="nobody-of-that-name")
try:
    transport.open("true")
except NodeUnreachable:
    transport.close()
    print("refused")
"""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.stdout, done.stderr, done.returncode) == ("refused\n", "", 0)


def test_the_starter_skips_or_fails_where_there_is_no_sshd(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.delenv(_sshd.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no sshd here"):
        _sshd.need_sshd()
    monkeypatch.setenv(_sshd.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="no sshd here"):
        _sshd.need_sshd()
