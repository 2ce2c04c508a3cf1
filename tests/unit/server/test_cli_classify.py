from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_sglang_perf.cli import main

from .recorded import LOGS

CRASHED = str(LOGS / "cuda_0.5.16_kv_budget_too_small.log")
HEALTHY = str(LOGS / "cuda_0.5.16_healthy_boot_small_model.log")


def test_status_is_0_without_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", HEALTHY]) == 0
    assert "HEALTHY (phase ready, sglang 0.5.16)" in capsys.readouterr().out


def test_status_is_1_with_one_crash_among_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", HEALTHY, CRASHED]) == 1
    out = capsys.readouterr().out
    assert "CRASHED: kv-budget-too-small" in out
    assert "45 | ValueError: Loaded weights leave no GPU memory" in out
    assert "1. Raise --mem-fraction-static" in out


def test_json_is_one_object_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--json", HEALTHY, CRASHED]) == 1
    healthy, crashed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert healthy["verdict"] == "healthy"
    assert healthy["class"] is None
    assert healthy["log"] == HEALTHY
    assert {"verdict", "class", "phase", "version", "evidence", "advice", "cause"} <= set(crashed)
    assert (crashed["class"], crashed["phase"], crashed["version"]) == ("kv-budget-too-small", "kv_cache", "0.5.16")
    assert 45 in [entry["line"] for entry in crashed["evidence"]]


@pytest.mark.parametrize("kind", ["missing", "folder", "broken gzip", "cut gzip"])
def test_status_is_2_for_what_cannot_be_read(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log.gz"
    if kind == "folder":
        path.mkdir()
    elif kind == "broken gzip":
        path.write_bytes(b"\x1f\x8b" + b"junk" * 20)
    elif kind == "cut gzip":
        path.write_bytes(gzip.compress(Path(HEALTHY).read_bytes())[:2000])
    assert main(["classify", "--json", str(path), CRASHED]) == 2
    captured = capsys.readouterr()
    assert f"cannot read {path}" in captured.err
    assert json.loads(captured.out)["verdict"] == "crashed"  # the other one is still judged


def test_gzip_by_content_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(CRASHED).read_bytes()
    packed = tmp_path / "no-suffix"
    packed.write_bytes(gzip.compress(data))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert main(["classify", "--json", str(packed), "-"]) == 1
    packed_one, piped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert packed_one["evidence"] == piped["evidence"] != []


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02" * 5000, b"hello\nworld\n", "ünïcode — ✓\n".encode("utf-16")])
def test_what_is_no_log_is_unknown(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    assert main(["classify", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"


def test_a_given_exit_code_settles_what_the_log_leaves_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.log"
    path.write_bytes(b"".join(Path(HEALTHY).read_bytes().splitlines(keepends=True)[:16]))
    assert main(["classify", "--json", str(path)]) == 0
    assert main(["classify", "--json", "--exit-code", "-1", str(path)]) == 1
    _, settled = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert settled["class"] == "silent-exit"
    assert "SIGHUP" in settled["cause"]


def test_the_status_that_a_script_left_behind_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.log"
    path.write_bytes(b"".join(Path(HEALTHY).read_bytes().splitlines(keepends=True)[:16]) + b"rc=137\n")
    assert main(["classify", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["class"] == "killed"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["nonsense"]) == 2
    assert main(["--help"]) == 0
    assert "classify" in capsys.readouterr().out
