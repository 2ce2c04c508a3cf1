"""A healthy node, and each way in which it can be unfit: its line, status and fix."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_sglang_perf.nodes.doctor import Check, Findings, examine
from pytest_sglang_perf.suite import ResolvedServer

GIB = 2**30
PYTHON = "/venv/bin/python"


def gpu(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H200",
        "memory_total_mib": 143771.0,
        "power_limit_w": 700.0,
        "driver": "580.1",
    }


def state(index: int) -> dict[str, str]:
    return {
        "index": str(index),
        "clocks.max.sm": "1980",
        "clocks.sm": "345",
        "temperature.gpu": "33",
        "memory.used": "4",
        "persistence_mode": "Enabled",
        "ecc.errors.uncorrected.volatile.total": "0",
        "clocks_event_reasons.active": "0x0000000000000001",
        "power.default_limit": "700.00",
    }


def healthy() -> dict[str, Any]:
    return {
        "facts": {
            "gpus": [gpu(index) for index in range(8)],
            "gpu_error": None,
            "gpu_processes": [],
            "pythons": {PYTHON: {"version": "3.12.1", "sglang": "0.5.23", "error": None}},
        },
        "gpu_state": [state(index) for index in range(8)],
        "sglang": {
            PYTHON: {
                "arguments": [
                    "tp-size",
                    "enable-mscclpp",
                    "disable-radix-cache",
                    "num-continuous-decode-steps",
                    "enable-dp-attention",
                ],
                "replaced": {"--enable-dp-attention": "--attn-dp-size <dp-size>"},
                "unread": ["num-continuous-decode-steps"],
                "error": None,
            }
        },
        "models": {"/models/x": {"found": True, "folder": "/models/x", "missing": [], "error": None}},
        "ports": {"30000": None},
        "disks": {
            "cache": {"path": "/root/.cache", "free_bytes": 500 * GIB, "total_bytes": 900 * GIB},
            "tmp": {"path": "/tmp", "free_bytes": 500 * GIB, "total_bytes": 900 * GIB},
            "shm": {"path": "/dev/shm", "free_bytes": 400 * GIB, "total_bytes": 500 * GIB},
        },
        "memory_available_bytes": 900 * GIB,
        "open_files": 1048576,
        "leases": [],
        "orphans": [],
        "dmesg": {"readable": True, "lines": [], "uptime_s": 7200.0},
        "tracing": {"py_spy": "/opt/venv/bin/py-spy", "obstacle": None},
    }


def server(**overrides: Any) -> ResolvedServer:
    settings: dict[str, Any] = {
        "name": "base",
        "chain": ("base",),
        "model": "/models/x",
        "python": PYTHON,
        "port": 30000,
        "args": {"tp-size": 8, "disable-radix-cache": True},
    }
    return ResolvedServer(**{**settings, **overrides})


def findings(checkup: dict[str, Any] | None = None, **overrides: Any) -> Findings:
    hello = {"user": "root", "host": "node7", "python": "3.11.7"}
    settings: dict[str, Any] = {"servers": [server()], **overrides}
    return Findings(hello, healthy() if checkup is None else checkup, **settings)


def the(checks: list[Check], what: str) -> Check:
    found = [check for check in checks if check.what == what]
    assert len(found) == 1, [check.what for check in checks]
    return found[0]


def test_a_healthy_node_has_only_good_lines() -> None:
    checks = examine(findings())
    assert [check for check in checks if check.status != "ok"] == []
    assert {"agent", "clock", "lease", "orphans", "gpus", "power limit", "clocks", "ecc", "kernel log"} <= {
        check.what for check in checks
    }
    assert the(checks, "gpus").reason == "8 x NVIDIA H200, driver 580.1"
    assert all(not check.fix for check in checks)


def change(path: str, value: Any) -> dict[str, Any]:
    checkup = copy.deepcopy(healthy())
    *folders, last = path.split("/")
    place: Any = checkup
    for folder in folders:
        place = place[int(folder)] if isinstance(place, list) else place[folder]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return checkup


BROKEN: list[tuple[str, Any, str, str, str]] = [
    ("facts/gpu_error", "nvidia-smi did not answer in time", "gpus", "bad", "did not answer"),
    ("facts/gpus", [], "gpus", "bad", "none"),
    ("facts/gpus", [gpu(index) for index in range(4)], "gpus for base", "bad", "needs 8"),
    ("facts/gpus/3", {**gpu(3), "name": "NVIDIA L4"}, "gpus", "warn", "not all alike"),
    ("facts/gpus/3", {**gpu(3), "power_limit_w": 350.0}, "power limit", "warn", "differs between GPUs"),
    ("facts/gpus", [{**gpu(i), "power_limit_w": 500.0} for i in range(8)], "power limit", "warn", "default of 700 W"),
    ("gpu_state/2", {**state(2), "clocks_event_reasons.active": "0x0000000000000048"}, "clocks", "bad", "GPU 2"),
    ("gpu_state/2", {**state(2), "temperature.gpu": "88"}, "clocks", "bad", "hot at rest"),
    ("gpu_state/5", {**state(5), "ecc.errors.uncorrected.volatile.total": "3"}, "ecc", "bad", "GPU 5: 3"),
    ("gpu_state/1", {**state(1), "persistence_mode": "Disabled"}, "persistence mode", "warn", "GPU 1"),
    ("gpu_state/0", {**state(0), "memory.used": "40000"}, "other GPU processes", "bad", "GPU 0: 40000 MiB"),
    (
        "facts/gpu_processes",
        [{"gpu": 3, "pid": 99, "user": "eve", "command": "train.py"}],
        "other GPU processes",
        "bad",
        "pid 99 of eve",
    ),
    ("dmesg/lines", ["[1800.000000] NVRM: Xid (PCI:0000:c1:00): 79"], "kernel log", "warn", "1.5 h ago: NVRM: Xid"),
    ("tracing/py_spy", None, "stacks of a hang", "skip", "not installed"),
    ("tracing/obstacle", "ptrace_scope is 1", "stacks of a hang", "skip", "ptrace_scope"),
    ("dmesg/readable", False, "kernel log", "skip", "not readable"),
    ("disks/cache/free_bytes", GIB, "disk of the caches", "bad", "1 GiB free"),
    ("disks/tmp/free_bytes", 10 * GIB, "temporary files", "warn", "10 GiB free"),
    ("disks/shm/free_bytes", GIB // 16, "/dev/shm", "bad", "0.1 GiB free"),
    ("open_files", 1024, "open files", "warn", "limit 1024"),
    ("ports/30000", "another process listens on it", "port 30000", "bad", "another process"),
    (
        "leases",
        [{"user": "ann", "host": "desk", "gpus": None, "since": "2026-11-29T16:00", "purpose": "pytest"}],
        "lease",
        "warn",
        "ann@desk uses the whole node",
    ),
    ("orphans", [{"pid": 7, "run": "a" * 32, "command": "python -m sglang"}], "orphans", "bad", "pid 7"),
    (f"facts/pythons/{PYTHON}", None, f"sglang of {PYTHON}", "bad", "without sglang"),
    ("models//models/x", None, "model /models/x", "bad", "no such folder"),
]


@pytest.mark.parametrize(("path", "value", "what", "status", "words"), BROKEN)
def test_each_way_to_be_unfit(path: str, value: Any, what: str, status: str, words: str) -> None:
    if path.startswith("facts/pythons"):
        checkup = healthy()
        checkup["facts"]["pythons"][PYTHON] = {"version": "3.12.1", "sglang": None, "error": None}
    elif path.startswith("models"):
        checkup = healthy()
        checkup["models"]["/models/x"] = {"found": False, "folder": None, "missing": [], "error": None}
    else:
        checkup = change(path, value)
    check = the(examine(findings(checkup)), what)
    assert check.status == status
    assert words in check.reason
    assert check.fix, "a line that is not well says what to do"


def test_a_clock_is_only_wrong_beyond_what_the_round_trip_leaves_open() -> None:
    assert the(examine(findings(skew_s=2.5, round_trip_s=1.0)), "clock").status == "ok"
    check = the(examine(findings(skew_s=-30.0, round_trip_s=1.0)), "clock")
    assert (check.status, check.reason) == ("warn", "30.0 s behind ours")


def test_unknown_dead_and_replaced_flags() -> None:
    args = {"tp-size": 1, "enable-mscclpq": True, "num-continuous-decode-steps": 16, "enable-dp-attention": True}
    checks = [c for c in examine(findings(servers=[server(args=args)])) if c.what == "flags of base"]
    assert [check.status for check in checks] == ["bad", "warn", "warn"]
    assert "--enable-mscclpq" in checks[0].reason
    assert "It knows --enable-mscclpp." in checks[0].fix
    assert "nothing in this sglang reads --num-continuous-decode-steps" in checks[1].reason
    assert "--attn-dp-size" in checks[2].reason


def test_gpus_that_the_suite_names_but_the_node_lacks() -> None:
    check = the(examine(findings(gpus=[6, 9])), "gpus of this node")
    assert check.status == "bad"
    assert "[9]" in check.reason


def test_strangers_on_gpus_that_are_not_ours_do_not_count() -> None:
    checkup = change("facts/gpu_processes", [{"gpu": 3, "pid": 99, "user": "eve", "command": "train.py"}])
    small = server(args={"tp-size": 2})
    assert the(examine(findings(checkup, gpus=[0, 1], servers=[small])), "other GPU processes").status == "ok"


@pytest.mark.parametrize(
    ("args", "need"),
    [
        ({"tp-size": 4, "pp-size": 2}, 8),
        ({"tp-size": 4, "dp-size": 3}, 12),
        ({"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, 8),
        ({"tp-size": 16, "nnodes": 2}, 8),
        ({"tp-size": 16, "device": "cpu"}, 0),
    ],
)
def test_how_many_gpus_a_server_needs(args: dict[str, Any], need: int) -> None:
    checkup = healthy()
    checkup["facts"]["gpus"] = [gpu(index) for index in range(need)]
    checkup["gpu_state"] = [state(index) for index in range(need)]
    assert not [c for c in examine(findings(checkup, servers=[server(args=args)])) if c.what == "gpus for base"]
    if need:
        checkup["facts"]["gpus"].pop()
        assert the(examine(findings(checkup, servers=[server(args=args)])), "gpus for base").status == "bad"


def test_incomplete_models_and_dummy_weights() -> None:
    checkup = healthy()
    checkup["models"]["/models/x"] = {"found": True, "folder": "/models/x", "missing": ["weights"], "error": None}
    assert the(examine(findings(checkup)), "model /models/x").status == "bad"
    dummy = server(args={"load-format": "dummy"})
    assert the(examine(findings(checkup, servers=[dummy])), "model /models/x").status == "ok"


def test_a_simulated_node_is_not_asked_for_sglang_or_models() -> None:
    checks = examine(findings(simulated=True))
    assert the(checks, "sglang").status == "skip"
    assert not [check for check in checks if check.what.startswith(("model", "flags"))]
