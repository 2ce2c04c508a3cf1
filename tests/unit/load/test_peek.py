"""The server's own count of requests, from every endpoint that gives one."""

from __future__ import annotations

import json

import pytest

from pytest_sglang_perf.agent.load._peek import count_requests

METRICS = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",pp_rank="0",tp_rank="0"} 6.0
sglang:num_running_reqs_offline_batch{dp_rank="0",pp_rank="0",tp_rank="0"} 99.0
sglang:num_queue_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 2.0
"""


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (METRICS, 13.0),
        ('vllm:num_requests_running{engine="0"} 7\nvllm:num_requests_waiting{engine="0"} 1e1\n', 17.0),
        (json.dumps({"loads": [{"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1}]}), 4.0),
        (json.dumps([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1}, {"dp_rank": 1, "num_reqs": 2}]), 6.0),
        (json.dumps({"loads": [{"num_running_reqs": 3}], "aggregate": {}, "num_running_reqs": 3}), 3.0),
        ("{}", None),
        ("", None),
        ("not found", None),
        (METRICS.replace("num_running_reqs", "x").replace("num_queue_reqs", "y"), None),
    ],
)
def test_counts(body, count):
    assert count_requests(body.encode()) == count
