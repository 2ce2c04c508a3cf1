"""``sglang-perf compare A B``: two runs, or two server configs of one run, level by level.

Exit status: 0 nothing is worse by more than its margin, 1 something is (or crashed), 3 there is nothing to compare.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.baselines import BaselineFile, NodeClass, comparable
from pytest_sglang_perf.cli._changes import print_changes, tally
from pytest_sglang_perf.cli._console import emit, say, warn
from pytest_sglang_perf.cli._stored import read_folder
from pytest_sglang_perf.comparison import (
    MAIN_METRICS,
    Change,
    Key,
    LevelBoots,
    changes,
    chosen_metrics,
    corrected,
    counts,
)
from pytest_sglang_perf.errors import NotComparable, RunFileError
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.report.run_file import RunRecord, read_run
from pytest_sglang_perf.stored_boots import Config, of_baseline, of_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Pair", "Side", "main", "pairs"]

WORSE, NOT_COMPARABLE = 1, 3


@dataclass(frozen=True)
class Side:
    """One side as it was named: a run and perhaps one server config of it."""

    name: str
    record: RunRecord
    server: str | None

    @property
    def run(self) -> str:
        """The id of the run."""
        return str(self.record.session.get("run") or "")


@dataclass(frozen=True)
class Pair:
    """One server config of A beside one of B. ``crashed`` says how B's server ended, if it did."""

    a: str
    b: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    crashed: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Builtin types only."""
        return {
            "a": self.a,
            "b": self.b,
            "notes": list(self.notes),
            "crashed": self.crashed or None,
            "changes": [change.to_dict() for change in self.changes],
        }


def main(argv: Sequence[str]) -> int:
    """Compare; see the module for the exit status."""
    options = _parser().parse_args(argv)
    metrics = chosen_metrics(options.metric)
    a, b = _side(options.a), _side(options.b)
    simulated = a.record.simulated or b.record.simulated
    try:
        stored = read_folder(options.baselines)[0] if options.baselines.is_dir() else []
        found = pairs(a, b, metrics if options.metric else None, stored)
        every = iter(corrected([change for pair in found for change in pair.changes], options.correct))
        found = [replace(pair, changes=tuple(islice(every, len(pair.changes)))) for pair in found]
    except NotComparable as error:
        if options.json:
            emit({"a": options.a, "b": options.b, "comparable": False, "simulated": simulated, "reason": str(error)})
        warn(f"sglang-perf: not comparable: {error}")
        return NOT_COMPARABLE
    judged = [change for pair in found for change in pair.changes]
    if options.json:
        emit(
            {
                "a": options.a,
                "b": options.b,
                "comparable": True,
                "simulated": simulated,
                "node_class": b.record.session.get("node_class"),
                "pairs": [pair.to_dict() for pair in found],
                "counts": counts(judged),
            }
        )
    else:
        _print(a, b, found)
    worse = any(change.status == "violated" for change in judged) or any(pair.crashed for pair in found)
    return WORSE if worse else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-perf compare",
        description="Judge run B against run A: for each server config, workload and level that both measured, each "
        "main metric with both sides, their ratio, its interval and the verdict (holds: not worse by more than the "
        "margin of B's suite). Exit status: 0 nothing is worse, 1 something is or crashed, 2 a run cannot be read, "
        "3 the runs cannot be compared, for instance because their node classes differ.",
        epilog="examples: sglang-perf compare monday/ tuesday/;  sglang-perf compare out:mscclpp out:sbo",
    )
    word = "run.json of --sglang-report, or its folder; with :SERVER, one server config of it"
    parser.add_argument("a", metavar="A", help=f"the reference: {word}")
    parser.add_argument("b", metavar="B", help="the candidate, named alike")
    parser.add_argument("--metric", action="append", metavar="NAME", help="this metric only (may be repeated)")
    parser.add_argument(
        "--correct",
        choices=["none", "holm", "bh"],
        default="none",
        help="correct the verdicts for their number: Holm, or Benjamini-Hochberg (default: none)",
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="DIR",
        help="learn the noise from the boots stored here too, where there are any (default: ./baselines)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def _side(text: str) -> Side:
    """``RUN`` or ``RUN:server``; a path that exists is taken as one, whatever colons it has."""
    path, _, server = text.rpartition(":")
    if path and not Path(text).exists():
        return Side(text, read_run(Path(path)), server)
    return Side(text, read_run(Path(text)), None)


def pairs(a: Side, b: Side, metrics: Sequence[str] | None = None, stored: Sequence[BaselineFile] = ()) -> list[Pair]:
    """Every comparison that A and B have in common; the noise is learned from the ``stored`` boots too.

    Raises:
        NotComparable: the node classes differ, or nothing is in common.
        RunFileError: a server config is named that the run does not have, or one side is compared with itself.
    """
    _same_class(a, b)
    here, there = of_run(a.record), of_run(b.record)
    crashed = _crashes(b.record)
    margins = dict(b.record.session.get("margins") or {})
    wanted = metrics or list(dict.fromkeys([*MAIN_METRICS, *(name for name in margins if name in REGISTRY)]))
    found = []
    for one, other in _names(a, b, here, there, crashed):
        if a.run == b.run and one == other:
            raise RunFileError(f"{a.name} and {b.name} are the same boots: there is nothing to compare")
        beside = there.get(other) or Config(other, "", {})
        known = [
            of_baseline(_other_sessions(file, {a.run, b.run})).levels
            for file in stored
            if file.node_class == a.record.session["node_class"] and file.server in {one, other}
        ]
        found.append(_pair(here[one], beside, wanted, margins, crashed.get(other, ""), known))
    if not any(pair.changes or pair.crashed for pair in found):
        raise NotComparable(
            "no server config, workload and level is in both runs.\n"
            f"  {a.name}: {_has(here)}\n  {b.name}: {_has(there)}"
        )
    return found


def _same_class(a: Side, b: Side) -> None:
    one, other = a.record.session, b.record.session
    for side, session in ((a, one), (b, other)):
        if not session.get("node_class"):
            raise NotComparable(f"{side.name} knows no node class: its node was never reached, so nothing was measured")
    if one["node_class"] == other["node_class"]:
        return
    classes = [NodeClass(str(s["node_class"]), s.get("node_details") or {}) for s in (one, other)]
    differs = "; ".join(comparable(*classes)) or "see their names"
    raise NotComparable(
        f"the runs come from different node classes, so no figure of one says anything about the other "
        f"({differs}):\n  {a.name}: {classes[0].slug}\n  {b.name}: {classes[1].slug}"
    )


def _other_sessions(file: BaselineFile, sessions: set[str]) -> BaselineFile:
    """A baseline file without the boots of these sessions, which are on a side already."""
    return replace(
        file,
        workloads={
            name: {level: tuple(b for b in boots if b.session not in sessions) for level, boots in levels.items()}
            for name, levels in file.workloads.items()
        },
    )


def _names(
    a: Side, b: Side, here: Mapping[str, Config], there: Mapping[str, Config], crashed: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The server configs to set side by side."""
    if a.server is None and b.server is None:
        return [(name, name) for name in here if name in there or name in crashed]
    one, other = a.server or b.server, b.server or a.server
    assert one is not None
    assert other is not None
    for side, name, known in ((a, one, here), (b, other, {**there, **crashed})):
        if name not in known:
            have = ", ".join(known) or "nothing"
            raise RunFileError(f'{side.name}: nothing of server config "{name}" was measured. Measured: {have}')
    return [(one, other)]


