"""Agents on this machine, each with folders of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport
from tests.integration.agent import fake_server
from tests.integration.agent.waiting import until


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


class Events:
    """What the agent has told, in order."""

    def __init__(self):
        self.all = []
        self.started = {}

    def __call__(self, event):
        self.all.append(event)

    def named(self, name):
        """All events of a kind."""
        return [event for event in self.all if event["event"] == name]

    def wait(self, name, timeout=15.0):
        """The first event of a kind."""
        return until(
            lambda: self.named(name), f"{name} came; so far {[e['event'] for e in self.all]}", timeout=timeout
        )[0]

    @property
    def log(self):
        """The text of all log lines."""
        return [text for event in self.named("boot.log") for _, _, text in event["lines"]]


@pytest.fixture
def boot_fake():
    """Boot the fake server with ``boot_fake(client, params, order…)``; returns the client's events."""

    def boot(client, params=None, **order):
        events = Events()
        client.subscribe(events)
        order.setdefault("info", {"model_path": "tiny"})
        argv = [sys.executable, fake_server.__file__, json.dumps(order), "{port}"]
        params = {"boot": "b1", "argv": argv, "stop_s": 5, **(params or {})}
        events.started = client.request("boot.start", timeout=15, **params)
        return events

    return boot


@pytest.fixture
def events(client):
    """The events of the one client."""
    found = Events()
    client.subscribe(found)
    return found


@pytest.fixture
def start(client, events):
    """Boot the fake server: ``start(order…)`` with further parameters of boot.start as ``params``."""
    del events

    def start(params=None, boot="b1", **order):
        order.setdefault("info", {"model_path": "tiny"})
        argv = [sys.executable, fake_server.__file__, json.dumps(order), "{port}"]
        return client.request("boot.start", timeout=15, **{"boot": boot, "argv": argv, "stop_s": 5, **(params or {})})

    return start


@pytest.fixture
def stranger():
    """A process of somebody who knows no leases."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None, "it was ended"
        process.kill()


@pytest.fixture
def computing(tmp_path):
    """The file that says who computes."""
    path = tmp_path / "processes.csv"
    path.write_text("")
    return path
