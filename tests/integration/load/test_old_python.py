"""The load process under the oldest Python that a node may have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def python39():
    """A Python 3.9, if this machine has one."""
    found = [shutil.which("python3.9"), *sorted(map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python3.9")))]
    for program in filter(None, found):
        done = subprocess.run(
            [program, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, check=False
        )
        if done.stdout.strip() == b"(3, 9)":
            return program
    return None


@pytest.mark.parametrize("workers", [1, 2])
def test_python_3_9(stamped, load, workers):
    program = python39()
    if program is None:
        pytest.skip("no Python 3.9 here")
    result, records = load(stamped("--rate", 400, "--ttft-ms", 20), python=program, workers=workers)
    assert result["valid"], result
    assert result["counts"]["ok"] == 8
    assert result["audit"]["loop"].startswith("asyncio 3.9")
    assert len(records) == result["requests"]
