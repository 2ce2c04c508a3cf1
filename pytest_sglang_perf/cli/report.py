"""``sglang-perf report RUN``: a run's report again, as Markdown or as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_sglang_perf.baselines import write_atomically
from pytest_sglang_perf.cli._console import emit
from pytest_sglang_perf.errors import RunFileError
from pytest_sglang_perf.report import markdown
from pytest_sglang_perf.report.run_file import read_run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Returns 0: the report was written, whatever it says."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf report",
        description="Write the report of a run again. Without --html and --markdown, Markdown goes to standard output. "
        "Exit status: 0 written, whatever the run's outcome; 2 the run cannot be read or the file not written.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run.json of --sglang-report DIR, or its folder")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown")
    parser.add_argument("--json", action="store_true", help="outcomes and files written, as one JSON document")
    options = parser.parse_args(argv)
    record = read_run(options.run)
    written = []
    if options.html is not None:
        from pytest_sglang_perf.report import html

        written.append(_write(options.html, html.render(record)))
    if options.markdown is not None:
        written.append(_write(options.markdown, markdown.render(record)))
    if options.json:
        session = record.session
        emit(
            {
                "run": session.get("run"),
                "node": session.get("node"),
                "node_class": session.get("node_class"),
                "simulated": record.simulated,
                "outcomes": record.outcomes(),
                "tests": len(record.tests),
                "problems": record.problems,
                "written": written,
            }
        )
    elif written:
        print("\n".join(written))
    else:
        sys.stdout.write(markdown.render(record))
    return 0


def _write(path: Path, text: str) -> str:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from None
    return str(path)
