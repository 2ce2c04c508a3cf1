"""``sglang-perf baseline show``: one server config's figures, with what its stored boots say of their noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.baselines import level_key
from pytest_sglang_perf.cli._console import emit, say, table, warn
from pytest_sglang_perf.cli._stored import read_folder, simulated
from pytest_sglang_perf.comparison import chosen_metrics, noise_of, shown
from pytest_sglang_perf.errors import NoBaseline
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.report.figures import figure, interval
from pytest_sglang_perf.stored_boots import of_baseline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_sglang_perf.baselines import BaselineFile
    from pytest_sglang_perf.comparison import LevelBoots
    from pytest_sglang_perf.stored_boots import Config

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    metrics = chosen_metrics(options.metric)
    files, problems = read_folder(options.baselines)
    shown_files = [
        file for file in files if file.server == options.server and options.node_class in (None, file.node_class)
    ]
    if not shown_files:
        raise NoBaseline("\n".join([_nothing(options, files), *problems]))
    documents = [_figures(file, metrics) for file in shown_files]
    if options.json:
        emit({"server": options.server, "stored": documents})
    else:
        for number, document in enumerate(documents):
            if number:
                say()
            _print_figures(document)
    for problem in problems:
        warn(f"sglang-perf: {problem}")
    return 2 if problems else 0


def _nothing(options: argparse.Namespace, files: list[BaselineFile]) -> str:
    where = f" on node class {options.node_class}" if options.node_class else ""
    known = sorted({file.server for file in files})
    classes = sorted({file.node_class for file in files if file.server == options.server})
    if classes:
        return f'no baseline of "{options.server}" is stored{where}. It is stored on: {", ".join(classes)}'
    return f'no baseline of "{options.server}" is stored in {options.baselines}. Stored: {", ".join(known) or "none"}'


def _figures(file: BaselineFile, metrics: Sequence[str]) -> dict[str, Any]:
    config = of_baseline(file)
    rows = [
        row
        for level in sorted(config.levels.values(), key=lambda one: (one.level is None, one.workload, one.level or 0))
        for name in metrics
        if (row := _figure_row(config, level, name)) is not None
    ]
    return {
        "node_class": file.node_class,
        "simulated": simulated(file),
        "config": config.fingerprint,
        "newest": config.recorded,
        "sglang": config.sglang,
        "stale_boots": config.stale,
        "figures": rows,
    }


def _figure_row(config: Config, level: LevelBoots, name: str) -> dict[str, Any] | None:
    boots = level.boots.get(name, ())
    if not boots:
        return None
    noise = None if REGISTRY[name].exact else noise_of(name, level.key, [config.levels])
    side = shown(config.server, name, boots, noise)
    return {
        "workload": level.workload,
        "level": level.level,
        "metric": name,
        "unit": REGISTRY[name].unit,
        "value": side.value,
        "low": side.low,
        "high": side.high,
        "boots": side.boots,
        "trials": side.trials,
        "counted": REGISTRY[name].exact,
        "noise": noise.to_dict() if noise is not None else None,
    }


def _print_figures(document: dict[str, Any]) -> None:
    tag = " (simulated)" if document["simulated"] else ""
    say(f"node class {document['node_class']}{tag}", "bold")
    version = ", ".join(document["sglang"]) or "unknown version"
    say(f"config {document['config']}, sglang {version}, newest boot {document['newest']}")
    if document["stale_boots"]:
        say(f"left out: {document['stale_boots']} boots of an earlier content of the config or workload")
    rows = [
        [
            row["workload"] or "(every boot)",
            level_key(row["level"]) if row["level"] is not None else "",
            row["metric"],
            figure(row["value"], row["unit"]),
            interval(row["low"], row["high"], row["unit"]) + (" counted" if row["counted"] else ""),
            str(row["boots"]),
            str(row["trials"]),
            "simulated" if document["simulated"] else "",
        ]
        for row in document["figures"]
    ]
    header = ("workload", "level", "metric", "estimate", "90 % interval", "boots", "trials", "")
    table(header, rows, right={"level", "estimate", "boots", "trials"})
