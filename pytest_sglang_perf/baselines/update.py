"""What ``--update-baselines`` makes of a baseline file: a pure plan, and its description for people.

For each level that was measured: boots are added until ``FULL`` are stored; when that many are stored and nothing
moved, the level stays as it is, so that accepting an unchanged state changes no byte; when something moved, the new
boots take the place of the old ones, and so they do when the stored ones belong to an earlier content of the server
config or the workload. Levels that were not measured are never touched.

A boot that was taken only because a claim was undecided is judged, and not stored: whether it was taken depends on how
the boots before it came out, and five boots of one session would hide how much the node moves between sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pytest_sglang_perf.baselines.model import BaselineFile, StoredBoot, level_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.baselines.node_class import NodeClass

__all__ = ["FULL", "Change", "Measured", "Update", "describe_change", "plan_update"]

FULL = 5
"""So many boots are stored of each level: enough to learn the spread between boots from."""

_UNSTABLE_RATIO = 2.0
_WATCHED = "output_throughput"


@dataclass(frozen=True)
class Measured:
    """What this session measured of one server config at one level.

    Attributes:
        workload: the workload's name.
        boots: in the order in which they were made; all of one config and workload.
        asked: numbers of the boots asked for before anything was measured; the others were taken while a claim
            was undecided. None: all.
        problems: why nothing of this may be stored (crashed, invalid, unstable); empty if it may.
    """

    workload: str
    level: float
    boots: tuple[StoredBoot, ...]
    problems: tuple[str, ...] = ()
    asked: frozenset[int] | None = None


@dataclass(frozen=True)
class Change:
    """What happens to one level.

    ``kind`` is ``first``, ``added``, ``replaced``, ``kept`` or ``refused``; ``why`` says it in words.
    """

    workload: str
    level: str
    kind: str
    why: str
    before: tuple[StoredBoot, ...]
    after: tuple[StoredBoot, ...]


@dataclass(frozen=True)
class Update:
    """The planned file and the way to it. ``after`` equals ``before`` where nothing is to be written."""

    before: BaselineFile | None
    after: BaselineFile
    changes: tuple[Change, ...]

    @property
    def writes(self) -> bool:
        """Whether the file's content changes."""
        return any(change.kind in ("first", "added", "replaced") for change in self.changes)

    @property
    def refused(self) -> tuple[str, ...]:
        """Why some of what was measured is not stored, one line a level."""
        return tuple(
            f"{change.workload} at {change.level}: {change.why}" for change in self.changes if change.kind == "refused"
        )


def plan_update(
    existing: BaselineFile | None,
    measured: Sequence[Measured],
    *,
    moved: bool,
    server: str,
    node_class: NodeClass,
) -> Update:
    """Plan the new content of the baseline file of ``server`` on ``node_class``.

    Args:
        existing: the stored file, or None.
        measured: what this session measured of this server config.
        moved: whether any of it differs from the stored boots beyond the margins (Holm over the file).
        server: name of the server config.
        node_class: the node's class.
    """
    start = existing or BaselineFile(server=server, node_class=node_class.slug)
    workloads = {name: dict(levels) for name, levels in start.workloads.items()}
    changes = []
    for one in measured:
        levels = workloads.setdefault(one.workload, {})
        key = level_key(one.level)
        change = _plan_level(levels.get(key, ()), one, key, moved=moved)
        changes.append(change)
        if change.after:
            levels[key] = change.after
    workloads = {name: levels for name, levels in workloads.items() if levels}
    after = replace(start, workloads=workloads)
    update = Update(existing, after, tuple(changes))
    # Details of the node are renewed only together with boots: a file that keeps its boots keeps every byte.
    if update.writes:
        update = replace(update, after=replace(after, node=dict(node_class.details)))
    return update


