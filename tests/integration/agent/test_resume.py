"""A controller that loses its connection comes back to the same agent; one that does not is given up."""

from __future__ import annotations

import threading

import pytest

from pytest_sglang_perf.errors import ConnectionLost
from tests.integration.agent.waiting import until


def cut(client):
    """Break the client's channel as a dropped connection would."""
    client._channel.close()


def test_a_lost_connection_is_resumed_by_the_same_agent(new_client):
    client = new_client()
    pid = client.connect()["pid"]
    for _ in range(3):
        cut(client)
        assert client.request("status", timeout=15)["pid"] == pid
    assert client.lost is None


def test_an_order_given_while_the_connection_is_down_is_carried_out(new_client):
    client = new_client()
    client.connect()
    cut(client)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.request("status", timeout=15))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4


def test_after_the_grace_there_is_nothing_to_come_back_to(new_client):
    client = new_client(grace_s=0.0)
    client.connect()
    cut(client)
    until(lambda: client.lost, "the client gives up")
    with pytest.raises(ConnectionLost):
        client.request("status", timeout=5)
