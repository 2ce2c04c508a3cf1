"""How commands show changes: one line for each metric at each level, and how many of each verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf.baselines import level_key
from pytest_sglang_perf.cli._console import say, table
from pytest_sglang_perf.comparison import counts
from pytest_sglang_perf.report.figures import figure, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.claims import Shown
    from pytest_sglang_perf.comparison import Change

__all__ = ["print_changes", "tally"]

_ORDER = ("violated", "inconclusive", "not judged", "gone", "new", "no direction", "holds")


def print_changes(found: Sequence[Change], *, labels: tuple[str, str], simulated: bool) -> None:
    """Write the table, then what its notes say, each once."""
    header = ["workload", "level", "metric", *labels, "change", "interval", "margin", "verdict"]
    if simulated:
        header.append("")
    rows = [_row(change, simulated=simulated) for change in found]
    table(header, rows, right={"level", *labels, "change", "margin"}, mark="verdict")
    said: dict[str, list[str]] = {}
    for change in found:
        if change.status == "inconclusive":
            more = change.more_boots
            advice = f"about {more} more boots would decide" if more else "more boots of this kind would not decide it"
            said.setdefault(advice, []).append(_place(change))
        if change.note and change.status != "no direction":
            said.setdefault(f"note: {change.note}", []).append(_place(change))
    for text, places in said.items():
        where = ", ".join(places) if len(places) < 3 else f"{len(places)} lines"
        say(f"  {text} ({where})", "dim")


def tally(found: Sequence[Change]) -> str:
    """Such as ``1 violated, 2 inconclusive, 25 hold``."""
    number = counts(found)
    words = {"holds": "hold" if number.get("holds", 0) != 1 else "holds"}
    return (
        ", ".join(f"{number[word]} {words.get(word, word)}" for word in _ORDER if number.get(word))
        or "nothing to judge"
    )


def _place(change: Change) -> str:
    if change.level is None:
        return change.metric
    where = f"{change.workload} at {level_key(change.level)}"
    return f"{change.metric} of {where}" if change.metric else where


def _row(change: Change, *, simulated: bool) -> list[str]:
    spread = ""
    if change.interval is not None:
        low, high = change.interval
        spread = f"[{percent(low)} .. {percent(high)}]"
    row = [
        change.workload or "(every boot)",
        level_key(change.level) if change.level is not None else "",
        change.metric,
        _side(change.old, change.unit),
        _side(change.new, change.unit),
        percent(change.ratio) if change.ratio is not None else "",
        spread,
        f"{change.margin * 100:.3g} %" if change.margin is not None else "",
        change.status,
    ]
    return [*row, "simulated"] if simulated else row


def _side(side: Shown | None, unit: str) -> str:
    return f"{figure(side.value, unit)} ({side.boots})" if side is not None else "-"
