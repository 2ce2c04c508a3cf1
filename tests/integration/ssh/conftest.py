from __future__ import annotations

import threading

import pytest

from tests import _sshd


@pytest.fixture(scope="session")
def shared_sshd(tmp_path_factory):
    server = _sshd.start(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def sshd(shared_sshd):
    """A real sshd that the test must leave as it found it."""
    return shared_sshd


@pytest.fixture
def make_sshd(tmp_path):
    """Start servers of the test's own: ``make_sshd(extra="MaxSessions 1")``."""
    servers: list[_sshd.Sshd] = []

    def make(**options):
        options.setdefault("host_keys", ("ed25519",))  # an RSA key takes a third of a second to make
        server = _sshd.start(tmp_path / f"sshd{len(servers)}", **options)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def transport(sshd):
    transport = sshd.transport()
    yield transport
    transport.close()


@pytest.fixture(autouse=True)
def _no_thread_left():
    """Every test also shows that nothing it opened leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    _sshd.wait_until(
        lambda: not [t for t in threading.enumerate() if t not in before],
        timeout=5,
        what=f"the end of {[t for t in threading.enumerate() if t not in before]}",
    )
