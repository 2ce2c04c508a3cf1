"""The document of the wire protocol names every order, event and kind of error that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest_sglang_perf.agent
from pytest_sglang_perf.agent.gpu import COLUMNS
from pytest_sglang_perf.nodes import bootstrap

DOCUMENT = (Path(__file__).parents[3] / "docs/reference/wire-protocol.md").read_text(encoding="utf-8")
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in Path(pytest_sglang_perf.agent.__file__).parent.glob("*.py")
)


def test_orders():
    known = set(re.findall(r'^\s+"([a-z.]+)": self\._?[a-z_.]+,$', SOURCES, re.MULTILINE)) - {"run"} | {"checkup"}
    assert {"hello", "boot.start", "trial.cancel"} <= known
    assert {op for op in known if f"| `{op}` |" not in DOCUMENT} == set()


def test_events():
    known = set(re.findall(r'"((?:boot|trial|lease)\.[a-z_]+)",?\s*(?:VITAL|CHATTER|LOG|holder)', SOURCES))
    assert {"boot.log", "boot.exit", "trial.end", "lease.waiting"} <= known
    assert {event for event in known if f"| `{event}` |" not in DOCUMENT} == set()


def test_error_kinds():
    known = set(re.findall(r'OrderError\(\s*"([a-z_]+)"', SOURCES))
    assert "port_in_use" in known
    assert {kind for kind in known if f"`{kind}`" not in DOCUMENT} == set()


def test_bootstrap_errors():
    known = set(re.findall(r"fail\('([a-z_]+)'", bootstrap._STAGE)) | {"no_space", "unwritable"}
    assert {kind for kind in known if f"`{kind}`" not in DOCUMENT} == set()


def test_columns():
    assert "".join(",".join(COLUMNS).split()) in DOCUMENT.replace("`\n`", "")
