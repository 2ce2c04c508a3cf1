"""Without a command of its own for GPUs, a node is asked by the nvidia-smi on its PATH."""

from __future__ import annotations

import os

from pytest_sglang_perf.nodes.local import LocalTransport

ROW = "0, GPU-faca445d-0130-3dda-882f-f46bc3b4d444, 143771, 700.00, 580.159.04, NVIDIA H200"


def test_the_one_on_the_path_is_asked(new_client, node_env, tmp_path):
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu=*) echo "{ROW}";; esac\n')
    smi.chmod(0o755)
    client = new_client(transport=LocalTransport(env={**node_env, "PATH": f"{smi.parent}:{os.environ['PATH']}"}))
    client.connect()
    facts = client.request("facts", timeout=60, pythons=[])
    (gpu,) = facts["gpus"]
    assert (gpu["name"], gpu["power_limit_w"], facts["gpu_error"]) == ("NVIDIA H200", 700.0, None)


def test_a_node_without_one_says_so(client):
    facts = client.request("facts", timeout=60, pythons=[])
    assert facts["gpus"] == []
    assert "nvidia-smi" in facts["gpu_error"]
