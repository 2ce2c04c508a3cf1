"""What a server must report to be the one that was launched."""

from __future__ import annotations

import pytest

from pytest_sglang_perf.agent.ports import probe_host
from pytest_sglang_perf.agent.readiness import differences
from pytest_sglang_perf.agent.watch import is_helper


@pytest.mark.parametrize(
    ("expect", "info", "wrong"),
    [
        ({}, {}, 0),
        ({"model_path": "a"}, {"model_path": "a"}, 0),
        ({"model_path": "a"}, {"model_path": "b"}, 1),
        ({"port": 30000}, {"port": "30000"}, 0),
        ({"flag": True}, {"flag": 1}, 1),
        ({"flag": True}, {"flag": True}, 0),
        ({"model_path": "a", "random_seed": 7}, {"model_path": "a"}, 0),
        ({"model_path": "a"}, {"something": "else"}, 1),
        ({"a": 1, "b": 2}, {"a": 3, "b": 4}, 2),
    ],
)
def test_differences(expect, info, wrong):
    assert len(differences(expect, info)) == wrong


@pytest.mark.parametrize(
    ("command", "helper"),
    [
        ("ninja -v", True),
        ("/usr/local/cuda/bin/nvcc -x cu", True),
        ("python -c from multiprocessing.resource_tracker import main;main(4)", True),
        ("sglang::scheduler_TP0", False),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)", False),
        ("/opt/my/own/worker", False),
    ],
)
def test_helpers_are_told_from_workers(command, helper):
    assert is_helper(command) is helper


def test_where_a_server_that_binds_everywhere_is_asked():
    assert [probe_host(host) for host in ("0.0.0.0", "::", "127.0.0.1", "node7")] == [
        "127.0.0.1",
        "::1",
        "127.0.0.1",
        "node7",
    ]
