"""The run file: everything a session measured, claimed and met, as one JSON document.

Filled from test reports in the controller; read by ``sglang-perf report`` and by people's own scripts.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FORMAT", "RunRecord"]

FORMAT = 1


class RunRecord:
    """Gathers the payloads of test reports in the order in which they arrive."""

    def __init__(self) -> None:
        self.session: dict[str, Any] = {}
        self.tests: list[dict[str, Any]] = []
        self.measured: list[dict[str, Any]] = []
        self.baselines: list[str] = []
        self.problems: list[str] = []
        self.written: list[str] = []

    def add(self, payload: dict[str, Any]) -> None:
        self.session = payload["session"]  # the newest knows best what was spent
        self.measured.extend(payload.get("measured") or ())
        if "test" in payload:
            self.tests.append(payload["test"])

    @property
    def simulated(self) -> bool:
        return bool(self.session.get("simulated"))

    def outcomes(self) -> dict[str, int]:
        """How many tests ended how."""
        counts: dict[str, int] = {}
        for test in self.tests:
            counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "session": self.session,
            "outcomes": self.outcomes(),
            "tests": self.tests,
            "measured": self.measured,
            "baselines": self.baselines,
            "problems": self.problems,
        }