def _pair(
    one: Config,
    other: Config,
    metrics: Sequence[str],
    margins: Mapping[str, float],
    crashed: str,
    stored: Sequence[Mapping[Key, LevelBoots]],
) -> Pair:
    notes = []
    if other.levels and one.server == other.server and one.fingerprint != other.fingerprint:
        notes.append(f"the config's content differs ({one.fingerprint} and {other.fingerprint})")
    if other.levels and one.sglang != other.sglang:
        notes.append(f"sglang {', '.join(one.sglang) or '?'} and {', '.join(other.sglang) or '?'}")
    if crashed:
        notes.append(f"{other.server} crashed in B: {crashed}")
    labels = (one.server, other.server) if one.server != other.server else ("A", "B")
    found: list[Change] = []
    if other.levels:
        found = changes(one.levels, other.levels, metrics=metrics, margins=margins, labels=labels, others=stored)
    if all(change.status in {"gone", "new"} and not change.metric for change in found if change.level is not None):
        found = []  # no level in common: a boot time alone is no comparison
    return Pair(one.server, other.server, tuple(found), tuple(notes), crashed)


def _crashes(record: RunRecord) -> dict[str, str]:
    """Server configs that crashed -> how."""
    found: dict[str, str] = {}
    for test in record.tests:
        error = test.get("error") or {}
        if error.get("kind") == "crashed":
            where = f" at concurrency {error['level']:g}" if error.get("level") else ""
            found.setdefault(test["server"], f"{error.get('class', 'unknown')}{where}")
    return found


def _has(configs: Mapping[str, Config]) -> str:
    return "; ".join(f"{name} ({', '.join(_levels(config))})" for name, config in configs.items()) or "nothing measured"


def _levels(config: Config) -> list[str]:
    return [f"{workload} at {level:g}" for workload, level in config.levels if level is not None]


def _print(a: Side, b: Side, found: Sequence[Pair]) -> None:
    simulated = a.record.simulated or b.record.simulated
    tag = " (simulated)" if simulated else ""
    say(f"{b.name} (B) judged against {a.name} (A); in brackets, boots")
    say(f"node class {b.record.session['node_class']}{tag}")
    for pair in found:
        say()
        say(pair.a if pair.a == pair.b else f"{pair.b} against {pair.a}", "bold")
        for note in pair.notes:
            say(f"  {note}", "bold red" if pair.crashed and note.endswith(pair.crashed) else "")
        if pair.changes:
            labels = ("A", "B") if pair.a == pair.b else (pair.a, pair.b)
            print_changes(pair.changes, labels=labels, simulated=simulated)
    say()
    crashed = sum(bool(pair.crashed) for pair in found)
    say(tally([change for pair in found for change in pair.changes]) + (f"; {crashed} crashed" if crashed else ""))
