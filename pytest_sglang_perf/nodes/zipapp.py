"""The agent as one file: the same bytes for the same sources, so that its hash can name it."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest_sglang_perf.agent

__all__ = ["Archive", "archive"]

_MAIN = b"""\
import sys

from pytest_sglang_perf.agent.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Archive:
    """A zipapp: its bytes and their SHA-256 in hex."""

    data: bytes
    sha256: str


@functools.cache
def archive() -> Archive:
    """Build the agent's zipapp; once per process.

    It holds ``pytest_sglang_perf/agent`` under its own name, with an empty package above it, since the real one
    may import what a node does not have.
    """
    root = Path(pytest_sglang_perf.agent.__file__).parent
    files = {"__main__.py": _MAIN, "pytest_sglang_perf/__init__.py": b""}
    for path in root.rglob("*.py"):
        files[f"pytest_sglang_perf/agent/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            bundle.writestr(entry, files[name], compresslevel=9)
    data = buffer.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())
