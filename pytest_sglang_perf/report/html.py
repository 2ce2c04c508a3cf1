"""The run as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

Names, log lines and error texts come from outside; the template escapes all of them, and the page's own policy
forbids scripts and requests, should that ever fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2

from pytest_sglang_perf.baselines import level_key
from pytest_sglang_perf.comparison import MAIN_METRICS, LevelBoots, noise_of, shown
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.report.chart import Mark, Row, draw, legend
from pytest_sglang_perf.report.decisions import decisions
from pytest_sglang_perf.report.figures import figure, interval, percent, seconds
from pytest_sglang_perf.stored_boots import of_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from pytest_sglang_perf.report.run_file import RunRecord
    from pytest_sglang_perf.stored_boots import Config

__all__ = ["render"]

#: Server configs whose charts are open at first; beyond, only those of tests that did not pass.
_OPEN = 3
# What the head of the page shows; a run that reached no node may lack some.
_SESSION = (
    *("node", "node_class", "node_details", "plan", "suite", "run", "plugin_version"),
    *("profile", "time_scale", "seed", "started"),
)
_NAMES = {"gpus": "GPUs", "power_limit_w": "power limit (W)", "cpu": "CPU", "cpus": "CPUs"}
_RANK = {"violated": 0, "inconclusive": 1, "recorded": 2, "holds": 3}

#: Server config, workload, metric, level.
_Place = tuple[str, str, str, "float | None"]


@dataclass
class _Told:
    """What the claims on one metric at one level say: their sides by kind, and each verdict with its reference."""

    marks: dict[str, Mark] = field(default_factory=dict)
    verdicts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, side: Mapping[str, Any]) -> None:
        mark = Mark(kind, side["label"], side["value"], side["low"], side["high"], side["boots"])
        self.marks.setdefault(kind, mark)


def render(record: RunRecord) -> str:
    """Return the page; on a simulated node every row says so."""
    session = {**dict.fromkeys(_SESSION), **record.session}
    configs = of_run(record)
    told = _told(record)
    return _template().render(
        session=session,
        simulated=record.simulated,
        started=_when(session.get("started")),
        outcomes=sorted(record.outcomes().items()),
        details={
            _NAMES.get(name, name.replace("_", " ")): _words(value)
            for name, value in sorted((session["node_details"] or {}).items())
            if name != "simulated"  # said in words of its own
        },
        spent=_spent(session),
        versions=sorted({version for config in configs.values() for version in config.sglang}),
        tests=sorted(map(_test, record.tests), key=_urgency),
        servers=[_server(config, configs, told, record) for config in configs.values()],
        notes=_notes(record.measured),
        baselines=record.baselines,
        problems=record.problems,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("pytest_sglang_perf.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source)


def _when(started: Any) -> str:
    if not isinstance(started, int | float):
        return "unknown"
    return datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _spent(session: Mapping[str, Any]) -> str:
    spent = session.get("spent") or {}
    return (
        f"{_many(spent.get('boots', 0), 'boot')} in {seconds(spent.get('boot_s', 0.0))}, "
        f"{_many(spent.get('trials', 0), 'trial')} in {seconds(spent.get('trial_s', 0.0))}"
    )


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- tests and claims -----------------------------------------------------------------------------------------


def _urgency(test: Mapping[str, Any]) -> int:
    """What failed comes first, then what could not be told, then the rest, each in the order in which it ran."""
    return 0 if test["outcome"] == "failed" else 1 if test["failed"] else 2


def _test(test: Mapping[str, Any]) -> dict[str, Any]:
    error = test.get("error") or {}
    claims = sorted(map(_claim, test["claims"]), key=lambda claim: _RANK.get(claim["status"], 0))
    crash = ""
    if error.get("kind") == "crashed":
        where = f" at concurrency {error['level']:g}" if error.get("level") else f" in phase {error.get('phase')}"
        crash = f"{error.get('class', 'unknown')}{where}"
    return {
        "nodeid": test["nodeid"],
        "name": test["nodeid"].rsplit("/", 1)[-1],
        "server": test["server"],
        "control": test.get("control"),
        "expect": test.get("expect"),
        "reason": test.get("reason"),
        "outcome": test["outcome"],
        "failed": bool(test["failed"]),
        "crash": crash,
        "text": test["text"].strip(),
        "claims": claims,
    }


def _claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    verdict, reference = claim.get("verdict") or {}, claim["reference"]
    effect = ""
    if verdict and reference:
        low, high = verdict["interval"]
        effect = f"{percent(verdict['effect'])} [{percent(low)} .. {percent(high)}]"
    notes = [str(text) for text in verdict.get("warnings") or ()]
    if claim["status"] == "inconclusive":
        more = verdict.get("more_boots")
        notes.insert(0, f"about {_many(more, 'more boot')} would decide" if more else "more boots would not decide it")
    return {
        "text": claim["text"],
        "status": claim["status"],
        "now": _side(claim["candidate"], claim["unit"]),
        "reference": _side(reference, claim["unit"]) if reference else None,
        "effect": effect,
        "confidence": f"{verdict['confidence'] * 100:.3g} %" if verdict.get("confidence") else "",
        "method": verdict.get("method", ""),
        "notes": notes,
    }


def _side(side: Mapping[str, Any], unit: str) -> dict[str, str]:
    return {
        "label": side["label"],
        "value": figure(side["value"], unit),
        "interval": interval(side["low"], side["high"], unit),
        "count": f"{_many(side['boots'], 'boot')}, {_many(side['trials'], 'trial')}",
    }


# -- what was measured ----------------------------------------------------------------------------------------


def _server(config: Config, configs: Mapping[str, Config], told: Mapping[_Place, _Told], record: RunRecord) -> Any:
    tag = "simulated" if record.simulated else ""
    mine = [test for test in record.tests if test["server"] == config.server]
    control = next((configs[t["control"]] for t in mine if t.get("control") in configs), None)
    several = len({level.workload for level in config.levels.values() if level.level is not None}) > 1
    charts = []
    for name in MAIN_METRICS:
        rows: list[Row] = []
        verdicts: dict[str, list[tuple[str, str]]] = {}
        for level in _levels(config):
            claimed = told.get((config.server, level.workload, name, level.level), _Told())
            marks = _marks(config, control, level, name, claimed.marks)
            if marks:
                label = f"at {level_key(level.level)}" if level.level is not None else "boot"
                label = f"{level.workload} {label}" if several and level.level is not None else label
                rows.append(Row(label, marks, tag))
                verdicts[label] = claimed.verdicts
        if rows and not (REGISTRY[name].exact and not any(mark.value for row in rows for mark in row.marks)):
            charts.append(_chart(config.server, name, rows, verdicts))
    return {
        "name": config.server,
        "fingerprint": config.fingerprint,
        "sglang": ", ".join(config.sglang),
        "charts": charts,
        "open": len(configs) <= _OPEN or any(test["failed"] for test in mine),
    }


def _marks(
    config: Config, control: Config | None, level: LevelBoots, metric: str, claimed: Mapping[str, Mark]
) -> tuple[Mark, ...]:
    """What was measured at a level, then its references; empty if nothing was.

    The sides of claims come first: their intervals know the noise of the stored boots, which are not in the run file.
    """
    now = claimed.get("now") or _estimate("now", config.server, config, level, metric)
    if now is None:
        return ()
    others = {kind: mark for kind, mark in claimed.items() if kind != "now"}
    beside = control.levels.get(level.key) if control is not None else None
    if control is not None and beside is not None and "control" not in others:
        there = _estimate("control", f"{control.server} (control)", control, beside, metric)
        if there is not None:
            others["control"] = there
    return now, *(others[kind] for kind in sorted(others))


def _levels(config: Config) -> list[LevelBoots]:
    return sorted(config.levels.values(), key=lambda one: (one.level is None, one.workload, one.level or 0))


def _estimate(kind: str, label: str, config: Config, level: LevelBoots, metric: str) -> Mark | None:
    boots = level.boots.get(metric, ())
    if not boots:
        return None
    noise = None if REGISTRY[metric].exact else noise_of(metric, level.key, [config.levels])
    side = shown(label, metric, boots, noise)
    return Mark(kind, label, side.value, side.low, side.high, side.boots)


def _chart(server: str, name: str, rows: list[Row], verdicts: Mapping[str, Any]) -> dict[str, Any]:
    metric = REGISTRY[name]
    kinds: dict[str, str] = {}
    for row in rows:
        for mark in row.marks:
            kinds.setdefault(mark.kind, mark.label)
    better = f"{metric.better} is better" if metric.better else "no better direction"
    drawing: Markup = draw(rows, unit=metric.unit, title=f"{name} of {server}")
    axis = "change against the reference" if len(kinds) > 1 else "value"
    return {
        "metric": name,
        "better": better,
        "axis": axis,
        "svg": drawing,
        "legend": legend(list(kinds.items())),
        "rows": [{"label": row.label, "verdicts": verdicts[row.label]} for row in rows if verdicts.get(row.label)],
    }


def _told(record: RunRecord) -> dict[_Place, _Told]:
    """What claims say, by place. Baselines are in the run file only here."""
    found: dict[_Place, _Told] = {}
    for test in record.tests:
        for claim in test["claims"]:
            place = test["server"], test.get("workload") or "", claim["metric"], claim.get("level")
            here = found.setdefault(place, _Told())
            reference = claim["reference"]
            here.add("now", claim["candidate"])
            if reference is not None:
                here.add("control" if str(reference["label"]).endswith("(control)") else "baseline", reference)
            verdict = claim["status"], reference["label"] if reference is not None else "a limit"
            if verdict not in here.verdicts:
                here.verdicts.append(verdict)
    return found


def _notes(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was unusual, and which metrics could not be had, each once."""
    notes: dict[str, None] = {}
    absent: dict[tuple[str, str], list[str]] = {}
    for one in measured:
        for trial in one.get("trials") or ():
            for text in trial.get("notes") or ():
                notes.setdefault(f"{one['server']} at {level_key(one['level'])}: {text}")
            for metric, why in (trial.get("absent") or {}).items():
                known = absent.setdefault((str(why), metric), [])
                if one["server"] not in known:
                    known.append(one["server"])
    by_reason: dict[str, list[str]] = {}
    for why, metric in absent:
        by_reason.setdefault(why, []).append(metric)
    return [
        *decisions(measured),
        *notes,
        *(f"absent: {', '.join(sorted(names))}: {why}" for why, names in by_reason.items()),
    ]
