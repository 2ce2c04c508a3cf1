"""Many regressions in one session: which of the violated ones remain when their number is allowed for.

A test answers for its own claims, and its outcome is final when pytest reports it. Forty such answers at 5 % bring two
false alarms to every calm session, so the session has an answer of its own: at its end the claims against baselines are
corrected together, and a regression that does not survive is called inconclusive by the session. Only the controller
comes here, with what all workers' reports brought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pytest_sglang_perf import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ALPHA", "CORRECTIONS", "Correction", "correct", "excused", "line"]

Correction = Literal["holm", "bh", "none"]
CORRECTIONS = ("holm", "bh", "none")

#: Of a claim alone, and of all of them together: the chance of any false alarm (Holm), or the share of false ones among
#: the alarms (Benjamini-Hochberg).
ALPHA = 0.05


def correct(tests: Sequence[Mapping[str, Any]], how: str) -> dict[str, Any] | None:
    """Write ``p_corrected`` and ``survives`` beside each regression's ``p_value``, and sum up.

    Args:
        tests: as the run file has them; their claims are changed.
        how: ``holm``, ``bh`` or ``none``.

    Returns:
        ``how``, ``claims`` (judged against a baseline), ``violated`` and ``surviving``; None where there is nothing to
        correct.
    """
    claims = list(_family(tests))
    if how == "none" or not claims:
        return None
    adjust = verdict.holm if how == "holm" else verdict.benjamini_hochberg
    corrected = adjust([_p_value(claim) for claim in claims])
    for claim, p in zip(claims, corrected, strict=True):
        claim["verdict"]["p_corrected"] = p
        claim["survives"] = claim["status"] == "violated" and p <= ALPHA
        if claim["status"] == "violated":
            claim["explanation"].append(f"  {told(claim, len(claims), how)}")
    return {
        "how": how,
        "claims": len(claims),
        "violated": sum(claim["status"] == "violated" for claim in claims),
        "surviving": sum(claim["survives"] for claim in claims),
    }


def line(found: Mapping[str, Any]) -> str:
    """What `correct` returned, in words."""
    if not found["violated"]:
        return f"regressions: none among {found['claims']} claims against baselines"
    return (
        f"regressions: {found['violated']} of {found['claims']} claims against baselines violated, "
        f"{found['surviving']} of them after the correction for their number ({found['how']}, 5 %)"
    )


def told(claim: Mapping[str, Any], of: int, how: str) -> str:
    """A violated claim's p-value alone and among all, in words."""
    alone, corrected = _p_value(claim), claim["verdict"]["p_corrected"]
    words = "survives" if claim["survives"] else "does not survive, so the session cannot tell"
    return f"p {alone:.2g} alone, {corrected:.2g} among the session's {of} claims against baselines ({how}): {words}"


def excused(test: Mapping[str, Any]) -> bool:
    """Whether a failed test failed by nothing but regressions that the session does not uphold."""
    violated = [claim for claim in test["claims"] if claim["status"] == "violated"]
    by_claims = (test.get("error") or {}).get("type") == "AssertionError"
    return by_claims and bool(violated) and all(claim.get("survives") is False for claim in violated)


def _family(tests: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Claims against baselines that were judged by statistics, but those that are expected to be refuted."""
    for test in tests:
        if test.get("expect") == "refuted":
            continue
        for claim in test["claims"]:
            found = claim.get("verdict")
            if found and claim.get("against") == "baseline" and found["confidence"] < 1:
                yield claim


def _p_value(claim: Mapping[str, Any]) -> float:
    """On the scale of one look: a claim is violated where this is below 5 %, whatever look it was decided at.

    A look of a sequential plan spends less than the 5 % of the plan, and its p-value counts for as much more.
    """
    level = (1 - claim["verdict"]["confidence"]) / 2
    alone: float = claim["verdict"]["p_value"]
    return float(min(1.0, alone * max(ALPHA / level, 1.0)))
