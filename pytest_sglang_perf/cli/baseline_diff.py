"""``sglang-perf baseline diff``: two states of the baselines, and what moved between them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.baselines import BaselineFile
from pytest_sglang_perf.cli._changes import print_changes, tally
from pytest_sglang_perf.cli._console import emit, say, warn
from pytest_sglang_perf.cli._stored import read_file, simulated
from pytest_sglang_perf.comparison import Change, changes, chosen_metrics, corrected, counts
from pytest_sglang_perf.errors import BaselineError, NoBaseline
from pytest_sglang_perf.stored_boots import of_baseline
from pytest_sglang_perf.suite._git import Repository

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

__all__ = ["Compared", "compare_files", "run"]

REGRESSED, NOT_COMPARABLE = 1, 3

#: Node class and server config -> the file.
Files = dict[tuple[str, str], BaselineFile]


@dataclass(frozen=True)
class Compared:
    """What moved in one baseline file. ``notes`` say what a reader must know before the figures."""

    node_class: str
    server: str
    simulated: bool
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Builtin types only."""
        return {
            "node_class": self.node_class,
            "server": self.server,
            "simulated": self.simulated,
            "notes": list(self.notes),
            "changes": [change.to_dict() for change in self.changes],
        }


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 1 when something regressed, or 3 when the two sides have nothing in common to compare."""
    metrics = chosen_metrics(options.metric)
    if options.new is None:
        old, new = _at_ref(options.old, options.baselines), _files(options.baselines)
        labels = f"{options.old}:{options.baselines}", str(options.baselines)
    else:
        old, new = _files(Path(options.old)), _files(Path(options.new))
        labels = options.old, options.new
    problem = _apart(old, new, labels, files=options.new is not None and Path(options.new).is_file())
    if problem:
        if options.json:
            emit({"old": labels[0], "new": labels[1], "comparable": False, "reason": problem})
        warn(f"sglang-perf: not comparable: {problem}")
        return NOT_COMPARABLE
    compared = [compare_files(old[key], new[key], metrics) for key in sorted({*old} & {*new})]
    if options.new is not None and not compared:  # two files of two configs: the only pair there is
        compared = [compare_files(next(iter(old.values())), next(iter(new.values())), metrics)]
        old, new = {}, {}
    only = [f"only in {labels[0]}: {key[1]} on {key[0]}" for key in sorted({*old} - {*new})]
    only += [f"only in {labels[1]}: {key[1]} on {key[0]}" for key in sorted({*new} - {*old})]
    fixed = iter(corrected([change for one in compared for change in one.changes], options.correct))
    compared = [replace(one, changes=tuple(islice(fixed, len(one.changes)))) for one in compared]
    every = [change for one in compared for change in one.changes]
    if options.json:
        emit(
            {
                "old": labels[0],
                "new": labels[1],
                "comparable": True,
                "compared": [one.to_dict() for one in compared],
                "only": only,
                "counts": counts(every),
            }
        )
    else:
        _print(compared, only, labels)
    return REGRESSED if any(change.status == "violated" for change in every) else 0


def _apart(old: Files, new: Files, labels: tuple[str, str], *, files: bool) -> str:
    """Why the sides cannot be compared, or nothing."""
    if not old or not new:
        empty = labels[0] if not old else labels[1]
        raise NoBaseline(f"there are no baselines in {empty}")
    if {*old} & {*new}:
        return ""
    if files and len(old) == len(new) == 1:
        (here, _), (there, _) = next(iter(old)), next(iter(new))
        return "" if here == there else f"the node classes differ ({here} and {there})"
    return f"no server config of {labels[0]} is in {labels[1]} for the same node class"


def compare_files(old: BaselineFile, new: BaselineFile, metrics: Sequence[str]) -> Compared:
    """Compare two states of one baseline file.

    Boots that both have are no news: the reference is what the old file has, and the candidate only what came in
    since. A level without a new boot has not moved, and is not in the result.
    """
    fresh, same = _without(new, old)
    before, after = of_baseline(old), of_baseline(fresh)
    notes = []
    if after.levels and before.fingerprint != after.fingerprint and old.server == new.server:
        notes.append(f"the config's content changed ({before.fingerprint} to {after.fingerprint})")
    if after.levels and before.sglang != after.sglang:
        notes.append(f"sglang {', '.join(before.sglang) or '?'} to {', '.join(after.sglang) or '?'}")
    if same:
        notes.append(f"no new boots, so nothing to judge: {', '.join(same)}")
    levels = {key: level for key, level in before.levels.items() if _named(*key) not in same}
    if not after.levels:
        levels = {}
    found = changes(levels, after.levels, metrics=metrics)
    return Compared(new.node_class, new.server, simulated(new), tuple(found), tuple(notes))


def _named(workload: str, level: object) -> str:
    return f"{workload} at {level:g}" if isinstance(level, float) else ""


def _without(new: BaselineFile, old: BaselineFile) -> tuple[BaselineFile, list[str]]:
    """The new file with only the boots that the old one has not, and the levels that have none."""
    same, workloads = [], {}
    for workload, levels in new.workloads.items():
        kept = {}
        for key, boots in levels.items():
            known = {
                (boot.session, boot.boot, boot.config, boot.workload)
                for boot in old.workloads.get(workload, {}).get(key, ())
            }
            fresh = tuple(b for b in boots if (b.session, b.boot, b.config, b.workload) not in known)
            if fresh:
                kept[key] = fresh
            elif boots:
                same.append(_named(workload, float(key)))
        workloads[workload] = kept
    return replace(new, workloads=workloads), same


def _print(compared: Sequence[Compared], only: Sequence[str], labels: tuple[str, str]) -> None:
    say(f"{labels[0]} (old) and {labels[1]} (new); in brackets, boots")
    for one in compared:
        say()
        tag = " (simulated)" if one.simulated else ""
        say(f"{one.server} on {one.node_class}{tag}", "bold")
        for note in one.notes:
            say(f"  {note}")
        if one.changes:
            print_changes(one.changes, labels=("old", "new"), simulated=one.simulated)
    if only:
        say()
        for text in only:
            say(text)
    say()
    say(tally([change for one in compared for change in one.changes]))


# -- where files come from ------------------------------------------------------------------------------------


def _files(path: Path) -> Files:
    """A baseline file, a node class's folder, or a folder of those.

    Raises:
        BaselineError: a file is damaged, or there is nothing of this name.
    """
    if path.is_file():
        return _keyed([read_file(path)])
    if not path.is_dir():
        raise NoBaseline(
            f"{path} is neither a baseline file nor a folder. "
            "To compare with a git ref, name it alone: sglang-perf baseline diff REF"
        )
    return _keyed([read_file(one) for one in sorted([*path.glob("*.json"), *path.glob("*/*.json")])])


def _at_ref(ref: str, folder: Path) -> Files:
    """The baseline files below a folder as of a git ref.

    Raises:
        SuiteError: there is no repository or no such ref.
        BaselineError: a file of that time is damaged.
    """
    if not folder.is_dir():
        raise NoBaseline(f"there is no folder {folder}. Name it with --baselines DIR")
    repository = Repository(folder, asked_by="baseline diff")
    commit = repository.commit(ref)
    inside = Path(os.path.relpath(folder.resolve(), repository.root.resolve()))
    found = []
    for path in repository.files(commit, inside):
        if path.suffix == ".json":
            text = repository.show(commit, path).decode("utf-8", "replace")
            found.append(BaselineFile.from_text(text, file=f"{ref}:{path.as_posix()}"))
    return _keyed(found)


def _keyed(files: Sequence[BaselineFile]) -> Files:
    keyed: Mapping[tuple[str, str], BaselineFile] = {(file.node_class, file.server): file for file in files}
    if len(keyed) != len(files):
        raise BaselineError("two files of one side hold the same server config of the same node class")
    return dict(keyed)
