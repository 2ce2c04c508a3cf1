"""Only files of the run are handed out."""

from __future__ import annotations

import base64
import os
import zlib

import pytest

from pytest_sglang_perf.agent.files import read_part
from pytest_sglang_perf.agent.protocol import OrderError


def test_parts_add_up(tmp_path):
    content = os.urandom(5000)
    (tmp_path / "file").write_bytes(content)
    found, eof = b"", False
    while not eof:
        part = read_part(tmp_path, "file", len(found), 999)
        found += zlib.decompress(base64.b64decode(part["data"]))
        eof = part["eof"]
        assert part["size"] == 5000
    assert found == content
    assert read_part(tmp_path, str(tmp_path / "file"), 6000, 10)["eof"]


def test_nothing_outside_and_nothing_odd(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("no")
    (run / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "pipe")
    for path in ("../secret", str(tmp_path / "secret"), "link", ".", "pipe", "missing", "nul\0"):
        with pytest.raises(OrderError):
            read_part(run, path, 0, 10)
