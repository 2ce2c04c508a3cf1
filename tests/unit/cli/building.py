"""Run files and baseline folders in the shapes that a session writes, with figures that tests choose."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import metrics, verdict
from pytest_sglang_perf.baselines import BaselineFile, BaselineStore, NodeClass, StoredBoot
from pytest_sglang_perf.claims import Claim, Shown
from pytest_sglang_perf.report.run_file import RunRecord
from pytest_sglang_perf.report.test_report import claim_dict

if TYPE_CHECKING:
    from pathlib import Path

H200 = NodeClass(
    "1x-nvidia-h200-700w-driver580-amd-epyc-9575f",
    {
        "gpus": ["1 x NVIDIA H200"],
        "power_limit_w": [700],
        "driver_branch": ["580"],
        "driver": "580.95.05",
        "cpu": "AMD EPYC 9575F",
    },
)
SIM = NodeClass("sim-tiny", {"simulated": "tiny"})
TYPICAL = {
    "output_throughput": 1500.0,
    "ttft_p50": 0.062,
    "tpot_p50": 0.0071,
    "e2e_p50": 0.95,
    "energy_per_token": 0.42,
}


def columns(rng: random.Random, *, factor: float = 1.0, trials: int = 2, sd: float = 0.004, **more: float):
    """Figures of one boot; ``factor`` above 1 is a better server."""
    boot = rng.gauss(0, sd)
    found: dict[str, list[float]] = {}
    for name, typical in TYPICAL.items():
        better = metrics.REGISTRY[name].better == "higher"
        level = typical * (factor if better else 1 / factor) * (1 + (boot if better else -boot))
        found[name] = [level * (1 + rng.gauss(0, sd / 2)) for _ in range(trials)]
    found["failed_requests"] = [0.0] * trials
    for name, value in more.items():
        found[name] = [value] * trials
    return found


def stored(
    number: int,
    values: dict[str, list[float]],
    *,
    session: str,
    config: str = "c0ffee0000000001",
    workload: str = "f00d000000000001",
    day: int | None = None,
    sglang: str = "0.5.10",
) -> StoredBoot:
    return StoredBoot(
        config=config,
        workload=workload,
        session=session,
        boot=number,
        recorded=f"2026-{1 + (day or number) // 28:02d}-{1 + (day or number) % 28:02d}T10:00:00Z",
        sglang=sglang,
        driver="580.95.05",
        plugin="0.1.0",
        boot_time=46.0 + number / 10,
        trials={name: tuple(trials) for name, trials in values.items()},
    )


def baseline(
    root: Path,
    server: str = "sbo",
    *,
    node: NodeClass = H200,
    boots: int = 5,
    factor: float = 1.0,
    levels: tuple[int, ...] = (1, 256),
    seed: int = 1,
    session: str = "session",
    **more: Any,
) -> Path:
    """Write a baseline file of boots from as many sessions."""
    rng = random.Random(seed)
    content = {
        str(level): tuple(
            stored(n, columns(rng, factor=factor), session=f"{session}{n}", day=n, **more) for n in range(1, boots + 1)
        )
        for level in levels
    }
    file = BaselineFile(server, node.slug, node.details, {"short": content})
    return BaselineStore(root).save(node, file)


def measured(
    server: str,
    level: float,
    values: dict[str, list[float]],
    *,
    run: str,
    boot: int = 1,
    config: str | None = None,
    boot_time: float = 46.2,
) -> dict[str, Any]:
    """One entry as ``PerfSession.take_measured`` makes it."""
    return {
        "server": server,
        "config": config or f"config-{server}",
        "is_server": True,
        "workload": "short",
        "workload_fingerprint": "f00d000000000001",
        "level": level,
        "boot": boot,
        "started": 1795968000.0 + 60 * boot,
        "boot_time": boot_time,
        "version": "0.5.10",
        "session": run,
        "columns": {**values, "boot_time": [boot_time]},
        "trials": [
            {
                "level": level,
                "values": {name: column[n] for name, column in values.items()},
                "absent": {"power_draw": "there is no GPU here"},
                "counts": {"ok": 64, "failed": 0, "empty": 0, "short": 0, "errored": 0},
                "audit": {"loop": "uvloop", "workers": 1},
                "started": 1795968000.0,
                "window_s": 3.5,
                "notes": [],
            }
            for n in range(len(next(iter(values.values()))))
        ],
    }


def claim(
    metric: str,
    factor: float,
    now: list[verdict.Boot],
    reference: list[verdict.Boot] | None,
    *,
    level: float,
    server: str = "sbo",
    other: str = "baseline",
    simulated: bool = False,
) -> Claim:
    """A claim as ``TestJudge`` makes it, judged by the real verdict package."""
    known = metrics.REGISTRY[metric]
    op = ">=" if known.better == "higher" else "<="

    def side(label: str, boots: list[verdict.Boot]) -> Shown:
        found = verdict.estimate(boots)
        return Shown(label, found.value, *found.interval, found.boots, found.trials)

    if reference is None:
        judge = verdict.at_least_value if op == ">=" else verdict.at_most_value
        outcome = judge(now, factor)
        text = f"{metric} {op} {factor:g} {known.unit}"
    else:
        rule = verdict.at_least if op == ">=" else verdict.at_most
        outcome = rule(now, reference, factor)
        text = f"{metric} {op} {factor:g} x {other}"
    return Claim(
        text=f"{text} at concurrency {level:g}",
        metric=metric,
        unit=known.unit,
        op=op,
        bound=factor,
        candidate=side(server, now),
        reference=side(other, reference) if reference is not None else None,
        verdict=outcome,
        status=outcome.status.value,
        where="test_sbo.py::test_it",
        simulated=simulated,
        level=level,
    )


def one_test(
    nodeid: str,
    *claims: Claim,
    server: str = "sbo",
    outcome: str = "passed",
    text: str = "",
    error: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One test as ``report.test_report`` puts it into the payload."""
    return {
        "nodeid": nodeid,
        "server": server,
        "control": None,
        "workload": "short",
        "levels": [1, 256],
        "expect": None,
        "reason": None,
        "outcome": outcome,
        "failed": outcome not in {"passed", "recorded"},
        "when": "call",
        "text": text,
        "error": error,
        "claims": [claim_dict(one) for one in claims],
        "path": "/project/perf_tests/test_sbo.py",
        "line": 12,
        **more,
    }


