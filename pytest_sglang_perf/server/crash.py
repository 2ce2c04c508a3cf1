"""The text of a crash: cause and next step first, then the decisive lines, then where the whole log is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf.report.figures import seconds
from pytest_sglang_perf.server.diagnosis import explain_exit

if TYPE_CHECKING:
    from pytest_sglang_perf.server.boot import Boot
    from pytest_sglang_perf.server.diagnosis import Diagnosis

__all__ = ["crash_report"]


def crash_report(boot: Boot, diagnosis: Diagnosis, *, level: float = 0, requests: int = 0) -> tuple[str, str]:
    """Return the message for the test and the crash class."""
    name = boot.server.name
    crash_class = diagnosis.crash_class or "unknown"
    if level:
        head = (
            f'sglang server "{name}" crashed under load at concurrency {level}, '
            f"after {requests} finished requests: {crash_class}"
        )
    else:
        head = (
            f'sglang server "{name}" did not start: {crash_class} in phase {diagnosis.phase or boot.tracker.current}, '
            f"{seconds(boot.elapsed_s)} after the launch"
        )
    lines = [head]
    if diagnosis.cause:
        lines.append(f"  cause   {diagnosis.cause}")
    lines.extend(f"  {'try' if i == 0 else '':<7} {text}" for i, text in enumerate(diagnosis.advice))
    lines.append(f"  ended   {_ended(boot)}")
    if boot.evidence is not None:
        label = ""
        for what, text in boot.evidence.lines():
            lines.append(f"  {what if what != label else '':<7} {_shorten(text)}")
            label = what
    if diagnosis.links:
        lines.append(f"  see     {' '.join(diagnosis.links[:2])}")
    if diagnosis.evidence:
        lines.append("  log")
        lines.extend(f"  {number:>7} | {_shorten(text)}" for number, text in diagnosis.evidence[:12])
    if boot.log_path:
        lines.append(f"  whole log on the node: {boot.log_path}")
    return "\n".join(lines), crash_class


def _ended(boot: Boot) -> str:
    children = [f"{c.get('title') or 'child'} (pid {c.get('pid')}) died" for c in boot.dead_children]
    event = boot.exit_event
    if event is None:
        ended = "the server's parent process was still alive; it was stopped"
        if not boot.log_path:
            ended = "nothing was launched"
    else:
        ended = explain_exit(int(event["code"]) if event.get("code") is not None else None)
    return "; ".join([*children, ended])


def _shorten(text: str, width: int = 200) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
