"""What the controller does once, when all tests are through: baselines, history, run file, Markdown, annotations."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_sglang_perf.baselines import write_atomically
from pytest_sglang_perf.canary import void, voids
from pytest_sglang_perf.errors import BaselineError, SglangPerfError
from pytest_sglang_perf.many import correct
from pytest_sglang_perf.recording import update_baselines, write_history
from pytest_sglang_perf.report import github, markdown

if TYPE_CHECKING:
    from pytest_sglang_perf.options import Options
    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["finish"]


def finish(record: RunRecord, options: Options, baselines: Path) -> list[str]:
    """Write everything that is asked for; return what went wrong, each with where the data is safe."""
    record.regressions = correct(record.tests, record.session.get("correction", "none"))
    canary = record.session.get("canary")
    if canary is not None and voids(canary):
        void(record.tests, canary)
        if options.update_baselines:
            record.baselines = ["baselines unchanged: the session is void"]
        _report(record, options)
        return record.problems
    if options.update_baselines:
        try:
            record.baselines = update_baselines(record, baselines)
        except (BaselineError, OSError) as error:
            rescue = _rescue(record)
            record.problems.append(f"{error}\nwhat was measured is safe in {rescue}")
    try:
        write_history(record, baselines)
    except (BaselineError, OSError) as error:
        record.problems.append(f"the history beside the baselines was not written: {error}")
    _report(record, options)
    return record.problems


def _report(record: RunRecord, options: Options) -> None:
    if options.report is not None:
        try:
            _write_reports(record, options.report)
        except (OSError, SglangPerfError) as error:
            record.problems.append(f"--sglang-report: {error}")
    github.annotate(record, os.environ)


def _write_reports(record: RunRecord, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.to_dict(), indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(folder / "run.json", text)
    write_atomically(folder / "report.md", markdown.render(record))
    record.written = [str(folder / "run.json"), str(folder / "report.md")]
    from pytest_sglang_perf.report import html  # only who asks for a report waits for its template engine

    write_atomically(folder / "report.html", html.render(record))
    record.written.append(str(folder / "report.html"))


def _rescue(record: RunRecord) -> Path:
    handle, name = tempfile.mkstemp(prefix="sglang-perf-rescued-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(record.to_dict(), stream)
    return Path(name)
