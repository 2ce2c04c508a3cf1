"""A program that leaves without closing what it opened ends all the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.sshd

_PROGRAM = """
from pytest_sglang_perf.nodes.ssh import SshTransport

transport = SshTransport("node", config_file={config!r}, connect_timeout_s=30.0)
forward = transport.forward({port})
forward.__enter__()
channel = transport.open("cat")
{lost}
print("the end")
"""


@pytest.mark.parametrize("lost", ["", "transport._connection.transport.close()"], ids=["alive", "lost"])
def test_an_open_forward_does_not_hold_up_the_end_of_python(sshd, lost):
    program = textwrap.dedent(_PROGRAM).format(config=str(sshd.config), port=sshd.port, lost=lost)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "the end\n", done.stderr
    assert done.returncode == 0, done.stderr
