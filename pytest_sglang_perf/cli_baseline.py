"""``sglang-perf baseline list|show|diff|history``: what is stored, what moved, and what crept away.

Reads the files that ``--update-baselines`` writes; never writes them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf._console import emit, say, table, warn
from pytest_sglang_perf.baselines import BaselineFile, level_key
from pytest_sglang_perf.comparison import LevelBoots, chosen_metrics, noise_of, shown
from pytest_sglang_perf.errors import BaselineError, NoBaseline
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.report.figures import figure, interval
from pytest_sglang_perf.stored_boots import Config, of_baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "read_folder", "simulated"]


def main(argv: Sequence[str]) -> int:
    """Returns 0; 1 when ``diff`` found a regression; 2 when something could not be read; 3 when not comparable."""
    options = _parser().parse_args(argv)
    if options.action == "diff":
        from pytest_sglang_perf import cli_baseline_diff

        return cli_baseline_diff.run(options)
    if options.action == "history":
        from pytest_sglang_perf import cli_baseline_history

        return cli_baseline_history.run(options)
    return _list(options) if options.action == "list" else _show(options)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one JSON document instead of text")
    common.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="DIR", help="the folder (default: ./baselines)"
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--node-class", metavar="SLUG", help="only this node class, as `baseline list` names it")
    picks = argparse.ArgumentParser(add_help=False)
    picks.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="show this metric (may be repeated) instead of the usual gate's, power and failed_requests",
    )
    parser = argparse.ArgumentParser(
        prog="sglang-perf baseline",
        description="Look at the baselines that `pytest --update-baselines` has stored. Exit status: 0; 1 `diff` "
        "found a regression; 2 something cannot be read; 3 the two sides cannot be compared.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,show,diff,history}")
    actions.add_parser(
        "list",
        parents=[common],
        help="what is stored",
        description="One line for each node class, server config and workload: levels, boots, newest date, version.",
    )
    show = actions.add_parser(
        "show",
        parents=[common, where, picks],
        help="one server config's figures",
        description="Each level's figures with the 90 % interval of their long-run mean, from the stored boots of "
        "the config's newest content and the noise learned from the other levels.",
    )
    show.add_argument("server", metavar="SERVER", help="name of the server config")
    diff = actions.add_parser(
        "diff",
        parents=[common, picks],
        help="what moved between two states",
        description="Compare two baseline files or folders, or the working tree with a git ref: each level and metric "
        "with its change, the change's interval and a verdict with the metric's usual margin, never below the learned "
        "noise. Exit status 1 when something regressed.",
        epilog="examples: sglang-perf baseline diff origin/main;  sglang-perf baseline diff old/ baselines/",
    )
    diff.add_argument("old", metavar="OLD", help="a baseline file, a folder of them, or (alone) a git ref")
    diff.add_argument("new", metavar="NEW", nargs="?", help="a baseline file or folder; without it, the working tree")
    diff.add_argument(
        "--correct",
        choices=["none", "holm", "bh"],
        default="none",
        help="correct the verdicts for their number: Holm, or Benjamini-Hochberg (default: none)",
    )
    history = actions.add_parser(
        "history",
        parents=[common, where],
        help="a metric over time",
        description="Every boot over time, from the history beside the baselines and the stored boots: where the "
        "level changed, and whether a slow drift passed under every single gate.",
    )
    history.add_argument("metric", metavar="METRIC", help="such as output_throughput")
    history.add_argument("--server", metavar="NAME", help="only this server config")
    history.add_argument("--workload", metavar="NAME", help="only this workload")
    history.add_argument("--level", type=float, metavar="N", help="only this level")
    history.add_argument("--margin", type=float, metavar="FRACTION", help="what a gate tolerates, such as 0.03")
    return parser


def simulated(file: BaselineFile) -> bool:
    """Whether a file's figures come from a simulated node."""
    return bool(file.node.get("simulated")) or file.node_class.startswith("sim-")


def read_folder(root: Path) -> tuple[list[BaselineFile], list[str]]:
    """All baseline files below a folder, sorted by node class and server; and what is wrong with the others.

    Raises:
        NoBaseline: there is no such folder.
    """
    if not root.is_dir():
        raise NoBaseline(
            f"there is no folder {root}. Name it with --baselines DIR, or record baselines: pytest --update-baselines"
        )
    files, problems = [], []
    for path in sorted(root.glob("*/*.json")):
        try:
            files.append(read_file(path))
        except BaselineError as error:
            problems.append(str(error))
    return files, problems


def read_file(path: Path) -> BaselineFile:
    """One baseline file.

    Raises:
        BaselineError: it cannot be read or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BaselineError(f"the baseline file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        text = ""
    return BaselineFile.from_text(text, file=str(path))


# -- list -----------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
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


# -- show -----------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
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
