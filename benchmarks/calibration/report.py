"""Markdown, and what was promised beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def rate(flags: np.ndarray) -> float:
    return float(np.mean(flags))


@dataclass
class Report:
    """Collects sections and targets, and prints as it goes."""

    lines: list[str] = field(default_factory=list)
    targets: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        self.lines.extend(lines)
        for line in lines:
            print(line, flush=True)

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        self.say("", "| " + " | ".join(head) + " |", "|" + "---|" * len(head))
        self.say(*("| " + " | ".join(row) + " |" for row in rows), "")

    def target(self, what: str, wanted: str, got: str, *, met: bool) -> None:
        self.targets.append((what, wanted, got, met))

    def summary(self) -> list[str]:
        rows = [
            f"| {what} | {wanted} | {got} | {'yes' if met else '**no**'} |" for what, wanted, got, met in self.targets
        ]
        return ["", "| what | wanted | measured | met |", "|---|---|---|---|", *rows, ""]