def _plan_level(stored: tuple[StoredBoot, ...], measured: Measured, key: str, *, moved: bool) -> Change:
    def change(kind: str, why: str, after: tuple[StoredBoot, ...]) -> Change:
        return Change(measured.workload, key, kind, why, stored, after)

    problems = [*measured.problems, *filter(None, map(_instability, measured.boots))]
    if not measured.boots and not problems:
        problems.append("no trial was completed")
    if problems:
        return change("refused", "; ".join(problems), stored)
    known = {(boot.session, boot.boot, boot.config, boot.workload) for boot in stored}
    new = tuple(b for b in measured.boots if (b.session, b.boot, b.config, b.workload) not in known)
    fair = tuple(boot for boot in new if measured.asked is None or boot.boot in measured.asked)[:FULL]
    further = len(new) - len(fair)
    aside = f" ({further} further, taken to decide a claim, left out)" if further and len(fair) < FULL else ""
    if not stored:
        return change("first", f"{_count(len(fair), 'recorded')}{aside}", fair)
    config, workload = measured.boots[0].config, measured.boots[0].workload
    same = tuple(boot for boot in stored if boot.config == config and boot.workload == workload)
    if not same:
        what = "the workload" if all(boot.workload != workload for boot in stored) else "the server config"
        why = f"the stored boots belong to an earlier content of {what}"
        return change("replaced", f"{why}: {_count(len(fair), 'recorded')} in their place{aside}", fair)
    if moved and new:
        return change("replaced", f"moved: {_count(len(new[-FULL:]), 'new')} in place of {len(stored)}", new[-FULL:])
    room = FULL - len(same)
    if room <= 0 or not fair:
        return change("kept", f"{_count(len(same), 'stored')}, nothing moved", stored)
    added = fair[:room]
    return change(
        "added", f"{_count(len(added), 'added')}, now {len(same) + len(added)} of {FULL}{aside}", same + added
    )


def _instability(boot: StoredBoot) -> str | None:
    """A boot whose own trials differ by a factor was disturbed, and would teach the wrong noise."""
    values = [value for value in boot.trials.get(_WATCHED, ()) if value is not None]
    if len(values) > 1 and (min(values) <= 0 or max(values) / min(values) > _UNSTABLE_RATIO):
        low, high = f"{min(values):.6g}", f"{max(values):.6g}"
        return f"unstable: {_WATCHED} was between {low} and {high} in the trials of boot {boot.boot}"
    return None


def _count(number: int, word: str) -> str:
    return f"{number} boot{'' if number == 1 else 's'} {word}"


_SHOWN = ("output_throughput", "ttft_p50", "tpot_p50", "energy_per_token")


def describe_change(update: Update) -> str:
    """The update as people read it: a line for each level, with the medians of the main metrics where they changed."""
    lines = []
    for change in update.changes:
        lines.append(f"{change.workload} at {change.level}: {change.kind}: {change.why}")
        if change.kind in ("replaced", "added", "first"):
            lines += [f"    {line}" for metric in _SHOWN if (line := _metric_change(change, metric))]
    kept = _untouched(update)
    if kept:
        lines.append(f"not measured, unchanged: {', '.join(kept)}")
    return "\n".join(lines)


def _metric_change(change: Change, metric: str) -> str:
    before, after = _typical(change.before, metric), _typical(change.after, metric)
    if after is None:
        return "" if before is None else f"{metric}: {before:.4g} before, absent now"
    if before is None:
        return f"{metric}: {after:.4g}"
    share = f" ({(after / before - 1) * 100:+.1f} %)" if before else ""
    return f"{metric}: {before:.4g} -> {after:.4g}{share}"


def _typical(boots: Sequence[StoredBoot], metric: str) -> float | None:
    """Median over boots of each boot's median."""
    medians = [
        median(values) for boot in boots if (values := [v for v in boot.trials.get(metric, ()) if v is not None])
    ]
    return median(medians) if medians else None


def _untouched(update: Update) -> list[str]:
    measured = {(change.workload, change.level) for change in update.changes}
    return [
        f"{name} at {level}"
        for name, levels in update.after.workloads.items()
        for level in levels
        if (name, level) not in measured
    ]
