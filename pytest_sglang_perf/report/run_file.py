"""The run file: everything a session measured, claimed and met, as one JSON document.

Filled from test reports in the controller; read by ``sglang-perf report`` and by people's own scripts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import RunFileError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FORMAT", "RunRecord", "read_run"]

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
        self.excused = False
        self.regressions: dict[str, Any] | None = None

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
            "regressions": self.regressions,
            "baselines": self.baselines,
            "problems": self.problems,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunRecord:
        """The opposite of ``to_dict``.

        Raises:
            ValueError: it is not of this shape; the message says where.
        """
        from pytest_sglang_perf.report._shape import problem

        found = problem(data)
        if found is not None:
            raise ValueError(found)
        record = cls()
        record.session = dict(data["session"])
        record.tests = list(data["tests"])
        record.measured = list(data["measured"])
        record.regressions = data.get("regressions")
        record.baselines = list(data.get("baselines") or ())
        record.problems = list(data.get("problems") or ())
        return record


def read_run(path: Path) -> RunRecord:
    """Read a run file, or the ``run.json`` in a folder that ``--sglang-report`` wrote.

    Raises:
        RunFileError: it cannot be read, is damaged, or was written by a newer version.
    """
    if path.is_dir():
        path /= "run.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFileError(f"there is no run file {path}. Write one with:  pytest ... --sglang-report DIR") from None
    except OSError as error:
        raise RunFileError(f"the run file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise RunFileError(f"{path} is not a run file: {error}. It is the run.json of --sglang-report DIR") from None
    version = data.get("format") if isinstance(data, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise RunFileError(
            f"the run file {path} has format {version}, and this version of pytest-sglang-perf reads up to {FORMAT}. "
            "Upgrade pytest-sglang-perf"
        )
    if version != FORMAT or "session" not in data:
        raise RunFileError(f"{path} is not a run file, but some other JSON. It is the run.json of --sglang-report DIR")
    try:
        return RunRecord.from_dict(data)
    except ValueError as error:
        raise RunFileError(f"the run file {path} is damaged: {error}") from None
