"""Progress while a test runs: one live line where the terminal allows, plain lines in CI, nothing otherwise."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from pytest_sglang_perf.report.figures import figure, seconds

if TYPE_CHECKING:
    import pytest

    from pytest_sglang_perf.trials import TrialRecord

__all__ = ["Live", "QuietLive", "TerminalLive"]


class Live(Protocol):
    """What the bench tells while it works."""

    def boot(self, server: str, number: int, progress: str, elapsed_s: float) -> None: ...
    def phase(self, server: str, number: int, phase: str, entered_s: float) -> None: ...
    def trial(self, label: str, event: dict[str, Any], began: float) -> None: ...
    def trial_done(self, label: str, record: TrialRecord) -> None: ...
    def note(self, text: str) -> None: ...
    def done(self, text: str) -> None: ...
    def start_test(self) -> None: ...


class QuietLive:
    """Shows nothing: for xdist workers, whose output nobody sees, and for ``-q``."""

    def boot(self, server: str, number: int, progress: str, elapsed_s: float) -> None: ...
    def phase(self, server: str, number: int, phase: str, entered_s: float) -> None: ...
    def trial(self, label: str, event: dict[str, Any], began: float) -> None: ...
    def trial_done(self, label: str, record: TrialRecord) -> None: ...
    def note(self, text: str) -> None: ...
    def done(self, text: str) -> None: ...
    def start_test(self) -> None: ...


class TerminalLive:
    """Writes past pytest's capture to the real terminal.

    On a terminal, one line is rewritten; elsewhere each phase and each finished step gets a line of its own.
    """

    REFRESH_S = 0.2

    def __init__(self, config: pytest.Config, stream: TextIO | None = None, *, simulated: bool = False) -> None:
        self._capture = config.pluginmanager.getplugin("capturemanager")
        self._stream = stream if stream is not None else sys.__stderr__
        self._tty = bool(self._stream and self._stream.isatty())
        self._shown = ""
        self._last = 0.0
        self._fresh_line = False
        self._tag = "[simulated] " if simulated else ""

    def boot(self, server: str, number: int, progress: str, elapsed_s: float) -> None:
        """What a boot does now, ``elapsed_s`` after its spawn: the line that is rewritten."""
        if self._tty:
            self._rewrite(f"{server}: boot {number}: {progress} ({seconds(elapsed_s)})")

    def phase(self, server: str, number: int, phase: str, entered_s: float) -> None:
        """A boot entered a phase, ``entered_s`` after its spawn: a line of its own where none is rewritten."""
        if not self._tty:
            self._line(f"{server}: boot {number}: {phase} ({seconds(entered_s)})")

    def trial(self, label: str, event: dict[str, Any], began: float) -> None:
        if self._tty:
            running, ok, failed = event.get("running", 0), event.get("ok", 0), event.get("failed", 0)
            text = f"{label}: {ok} done, {running} running"
            if failed:
                text += f", {failed} FAILED"
            self._rewrite(f"{text} ({seconds(time.monotonic() - began)})")

    def trial_done(self, label: str, record: TrialRecord) -> None:
        throughput = record.values.get("output_throughput")
        text = label
        if throughput is not None:
            text += f": {figure(throughput, 'tok/s')}"
        power = record.values.get("power_draw_per_gpu")
        if power is not None:
            text += f", {figure(power, 'W')} per GPU"
        self._line(text)

    def note(self, text: str) -> None:
        self._line(text)

    def done(self, text: str) -> None:
        self._line(text)

    def _rewrite(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < self.REFRESH_S:
            return
        self._last = now
        self._write(f"\r\x1b[2K  {self._tag}{text[:150]}")
        self._shown = text

    def _line(self, text: str) -> None:
        if self._tty:
            self._write(f"\r\x1b[2K  {self._tag}{text}\n")
        else:
            self._write(f"{'' if self._fresh_line else chr(10)}  {self._tag}{text}\n")
        self._shown = ""
        self._fresh_line = True

    def start_test(self) -> None:
        """Pytest has written its own dots since: begin the next plain line anew."""
        self._fresh_line = False

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        if self._capture is not None:
            with self._capture.global_and_fixture_disabled():
                self._stream.write(text)
                self._stream.flush()
        else:
            self._stream.write(text)
            self._stream.flush()
