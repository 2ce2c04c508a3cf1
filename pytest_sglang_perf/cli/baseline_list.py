"""``sglang-perf baseline list``: what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.baselines import level_key
from pytest_sglang_perf.cli._console import emit, say, table, warn
from pytest_sglang_perf.cli._stored import read_folder, simulated

if TYPE_CHECKING:
    import argparse

    from pytest_sglang_perf.baselines import BaselineFile

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    files, problems = read_folder(options.baselines)
    entries = [entry for file in files for entry in _entries(file)]
    if options.json:
        emit({"baselines": str(options.baselines), "stored": entries, "problems": problems})
    elif entries:
        header = ("node class", "server", "workload", "levels", "boots", "newest", "sglang", "")
        table(header, [_list_row(entry) for entry in entries])
    else:
        say(f"nothing is stored in {options.baselines}. Record baselines with:  pytest --update-baselines")
    for problem in problems:
        warn(f"sglang-perf: {problem}")
    return 2 if problems else 0


def _entries(file: BaselineFile) -> list[dict[str, Any]]:
    found = []
    for workload, levels in file.workloads.items():
        boots = [boot for stored in levels.values() for boot in stored]
        found.append(
            {
                "node_class": file.node_class,
                "simulated": simulated(file),
                "server": file.server,
                "workload": workload,
                "levels": sorted(map(float, levels)),
                "boots": {level: len(stored) for level, stored in levels.items()},
                "newest": max((boot.recorded for boot in boots), default=None),
                "sglang": sorted({boot.sglang for boot in boots if boot.sglang}),
            }
        )
    return found


def _list_row(entry: dict[str, Any]) -> list[str]:
    stored = sorted(set(entry["boots"].values()))
    boots = f"{stored[0]}" if len(stored) == 1 else f"{stored[0]} to {stored[-1]}" if stored else "0"
    return [
        entry["node_class"],
        entry["server"],
        entry["workload"],
        ", ".join(map(level_key, entry["levels"])),
        boots,
        (entry["newest"] or "")[:10],
        ", ".join(entry["sglang"]),
        "simulated" if entry["simulated"] else "",
    ]
