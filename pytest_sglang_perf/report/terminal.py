"""The section ``sglang-perf`` at the end of pytest's output: every claim with both sides, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import many
from pytest_sglang_perf.report.decisions import decisions
from pytest_sglang_perf.report.figures import estimate, percent, seconds

if TYPE_CHECKING:
    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["claim_lines", "summary"]

_MARKUP = {
    "holds": {"green": True},
    "recorded": {"green": True},
    "violated": {"red": True},
    "inconclusive": {"yellow": True},
}
_DECISIONS = 6
EXCUSED = "exit status 0: all that failed are regressions that do not survive, and --sglang-inconclusive=warn is set"
_OWN_SECTIONS = ("inconclusive", "no baseline", "not comparable")


def summary(reporter: Any, record: RunRecord) -> None:
    """Write the section; called once, in the controller."""
    for category in _OWN_SECTIONS:
        _own_section(reporter, category)
    session = record.session
    title = "sglang-perf"
    if record.simulated:
        title += f" (simulated node: profile {session.get('profile')}, time x{session.get('time_scale'):g})"
    reporter.write_sep("=", title)
    quiet = reporter.config.option.verbose < 0
    for test in record.tests:
        if test["claims"] and not quiet:
            _test(reporter, test, record)
    _session_answers(reporter, record)
    for text in record.baselines:
        reporter.write_line(text)
    for text in record.problems:
        reporter.write_line(text, red=True)
    for text in decisions(record.measured, ["disabled"])[:_DECISIONS]:
        reporter.write_line(f"sglang by itself: {text[:200]}")
    if record.written:
        reporter.write_line("reports: " + ", ".join(record.written))
    reporter.write_line(cost_line(session))


def _session_answers(reporter: Any, record: RunRecord) -> None:
    """What the session says over its tests: the correction for many claims, and the canary."""
    if record.regressions is not None:
        reporter.write_line(many.line(record.regressions))
    if record.excused:
        reporter.write_line(EXCUSED)
    if canary := record.session.get("canary"):
        reporter.write_line(canary["told"], red=canary["status"] in {"moved", "failed"})


def cost_line(session: dict[str, Any]) -> str:
    """What the session spent, beside what was planned."""
    spent = session.get("spent") or {}
    return (
        f"node {session.get('node')} ({session.get('node_class')}): spent {spent.get('boots', 0)} boots in "
        f"{seconds(spent.get('boot_s', 0.0))} and {spent.get('trials', 0)} trials in "
        f"{seconds(spent.get('trial_s', 0.0))}; planned: {session.get('plan')}"
        + (f" ({session['expected']})" if session.get("expected") else "")
    )


def _test(reporter: Any, test: dict[str, Any], record: RunRecord) -> None:
    name = test["nodeid"]
    control = f", control {test['control']}" if test["control"] else ""
    expected = f" (expected to be {test['expect']}: {test['reason']})" if test["expect"] else ""
    reporter.write_line(f"{name}: server {test['server']}{control}{expected}")
    for claim in test["claims"]:
        tag = "simulated " if record.simulated else ""
        head, *rest = claim_lines(claim)
        reporter.write(f"  {tag}{claim['status']:<12} ", **_MARKUP.get(claim["status"], {}))
        reporter.write_line(head)
        for line in rest:
            reporter.write_line(f"  {tag:<{len(tag)}}{'':<13}{line}")


def claim_lines(claim: dict[str, Any]) -> list[str]:
    """One claim as two or three lines: what was claimed; estimate, interval, reference; the effect."""
    unit = claim["unit"]
    sides = [_side(claim["candidate"], unit)]
    if claim["reference"]:
        sides.append(_side(claim["reference"], unit))
    lines = [claim["text"], "  against  ".join(sides)]
    verdict = claim.get("verdict")
    if verdict and claim["reference"]:
        low, high = verdict["interval"]
        lines.append(
            f"ratio {verdict['effect']:.3f}, {verdict['confidence'] * 100:.0f} % interval [{low:.3f} .. {high:.3f}]"
        )
        if claim.get("looks", {}).get("of", 1) > 1:
            lines[-1] += f" ({claim['looks']['told']})"
        if verdict.get("trend") is not None:
            whole = ", which ABBA pairs cancel" if verdict.get("balanced", True) else ""
            lines.append(f"drift of the node: {percent(verdict['trend'])} a boot{whole}")
    if "survives" in claim and claim["status"] == "violated":
        lines.append(claim["explanation"][-1].strip())
    if verdict and claim["status"] == "inconclusive":
        lines.extend(f"note: {text}" for text in verdict["warnings"] if text.startswith(("unstable:", "void:")))
    if verdict and claim["status"] == "inconclusive" and verdict["more_boots"]:
        lines.append(f"about {verdict['more_boots']} more boots would decide")
    return lines


def _side(side: dict[str, Any], unit: str) -> str:
    boots = "1 boot" if side["boots"] == 1 else f"{side['boots']} boots"
    return f"{side['label']} {estimate(side['value'], side['low'], side['high'], unit)} ({boots})"


def _own_section(reporter: Any, category: str) -> None:
    reports = [r for r in reporter.getreports(category) if r.failed or category == "inconclusive"]
    if not reports:
        return
    reporter.write_sep("=", category.upper())
    for report in reports:
        reporter.write_sep("_", report.head_line or report.nodeid, yellow=True, bold=True)
        text = report.longreprtext if report.longrepr else ""
        for line in text.splitlines():
            reporter.write_line(line)
