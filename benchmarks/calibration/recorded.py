"""The same questions to real figures: one H200, one boot with six trials a level, and one without CUDA graphs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from pytest_sglang_perf.verdict import Noise, Status, compare

from .report import Report, percent

RECORDED = Path(__file__).parents[2] / "tests" / "data" / "h200" / "trials.jsonl"


def throughput() -> dict[tuple[str, int], list[float]]:
    """Output tokens/s of each trial by configuration and concurrency."""
    result: dict[tuple[str, int], list[float]] = {}
    for line in RECORDED.read_text().splitlines():
        record = json.loads(line)
        result.setdefault((record["label"], record["c"]), []).append(record["out_tok_s"])
    return result


def splits(values: list[float]) -> list[tuple[list[float], list[float]]]:
    """All ways to split the trials into two groups of equal size, both ways round."""
    indices = range(len(values))
    return [
        ([values[i] for i in chosen], [values[i] for i in indices if i not in chosen])
        for chosen in itertools.combinations(indices, len(values) // 2)
    ]


def as_units(values: list[float]) -> list[list[float]]:
    """Each trial standing for a boot: the noise within a boot by itself, without any allowance."""
    return [[value] for value in values]


def h200(report: Report) -> None:
    figures = throughput()
    rows = []
    alarms = total = 0
    for level in (1, 16, 64, 256):
        halves = splits(figures["default", level])
        alarmed = [compare(as_units(a), as_units(b), margin=0.05, better="higher").status for a, b in halves]
        strict = [compare(as_units(a), as_units(b), margin=0.0, better="higher").status for a, b in halves]
        planted = [
            compare(as_units([v * 0.8 for v in a]), as_units(b), margin=0.05, better="higher").status for a, b in halves
        ]
        without = compare(
            [figures["nocudagraph", level]], [figures["default", level]],
            margin=0.05, better="higher", noise=Noise.stated(0.10),
        )  # fmt: skip
        share = [sum(s is Status.VIOLATED for s in answers) / len(answers) for answers in (alarmed, strict, planted)]
        rows.append([str(level), *(percent(s) for s in share), without.status.value,
                     f"{without.effect:.3f} ({without.interval[0]:.3f} to {without.interval[1]:.3f})"])  # fmt: skip
        alarms += sum(s is Status.VIOLATED for s in alarmed)
        total += len(alarmed)
        if level == 1:
            report.target("H200: planted 20 % shift at concurrency 1 found", "yes", f"{percent(share[2])} % of splits",
                          met=share[2] == 1.0)  # fmt: skip
        report.target(f"H200: no CUDA graphs, concurrency {level}, stated boot sd 10 %", "violated",
                      without.status.value, met=without.status is Status.VIOLATED)  # fmt: skip
    report.say(
        "", "## Recorded on an H200", "",
        "All 20 splits of the six trials of one boot into two halves, each trial standing for a boot; `violated` in %"
        " of splits. Last: without CUDA graphs against with, one boot each, under a stated boot sd of 10 %."
        " With 20 splits a level's share moves in steps of 5 %.",
    )  # fmt: skip
    report.table(
        ["concurrency", "halves, margin 5 %", "halves, margin 0", "20 % planted", "no CUDA graphs", "ratio (90 %)"],
        rows,
    )
    report.target("H200: halves of one boot, margin 5 %, `violated`", "at most 5 %", f"{percent(alarms / total)} %",
                  met=alarms / total <= 0.05)  # fmt: skip
