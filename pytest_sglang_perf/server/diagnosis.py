"""What the classifier says about a log."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import Literal

__all__ = ["Diagnosis", "Evidence", "Verdict", "explain_exit"]

Verdict = Literal["healthy", "crashed", "stopped", "unknown"]
Evidence = tuple[int, str]
"""Line number (from 1; 0 for what is not from the log) and text."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How a server is, or how it ended, and why.

    Attributes:
        verdict: ``healthy`` (came up and nothing says that it ended), ``crashed``, ``stopped`` (somebody asked it
            to end), ``unknown`` (still coming up, or the log does not tell).
        crash_class: name of the crash class; empty unless crashed.
        phase: the boot phase at the decisive line; for other verdicts, at the last line.
        cause: one sentence.
        advice: what to try, most promising first.
        links: reports of the same.
        evidence: the decisive lines in order of the log.
        version: the sglang release, as far as the log tells.
        consequences: what followed from the cause, shortly.
    """

    verdict: Verdict
    crash_class: str
    phase: str
    cause: str
    advice: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    version: str | None = None
    consequences: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Builtin types only, for JSON and for process borders."""
        return {
            "verdict": self.verdict,
            "class": self.crash_class or None,
            "phase": self.phase,
            "version": self.version,
            "cause": self.cause,
            "evidence": [{"line": number, "text": text} for number, text in self.evidence],
            "advice": list(self.advice),
            "links": list(self.links),
            "consequences": list(self.consequences),
        }


def explain_exit(code: int | None) -> str:
    """An exit status in words; negative and above 128 mean signals (``-9``, ``137``)."""
    if code is None:
        return "has not ended"
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number:
        try:
            name = signals.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = {
            "SIGKILL": "sglang's own way out after an error, or the kernel's out-of-memory killer",
            "SIGTERM": "somebody asked it to end",
            "SIGINT": "interrupted from a terminal",
            "SIGHUP": "its terminal or SSH session went away",
            "SIGSEGV": "a crash in native code",
            "SIGABRT": "C++ gave up",
            "SIGBUS": "mostly a full /dev/shm",
        }.get(name)
        return f"exit status {code}, {name}" + (f": {hint}" if hint else "")
    meaning = {
        0: "orderly",
        1: "a Python exception",
        2: "the command line was refused",
        3: "uvicorn could not start",
    }
    return f"exit status {code}" + (f": {meaning[code]}" if code in meaning else "")
