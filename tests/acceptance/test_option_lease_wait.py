"""``--sglang-lease-wait``: who has the node is named, whether he knows of leases or not, and is never disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.nodes.client import AgentClient
from pytest_sglang_perf.nodes.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Project

TEST = """
    @pytest.mark.sglang(server="base")
    def test_it(sglang_server): ...
"""


@pytest.fixture
def holder(project: Project) -> Iterator[AgentClient]:
    """Another session on the node of the project."""
    owner = {"user": "ada", "host": "desk", "pid": os.getpid()}
    transport = LocalTransport(env={"SGLANG_PERF_LEASE_DIR": str(project.path / "lease")})
    client = AgentClient(transport, run=uuid.uuid4().hex, owner=owner, python=sys.executable)
    client.connect()
    client.request("lease.acquire", timeout=60, gpus=None, wait_s=0, purpose="an experiment")
    yield client
    client.close()


@pytest.mark.usefixtures("holder")
def test_the_holder_is_named_when_the_wait_is_over(project: Project) -> None:
    project.tests(TEST)
    result = project.run("--sglang-lease-wait", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*node sim is held by ada@desk*an experiment*waited 1 s*--sglang-lease-wait*"])


def test_a_node_that_comes_free_in_time_is_taken(project: Project, holder: AgentClient) -> None:
    project.tests(TEST)
    free = threading.Timer(4.0, holder.request, ["lease.release"], {"timeout": 30})
    free.start()
    result = project.run("--sglang-lease-wait", "60", "-s")
    free.join()
    result.assert_outcomes(passed=1)
    result.stderr.fnmatch_lines(["*waiting for node sim: held by ada@desk*"])


def test_who_computes_without_a_lease_is_named_and_left_alone(project: Project) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        smi = project.path / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            f'*compute-apps*) echo "GPU-a, {stranger.pid}, train.py" ;;\n'
            '*uuid,index*) echo "GPU-a, 0" ;;\n*) exit 9 ;;\nesac\n'
        )
        smi.chmod(0o755)
        project.env.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
        suite = (project.path / "sglang-perf.yaml").read_text()
        project.suite(
            suite.replace("default_node: sim", "default_node: here").replace("nodes:", "nodes:\n  here: {kind: local}")
        )
        project.tests(TEST)
        result = project.run()
        alive = stranger.poll() is None
        stranger.kill()
    assert alive
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [f"*node here is in use by somebody without a lease*GPU 0 is used by pid {stranger.pid} of *gpus: *"]
    )
