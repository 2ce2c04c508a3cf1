"""``sglang-perf classify LOG...``: how a server is, or why it ended, from its log alone."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import textwrap
import zlib
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pytest_sglang_perf.server.classify import Classifier
from pytest_sglang_perf.server.facts import BootFacts
from pytest_sglang_perf.server.lines import LineSplitter, parse_line
from pytest_sglang_perf.server.phases import PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.server.diagnosis import Diagnosis

__all__ = ["Report", "classify", "main"]

_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
# What a wrapper script leaves behind the log: `echo rc=$?`.
_STATUS = re.compile(
    r"^(?:rc|exit(?:ed)?(?: with)?(?: code| status)?|return ?code)[ =:]+(-?\d{1,3})\s*$", re.IGNORECASE
)


class Report(NamedTuple):
    """All that one log tells."""

    diagnosis: Diagnosis
    tracker: PhaseTracker
    facts: BootFacts

    def to_dict(self) -> dict[str, object]:
        """Builtin types only."""
        durations = {phase: round(seconds, 3) for phase, seconds in self.tracker.durations.items()}
        return {**self.diagnosis.to_dict(), "durations_s": durations, "facts": dict(self.facts)}


def classify(stream: IO[bytes], *, exit_code: int | None = None) -> Report:
    """Read a log to its end, in bounded memory; ``exit_code`` of the server, where somebody noted it."""
    tracker, facts, splitter = PhaseTracker(), BootFacts(), LineSplitter()
    classifier = Classifier(tracker)
    last = ""
    for lines in chain((splitter.feed(chunk) for chunk in iter(lambda: stream.read(_CHUNK), b"")), [splitter.close()]):
        for number, text in lines:
            if classifier.feed_again(text, number):
                last = text
                continue
            line = parse_line(text, number)
            if not text.startswith("    ") or "[--" in text:  # source lines of tracebacks carry no phase and no fact
                last = text or last
                tracker.feed_line(line)
                facts.feed_line(line)
            classifier.feed_line(line)
    noted = _STATUS.match(last)
    if exit_code is None and noted is not None:
        exit_code = int(noted[1])
    return Report(classifier.finish(exit_code=exit_code), tracker, facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when no log shows a crash, 1 when one does, 2 when one could not be read."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf classify",
        description="Say from an sglang log how the server is, or why it ended. Reads plain and gzipped files of "
        "any size; - is standard input. Exit status: 0 no crash, 1 a crash, 2 unreadable.",
    )
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("--json", action="store_true", help="one JSON object a log, one a line")
    parser.add_argument("--exit-code", type=int, metavar="N", help="how the server's process ended, if you know it")
    options = parser.parse_args(argv)
    status = 0
    for path in options.logs:
        try:
            report = _read(path, options.exit_code)
        except (OSError, EOFError, zlib.error) as error:
            print(f"sglang-perf classify: cannot read {path}: {_reason(error)}", file=sys.stderr)
            status = 2
            continue
        if report.diagnosis.verdict == "crashed" and status == 0:
            status = 1
        if options.json:
            print(json.dumps({"log": path, **report.to_dict()}, ensure_ascii=False))
        else:
            print(render(path, report))
    return status


def _read(path: str, exit_code: int | None) -> Report:
    if path == "-":
        return classify(sys.stdin.buffer, exit_code=exit_code)
    with Path(path).open("rb") as file:
        if file.peek(2)[:2] == _GZIP:
            with gzip.open(file) as unpacked:
                return classify(unpacked, exit_code=exit_code)  # type: ignore[arg-type]
        return classify(file, exit_code=exit_code)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__


def render(path: str, report: Report) -> str:
    """The report for a person, widest 110 columns but for the log's own lines."""
    found = report.diagnosis
    title = found.verdict.upper() + (f": {found.crash_class}" if found.crash_class else "")
    where = f"phase {found.phase}" + (f", sglang {found.version}" if found.version else "")
    lines = [f"{path}: {title} ({where})", f"  {found.cause}."]
    if found.evidence:
        width = len(str(found.evidence[-1][0]))
        lines += ["", "  what the log says"]
        lines += [f"    {number:>{width}} | {text[:400]}" for number, text in found.evidence]
    if found.advice:
        lines += ["", "  what to try"]
        for number, advice in enumerate(found.advice, 1):
            lines += textwrap.wrap(advice, 104, initial_indent=f"    {number}. ", subsequent_indent="       ")
    if found.consequences:
        lines += ["", "  what followed"]
        lines += [f"    {text}" for text in found.consequences]
    if found.links:
        lines += ["", "  see " + " ".join(found.links)]
    disabled = report.facts["disabled"]
    if disabled:
        lines += ["", "  switched off by sglang itself"]
        lines += [f"    {text[:200]}" for text in disabled[:6]]
    return "\n".join(lines) + "\n"
