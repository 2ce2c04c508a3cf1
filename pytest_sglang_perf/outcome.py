"""From claims and errors to the outcome of a test: a pure function, so that every row of its table has a test.

Outcomes beyond pytest's own: ``inconclusive``, ``no baseline``, ``not comparable``, ``recorded``, and for met
expectations ``refuted`` and ``blocked``. Anything that is not exactly what was expected is a failure that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import NoBaseline, NotComparable, ServerCrashed, SglangPerfError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.claims import Claim

__all__ = ["CATEGORIES", "Outcome", "decide"]

#: category -> (letter, word, markup) as pytest's status line shows them.
CATEGORIES: dict[str, tuple[str, str, dict[str, bool]]] = {
    "inconclusive": ("I", "INCONCLUSIVE", {"yellow": True}),
    "no baseline": ("B", "NO BASELINE", {"yellow": True}),
    "not comparable": ("N", "NOT COMPARABLE", {"yellow": True}),
    "recorded": ("r", "RECORDED", {"green": True}),
    "refuted": ("x", "REFUTED (as expected)", {"green": True}),
    "blocked": ("x", "BLOCKED (as expected)", {"green": True}),
}


@dataclass(frozen=True)
class Outcome:
    """What a report becomes.

    ``result`` is pytest's: passed, failed, or skipped (with ``wasxfail``) for a met expectation. ``category`` is
    ours, empty for pytest's own. ``text`` replaces the traceback when it is not None.
    """

    result: str
    category: str = ""
    text: str | None = None


def decide(
    *,
    error: BaseException | None,
    claims: Sequence[Claim],
    expect: str | None,
    reason: str,
    crash: str | None,
    inconclusive: str,
) -> Outcome | None:
    """Return the outcome of one phase of a test, or None to leave pytest's own.

    Args:
        error: what ended the phase, or None.
        claims: all claims of the test so far, in order.
        expect: ``refuted``, ``blocked`` or None.
        reason: why that is expected.
        crash: the crash class that ``blocked`` asks for.
        inconclusive: ``fail`` or ``warn``.
    """
    if expect == "blocked":
        return _blocked(error, reason, crash)
    if expect == "refuted":
        return _refuted(error, claims, reason, inconclusive)
    if error is not None:
        return _error(error)
    worst = min((c.rank for c in claims), default=None)
    if worst is None:
        return None
    statuses = {claim.status for claim in claims}
    if "inconclusive" in statuses:
        return _cannot_tell(claims, inconclusive, head="cannot tell yet")
    if "recorded" in statuses:
        return Outcome("passed", "recorded")
    return None


def _error(error: BaseException) -> Outcome | None:
    if isinstance(error, NoBaseline):
        return Outcome("failed", "no baseline", str(error))
    if isinstance(error, NotComparable):
        return Outcome("failed", "not comparable", str(error))
    if isinstance(error, SglangPerfError):
        return Outcome("failed", "", str(error))
    return None


def _cannot_tell(claims: Sequence[Claim], inconclusive: str, *, head: str) -> Outcome:
    lines = [f"{head}, and here is what would settle it:"]
    for claim in claims:
        if claim.status == "inconclusive":
            lines.extend(claim.explain())
    return Outcome("failed" if inconclusive == "fail" else "passed", "inconclusive", "\n".join(lines))


def _blocked(error: BaseException | None, reason: str, crash: str | None) -> Outcome | None:
    if isinstance(error, ServerCrashed):
        if crash is None or crash == error.crash_class:
            return Outcome("skipped", "blocked", reason)
        return Outcome(
            "failed",
            "",
            f'expected to be blocked by "{crash}" ({reason}), but the server crashed otherwise:\n{error}',
        )
    if error is None:
        return Outcome(
            "failed",
            "",
            f"expected to be blocked ({reason}), but the server is up and the test passed. "
            'If the obstacle is gone, remove expect="blocked" and let the hypothesis be judged.',
        )
    if isinstance(error, SglangPerfError):
        return Outcome("failed", "", f"expected a server crash ({reason}), but something else went wrong:\n{error}")
    return None


def _refuted(error: BaseException | None, claims: Sequence[Claim], reason: str, inconclusive: str) -> Outcome | None:
    if isinstance(error, AssertionError) and any(c.status == "violated" for c in claims):
        return Outcome("skipped", "refuted", reason)
    if error is not None:
        if isinstance(error, NoBaseline | NotComparable):
            return _error(error)
        if isinstance(error, SglangPerfError):
            return Outcome("failed", "", f"expected to be refuted ({reason}), but there is no verdict:\n{error}")
        return None
    if any(claim.status == "inconclusive" for claim in claims):
        return _cannot_tell(claims, inconclusive, head=f"expected to be refuted ({reason}), but this run cannot tell")
    if any(claim.status == "recorded" for claim in claims):
        return Outcome("passed", "recorded")
    if not claims:
        return Outcome("failed", "", f"expected to be refuted ({reason}), but the test made no claim")
    lines = [f"expected to be refuted ({reason}), but it holds now:"]
    for claim in claims:
        lines.extend(claim.explain())
    lines.append('If the world changed, remove expect="refuted" and keep the hypothesis.')
    return Outcome("failed", "", "\n".join(lines))
