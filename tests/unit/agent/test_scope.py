"""The hard ceiling around guardian and agent: a systemd scope, where the user has a systemd that works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from pytest_sglang_perf.agent import serve


@pytest.fixture
def replaced(monkeypatch):
    """What this process would have become; the private socket of the user's systemd is said to be there."""
    found: list[list[str]] = []
    real = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: str(path).endswith("/systemd/private") or real(path))
    monkeypatch.setattr(os, "execv", lambda path, argv: found.append([path, *argv]))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("SGLANG_PERF_SCOPED", "")  # as if unset, and as before afterwards
    return found


def runner(folder, monkeypatch, status):
    """A systemd-run that does what it is told, or fails."""
    path = folder / "systemd-run"
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return str(path)


def test_where_it_works_all_of_us_move_into_a_scope_that_ends(tmp_path, monkeypatch, replaced):
    program = runner(tmp_path, monkeypatch, 0)
    serve._enter_scope(100.0)
    ((path, _, *words),) = replaced
    assert path == program
    assert words[: words.index("--")] == ["--user", "--scope", "--quiet", "--collect", "-p", "RuntimeMaxSec=160"]
    assert words[words.index("--") + 1 :][:2] == [sys.executable, "-I"]
    # The program that starts again in the scope does not try to enter one.
    serve._enter_scope(100.0)
    assert len(replaced) == 1


def test_where_it_fails_we_stay_and_go_on(tmp_path, monkeypatch, replaced):
    """A failing systemd-run would take our only standard input with it, so it is tried on something else first."""
    runner(tmp_path, monkeypatch, 1)
    serve._enter_scope(100.0)
    assert replaced == []


def test_one_that_hangs_is_not_waited_for_long(tmp_path, monkeypatch, replaced):
    runner(tmp_path, monkeypatch, 0)

    def hang(*_args, **_options):
        raise subprocess.TimeoutExpired("systemd-run", 3)

    monkeypatch.setattr(subprocess, "run", hang)
    serve._enter_scope(100.0)
    assert replaced == []


def test_without_a_systemd_nothing_is_tried(monkeypatch, replaced):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    serve._enter_scope(100.0)
    assert replaced == []
