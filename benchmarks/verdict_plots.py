"""scripts/bench verdict_plots: the figures of docs/explanation/verdicts.md, from recorded and from simulated boots.

Needs matplotlib, which nothing else does: ``pip install --group docs``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_sglang_perf.verdict import compare

from .calibration.draws import Truth, draw, other_levels
from .calibration.ours import sequential
from .calibration.recorded import as_units, throughput
from .calibration.studies import plan

IMAGES = Path(__file__).parents[1] / "docs" / "explanation" / "images"
COLOURS = {"holds": "#2a7f4f", "violated": "#b3312c", "inconclusive": "#8a8a8a"}
LEVELS = (1, 16, 64, 256)


def noise_by_level(plt: Any) -> None:
    """Trials of one boot, relative to their mean, at four levels; and one boot without CUDA graphs."""
    figures = throughput()
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for place, level in enumerate(LEVELS):
        for label, shift, colour in (("default", -0.1, "#1f5a99"), ("nocudagraph", 0.1, "#c77f1a")):
            values = np.array(figures[label, level])
            axes.plot(
                np.full(len(values), place + shift), 100 * (values / values.mean() - 1), "o", color=colour, alpha=0.7,
                label={"default": "as shipped", "nocudagraph": "without CUDA graphs"}[label] if not place else None,
            )  # fmt: skip
            spread = 100 * np.std(np.log(values), ddof=1)
            axes.annotate(f"{spread:.1f} %", (place + 1.8 * shift, 22), ha="center", fontsize=8, color=colour)
    axes.axhspan(-5, 5, color="#000000", alpha=0.06, label="a margin of 5 %")
    axes.set_xticks(range(len(LEVELS)), [f"concurrency {level}" for level in LEVELS])
    axes.set_ylabel("tokens/s, % off the boot's mean")
    axes.set_ylim(-26, 26)
    axes.legend(loc="lower left", fontsize=8, ncols=3)
    save(figure, "noise-by-level")


def three_answers(plt: Any) -> None:
    """The recorded trials split in halves, one half slowed down on purpose: what the interval says."""
    figures = throughput()
    figure, axes = plt.subplots(figsize=(7, 3.6))
    rows = []
    for level in (1, 256):
        values = figures["default", level]
        for slowed in (0.0, 0.03, 0.05, 0.10, 0.20):
            a, b = as_units([v * (1 - slowed) for v in values[1::2]]), as_units(values[0::2])
            verdict = compare(a, b, margin=0.05, better="higher")
            rows.append((f"concurrency {level}, slowed by {slowed:.0%}", verdict))
    for place, (name, verdict) in enumerate(reversed(rows)):
        colour = COLOURS[verdict.status.value]
        low, high = (max(0.55, min(1.6, edge)) for edge in verdict.interval)
        axes.plot([low, high], [place, place], color=colour, linewidth=3)
        axes.plot(verdict.effect, place, "o", color=colour)
        axes.annotate(f"{name}: {verdict.status.value}", (1.62, place), va="center", fontsize=8,
                      color=colour, annotation_clip=False)  # fmt: skip
    axes.axvline(0.95, color="black", linewidth=1, linestyle="--")
    axes.annotate("bound: 0.95", (0.95, len(rows) - 0.4), ha="center", fontsize=8)
    axes.set_yticks([])
    axes.set_xlim(0.55, 1.6)
    axes.set_ylim(-0.7, len(rows) + 0.2)
    axes.set_xlabel("candidate / reference, 90 % interval")
    save(figure, "three-answers")


def answers_by_change(plt: Any, draws: int = 1500) -> None:
    """How often each answer comes, over the true change, for budgets of 1, 3 and 5 new boots."""
    changes = np.array([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.10, 0.12])
    figure, panels = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
    for axes, budget in zip(panels, (1, 3, 5), strict=True):
        looks = tuple(range(1, budget + 1))
        shares = []
        for change in changes:
            rng = np.random.default_rng(int(1000 * change) + budget)
            truth = Truth(change=-float(change), candidate=budget)
            answer, _ = sequential(
                draw(rng, truth, draws), looks, plan(looks).levels, 0.05, other_levels(rng, truth, draws)
            )
            shares.append([np.mean(answer == value) for value in (1, 0, -1)])
        stacked = 100 * np.array(shares).T
        axes.stackplot(
            100 * changes, stacked, colors=[COLOURS["holds"], "#d9d9d9", COLOURS["violated"]],
            labels=["holds", "inconclusive", "violated"],
        )  # fmt: skip
        axes.axvline(5, color="black", linewidth=1, linestyle="--")
        axes.set_title(f"{budget} new boot{'s' if budget > 1 else ''}", fontsize=10)
        axes.set_xlabel("true slowdown, %")
        axes.set_xlim(0, 12)
        axes.set_ylim(0, 100)
    panels[0].set_ylabel("% of runs")
    panels[2].legend(loc="center right", fontsize=8)
    save(figure, "answers-by-change")


def save(figure: Any, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.svg"
    # No date and fixed ids, so that the same figures make the same file.
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")


def main() -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "pytest-sglang-perf"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    noise_by_level(plt)
    three_answers(plt)
    answers_by_change(plt)


if __name__ == "__main__":
    main()
