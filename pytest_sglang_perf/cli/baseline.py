"""``sglang-perf baseline list|show|diff|history``: what is stored, what moved, and what crept away.

Reads the files that ``--update-baselines`` writes; never writes them.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Returns 0; 1 when ``diff`` found a regression; 2 when something could not be read; 3 when not comparable."""
    options = _parser().parse_args(argv)
    action = importlib.import_module(f"pytest_sglang_perf.cli.baseline_{options.action}")
    return int(action.run(options))


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
