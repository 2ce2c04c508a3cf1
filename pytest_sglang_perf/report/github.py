"""Annotations for GitHub Actions, for setup errors too: a boot crash deserves one like any failure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["annotate", "commands"]


def commands(record: RunRecord, workspace: str) -> list[str]:
    """One workflow command per failed test."""
    lines = []
    for test in record.tests:
        if not test["failed"]:
            continue
        path = Path(test["path"])
        shown = path.relative_to(workspace) if workspace and path.is_relative_to(workspace) else path
        text = test["text"] or "\n".join(
            line for claim in test["claims"] if claim["status"] != "holds" for line in claim["explanation"]
        )
        title = f"{test['outcome']}: {test['nodeid'].rsplit('::', 1)[-1]}"
        lines.append(
            f"::error file={_property(str(shown))},line={test['line']},title={_property(title)}::{_data(text or title)}"
        )
    return lines


def annotate(record: RunRecord, environ: Mapping[str, str]) -> None:
    """Print annotations and append the Markdown report to the job's summary, when GitHub Actions runs us."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for line in commands(record, environ.get("GITHUB_WORKSPACE", "")):
        print(line, file=sys.stdout)
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        from pytest_sglang_perf.report import markdown

        try:
            with Path(summary).open("a", encoding="utf-8") as stream:
                stream.write(markdown.render(record))
        except OSError as error:
            record.problems.append(f"the job summary was not written: {error}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
