"""``sglang-perf baseline history METRIC``: each boot over time, where the level changed, and what crept away."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import verdict
from pytest_sglang_perf.baselines import BaselineStore, NodeClass, StoredBoot, level_key
from pytest_sglang_perf.cli._console import emit, say, warn
from pytest_sglang_perf.cli._stored import read_folder, simulated
from pytest_sglang_perf.comparison import chosen_metrics
from pytest_sglang_perf.errors import NoBaseline, SuiteError, VerdictError
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.report.figures import figure, percent
from pytest_sglang_perf.stored_boots import boots_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_sglang_perf.baselines import BaselineFile
    from pytest_sglang_perf.metrics import Metric

__all__ = ["Series", "judge", "run", "series_of"]

_WIDTH = 48


@dataclass(frozen=True)
class Series:
    """The boots of one server config at one level in the order of time, all of one content of the workload.

    Attributes:
        boots: the boots, oldest first, each with the metric.
        values: of the metric, as the verdict package takes them.
        stored: identities of those that the baseline file keeps.
        left_out: boots of an earlier content of the workload.
    """

    node_class: str
    simulated: bool
    server: str
    workload: str
    level: float | None
    boots: tuple[StoredBoot, ...]
    values: tuple[verdict.Boot, ...]
    stored: frozenset[tuple[str, int]]
    left_out: int = 0


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 2 when a file could not be read."""
    (name,) = chosen_metrics([options.metric])
    metric = REGISTRY[name]
    margin = options.margin if options.margin is not None else metric.margin
    if margin is not None and not 0 < margin < 1:
        raise SuiteError(f"--margin takes a fraction between 0 and 1, such as 0.03, not {margin:g}")
    files, problems = read_folder(options.baselines)
    found = [
        one
        for file in files
        if options.node_class in (None, file.node_class) and options.server in (None, file.server)
        for one in series_of(file, options.baselines, name)
        if options.workload in (None, one.workload) and options.level in (None, one.level)
    ]
    if not found:
        raise NoBaseline(
            "\n".join([f"no boot with {name} is stored in {options.baselines} for this choice", *problems])
        )
    judged = [judge(one, metric, margin) for one in found]
    if options.json:
        emit({"metric": name, "unit": metric.unit, "margin": margin, "series": judged, "problems": problems})
    else:
        for number, (one, answer) in enumerate(zip(found, judged, strict=True)):
            if number:
                say()
            _print(one, answer, metric, margin)
    for problem in problems:
        warn(f"sglang-perf: {problem}")
    return 2 if problems else 0


def series_of(file: BaselineFile, root: Path, metric: str) -> list[Series]:
    """Every series of one server config on one node class: the stored boots and the history beside them."""
    store = BaselineStore(root)
    entries: dict[tuple[str, float | None], dict[tuple[Any, ...], StoredBoot]] = {}
    stored: set[tuple[str, int]] = set()

    def add(workload: str, level: float, boot: StoredBoot) -> None:
        # A boot has one boot time, whatever the levels it was measured at.
        key: tuple[str, float | None] = ("", None) if metric == "boot_time" else (workload, level)
        content = boot.config if metric == "boot_time" else boot.workload
        entries.setdefault(key, {}).setdefault((boot.session, boot.boot, boot.config, content), boot)

    for workload, levels in file.workloads.items():
        for level, boots in levels.items():
            for boot in boots:
                add(workload, float(level), boot)
                stored.add((boot.session, boot.boot))
    for entry in store.history(NodeClass(file.node_class, {}), file.server):
        with contextlib.suppress(KeyError, TypeError, ValueError):  # written by hand, or by a version to come
            add(str(entry["workload_name"]), float(entry["level"]), StoredBoot.from_dict(entry))
    found = []
    for (name, at), known in entries.items():
        ordered = sorted(known.values(), key=lambda boot: (boot.recorded, boot.boot))
        same = [boot for boot in ordered if at is None or boot.workload == ordered[-1].workload]
        kept = [(boot, values[0]) for boot in same if (values := boots_of([boot], metric))]
        if kept:
            boots, values = zip(*kept, strict=True)
            of_file = file.node_class, simulated(file), file.server
            found.append(Series(*of_file, name, at, boots, values, frozenset(stored), len(ordered) - len(same)))
    return sorted(found, key=lambda one: (one.workload, one.level or 0))


def judge(one: Series, metric: Metric, margin: float | None) -> dict[str, Any]:
    """What the boots say, in builtin types.

    Change points are sought over all boots. A slow drift can only have passed gates between boots of one content of
    the config, so it is sought since the content last changed.
    """
    answer: dict[str, Any] = {
        "node_class": one.node_class,
        "simulated": one.simulated,
        "server": one.server,
        "workload": one.workload,
        "level": one.level,
        "left_out": one.left_out,
        "boots": [
            {
                "recorded": boot.recorded,
                "session": boot.session,
                "boot": boot.boot,
                "config": boot.config,
                "sglang": boot.sglang,
                "value": fmean(values.trials),
                "trials": len(values.trials),
                "in_baseline": (boot.session, boot.boot) in one.stored,
            }
            for boot, values in zip(one.boots, one.values, strict=True)
        ],
        "change_points": [],
        "slow_drift": None,
        "drift_judged_from": _since_content(one.boots),
        "note": "",
    }
    if metric.exact:
        answer["note"] = "a counted metric: changes are not sought"
        return answer
    try:
        for point in verdict.change_points(one.values):
            answer["change_points"].append(
                {
                    "index": point.index,
                    "recorded": one.boots[point.index].recorded,
                    "before": point.before,
                    "after": point.after,
                    "ratio": point.ratio,
                    "p_value": point.p_value,
                    "with": _what_else(one.boots[point.index - 1], one.boots[point.index]),
                }
            )
        if metric.better is None or margin is None:
            answer["note"] = "no better direction or no margin, so no drift is judged" + (
                "" if metric.better is None else ": give --margin"
            )
        else:
            recent = one.values[answer["drift_judged_from"] :]
            drift = verdict.slow_drift(recent, margin=margin, better=metric.better) if recent else None
            if drift is not None:
                answer["slow_drift"] = {
                    "ratio": drift.ratio,
                    "p_value": drift.p_value,
                    "worst_step": drift.worst_step,
                    "hidden": drift.hidden,
                    "boots": len(recent),
                }
    except VerdictError as error:
        answer["note"] = f"not judged: {error}"
    return answer