def session(run: str, node: NodeClass = H200, **more: Any) -> dict[str, Any]:
    """As ``PerfSession.summary`` makes it."""
    simulated = "simulated" in node.details
    return {
        "run": run,
        "node": "sim" if simulated else "hopper",
        "node_class": node.slug,
        "node_details": dict(node.details),
        "simulated": simulated,
        "profile": node.details.get("simulated", ""),
        "time_scale": 200.0 if simulated else 1.0,
        "seed": 7 if simulated else None,
        "suite": "/project/perf_tests/sglang-perf.yaml",
        "margins": {},
        "started": 1795968000.0,
        "plan": "2 server configs (sbo, mscclpp), 8 trials",
        "spent": {"boots": 2, "trials": 8, "boot_s": 92.4, "trial_s": 31.0},
        "plugin_version": "0.1.0",
        **more,
    }


def run(
    name: str,
    factors: dict[str, float],
    *,
    node: NodeClass = H200,
    boots: int = 3,
    levels: tuple[int, ...] = (1, 256),
    seed: int = 3,
    tests: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> RunRecord:
    """A run that measured each server with so many boots; ``factors`` says how good each is."""
    rng = random.Random(f"{name}{seed}")
    record = RunRecord()
    record.session = session(name, node)
    for server, factor in factors.items():
        for number in range(1, boots + 1):
            record.measured += [
                measured(server, level, columns(rng, factor=factor, **more), run=name, boot=number) for level in levels
            ]
    record.tests = list(tests)
    return record


def write_run(folder: Path, record: RunRecord) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    path.write_text(json.dumps(record.to_dict(), allow_nan=False), encoding="utf-8")
    return path


def boots(values: list[float], *, session: str = "s") -> list[verdict.Boot]:
    return [verdict.Boot((value, value * 1.002), f"{session}{n}") for n, value in enumerate(values)]
