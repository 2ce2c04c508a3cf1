"""What one test's report carries home: its outcome, its claims and what was measured, in builtin types only.

Under xdist the report crosses a process border; a numpy float in it would end the whole session.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import CrashedUnderLoad, ServerCrashed, SessionVoid, SglangPerfError, TrialInvalid
from pytest_sglang_perf.outcome import decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_sglang_perf.claims import Claim
    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.session import PerfSession

__all__ = ["CATEGORY", "PAYLOAD", "enrich"]

#: Attributes of a report; plain values, because reports are serialised by their ``__dict__``.
CATEGORY = "sglang_category"
PAYLOAD = "sglang_perf"


def enrich(
    report: pytest.TestReport,
    call: pytest.CallInfo[None],
    declaration: Declaration,
    claims: Sequence[Claim],
    session: PerfSession,
) -> None:
    """Give the report its outcome and its payload."""
    error = call.excinfo.value if call.excinfo is not None else None
    if report.when in {"setup", "call"} and not report.skipped and (error is not None or report.when == "call"):
        outcome = decide(
            error=error,
            claims=claims,
            expect=declaration.expect,
            reason=declaration.reason,
            crash=declaration.crash,
            inconclusive=session.options.inconclusive,
        )
        if outcome is not None:
            report.outcome = outcome.result  # type: ignore[assignment]
            setattr(report, CATEGORY, outcome.category)
            if outcome.result == "skipped":
                report.wasxfail = f"{outcome.category}: {outcome.text}"
                report.longrepr = None
            elif outcome.text is not None:
                report.longrepr = f"{outcome.text}\n\n{declaration.path}:{declaration.line}: {declaration.nodeid}"
    if isinstance(error, SessionVoid) and report.when == "teardown":
        report.longrepr = str(error)
    if claims and report.when == "call" and report.failed:
        table = "\n".join("\n".join(claim.explain()) for claim in claims)
        report.sections.append(("sglang-perf claims", table))
    if claims and report.when == "call":
        # For JUnit, where a third outcome has no place: each claim is a property of the test case.
        report.user_properties.extend(("sglang_perf_claim", f"{claim.status}: {claim.text}") for claim in claims)
    payload = _payload(report, declaration, claims, session, error)
    if payload is not None:
        setattr(report, PAYLOAD, payload)


def _payload(
    report: pytest.TestReport,
    declaration: Declaration,
    claims: Sequence[Claim],
    session: PerfSession,
    error: BaseException | None,
) -> dict[str, Any] | None:
    measured = session.take_measured()
    told = report.when == "call" or (report.when == "setup" and not report.passed)
    if not told and not measured and not session.closed:
        return None
    payload: dict[str, Any] = {"session": session.summary(), "measured": measured}
    if told:
        payload["test"] = {
            "nodeid": declaration.nodeid,
            "server": declaration.server,
            "control": declaration.control,
            "workload": declaration.workload,
            "levels": list(declaration.levels),
            "expect": declaration.expect,
            "reason": declaration.reason,
            "outcome": getattr(report, CATEGORY, "") or str(report.outcome),
            "failed": bool(report.failed),
            "when": str(report.when),
            "text": str(report.longrepr or "") if isinstance(error, SglangPerfError) else "",
            "error": _error(error),
            "claims": [claim_dict(claim) for claim in claims],
            "path": str(declaration.path),
            "line": declaration.line,
        }
    return payload


def _error(error: BaseException | None) -> dict[str, Any] | None:
    if isinstance(error, ServerCrashed):
        found: dict[str, Any] = {
            "kind": "crashed",
            "server": error.server,
            "class": error.crash_class,
            "phase": error.phase,
        }
        if isinstance(error, CrashedUnderLoad):
            found.update(level=error.level, requests=error.requests)
        return found
    if isinstance(error, TrialInvalid):
        return {"kind": "invalid"}
    if isinstance(error, SglangPerfError):
        return {"kind": type(error).__name__}
    return {"kind": "test", "type": type(error).__name__} if error is not None else None


def claim_dict(claim: Claim) -> dict[str, Any]:
    """A claim in builtin types, with its explanation as people read it."""
    found: dict[str, Any] = {
        "text": claim.text,
        "metric": claim.metric,
        "unit": claim.unit,
        "op": claim.op,
        "bound": claim.bound,
        "level": claim.level,
        "status": claim.status,
        "against": claim.against,
        "simulated": claim.simulated,
        "candidate": asdict(claim.candidate),
        "reference": asdict(claim.reference) if claim.reference is not None else None,
        "explanation": claim.explain(),
        "blame": claim.blame,
    }
    if claim.verdict is not None:
        low, high = claim.verdict.interval
        found["verdict"] = {
            "effect": float(claim.verdict.effect),
            "interval": [float(low), float(high)],
            "confidence": float(claim.verdict.confidence),
            "method": str(claim.verdict.method),
            "more_boots": claim.more_boots,
            "warnings": [str(w) for w in claim.verdict.warnings],
            "p_value": float(claim.verdict.p_value),
            "trend": claim.verdict.trend,
            "balanced": claim.verdict.balanced,
        }
    if claim.plan is not None:
        found["looks"] = {
            "taken": claim.plan.taken,
            "of": len(claim.plan.looks),
            "error_spent": claim.plan.error_spent(),
            "told": claim.looks(),
        }
    return found