def _since_content(boots: Sequence[StoredBoot]) -> int:
    """Index of the first boot of the newest content of the config, counted back without a gap."""
    first = len(boots) - 1
    while first > 0 and boots[first - 1].config == boots[-1].config:
        first -= 1
    return first


def _what_else(before: StoredBoot, after: StoredBoot) -> list[str]:
    """What is known to have changed between two boots."""
    names = (("config", "the config's content"), ("sglang", "sglang"), ("driver", "driver"), ("plugin", "plugin"))
    found = []
    for attribute, words in names:
        old, new = getattr(before, attribute), getattr(after, attribute)
        if old != new:
            found.append(f"{words} {old or '?'} to {new or '?'}")
    return found


# -- for people -----------------------------------------------------------------------------------------------


def _print(one: Series, answer: dict[str, Any], metric: Metric, margin: float | None) -> None:
    tag = " (simulated)" if one.simulated else ""
    where = f", {one.workload} at {level_key(one.level)}" if one.level is not None else ""
    say(f"{metric.name} of {one.server}{where}, on {one.node_class}{tag}", "bold")
    if one.left_out:
        say(f"left out: {one.left_out} boots of an earlier content of the workload")
    for line in _plot(one, answer, metric):
        say(*line)
    points, drift = answer["change_points"], answer["slow_drift"]
    for point in points:
        say(
            f"  changed at {point['recorded']}: {figure(point['before'], metric.unit)} to "
            f"{figure(point['after'], metric.unit)} ({percent(point['ratio'])}, p {point['p_value']:.2g})"
            + (f"; with it: {', '.join(point['with'])}" if point["with"] else ""),
            _colour(point["ratio"], metric),
        )
    if drift is not None:
        words = f"  slow drift: {percent(drift['ratio'])} over {drift['boots']} boots (p {drift['p_value']:.2g})"
        if drift["hidden"]:
            words += (
                f", and no single boot was worse than the mean of those before it by more than the margin of "
                f"{(margin or 0) * 100:.3g} % (the worst: {percent(drift['worst_step'])}): "
                "it passed under every single gate"
            )
        else:
            words += f"; the worst single step was {percent(drift['worst_step'])}, which a gate would see"
        say(words, "bold red")
    if not points and drift is None and not answer["note"]:
        count = len(one.boots)
        say(f"  no change and no slow drift in {count} boots" if count > 4 else f"  too few boots to tell ({count})")
    if answer["note"]:
        say(f"  {answer['note']}", "dim")


def _colour(ratio: float, metric: Metric) -> str:
    if metric.better is None:
        return ""
    return "red" if (ratio < 1) == (metric.better == "higher") else "green"


def _plot(one: Series, answer: dict[str, Any], metric: Metric) -> list[tuple[str, str]]:
    """A line for each boot: when, which, its mean, and its place between the least and the most trial of all."""
    trials = [value for boot in one.values for value in boot.trials]
    low, high = min(trials), max(trials)
    # Never zoom in so far that a change of a tenth of a per cent looks like a cliff.
    room = max(high - low, 0.02 * abs(high)) or 1.0
    low = (low + high - room) / 2
    changed = {point["index"] for point in answer["change_points"]}
    width = max(len(figure(boot["value"], metric.unit)) for boot in answer["boots"])
    lines = []
    for index, (boot, values) in enumerate(zip(answer["boots"], one.values, strict=True)):
        places = [_place(value, low, room) for value in values.trials]
        row = [" "] * _WIDTH
        row[min(places) : max(places) + 1] = "-" * (max(places) + 1 - min(places))
        row[_place(boot["value"], low, room)] = "o" if boot["in_baseline"] else "*"
        if index in changed:
            lines.append((f"  {'':<{35 + width}}  {'=' * _WIDTH} changed", "yellow"))
        when = boot["recorded"].replace("T", " ").removesuffix("Z")
        text = (
            f"  {when:<19}  {boot['session'][:8]:<8} {boot['boot']:>3}  {figure(boot['value'], metric.unit):>{width}}"
        )
        marks = _what_else(one.boots[index - 1], one.boots[index]) if index else []
        lines.append((f"{text:<{37 + width}} |{''.join(row)}| {', '.join(marks)}".rstrip(), ""))
    left = figure(low, metric.unit)
    right = figure(low + room, metric.unit)
    axis = left + right.rjust(_WIDTH - len(left))
    lines.append((f"{'':<{39 + width}}{axis}", "dim"))
    lines.append(("  o in the baseline file, * only in the history, - the boot's trials", "dim"))
    return lines


def _place(value: float, low: float, room: float) -> int:
    return max(0, min(_WIDTH - 1, math.floor((value - low) / room * _WIDTH)))
