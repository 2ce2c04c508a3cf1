"""Agents on this machine, each with folders of its own."""

from __future__ import annotations

import os
import sys
import uuid

import pytest

from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport


@pytest.fixture
def node_env(tmp_path):
    """What the agent's environment needs to keep to its own folders."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SGLANG_PERF_LEASE_DIR": str(tmp_path / "lease")}


@pytest.fixture
def new_client(node_env):
    """Make clients (not yet connected); all are closed at the end."""
    made = []

    def make(*, transport=None, **options):
        options.setdefault("run", uuid.uuid4().hex)
        options.setdefault("owner", {"user": "tester", "host": "here", "pid": os.getpid()})
        options.setdefault("python", sys.executable)
        options.setdefault("ttl_s", 20.0)
        options.setdefault("grace_s", 5.0)
        client = AgentClient(transport or LocalTransport(env=node_env), **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(new_client):
    """One connected client."""
    client = new_client()
    client.connect()
    return client
