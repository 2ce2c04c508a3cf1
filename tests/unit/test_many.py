"""The correction of a session's regressions for their number."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_sglang_perf.many import correct, excused, line


def claim(p: float, *, against: str = "baseline", confidence: float = 0.90) -> dict[str, Any]:
    violated = p < (1 - confidence) / 2
    return {
        "text": "output_throughput >= 0.97 x baseline",
        "status": "violated" if violated else "holds",
        "against": against,
        "explanation": ["violated: ..."],
        "verdict": {"p_value": p, "confidence": confidence},
    }


def case(*claims: dict[str, Any], expect: str | None = None) -> dict[str, Any]:
    error = {"kind": "test", "type": "AssertionError"} if any(c["status"] == "violated" for c in claims) else None
    return {"expect": expect, "claims": list(claims), "error": error}


def test_holm_and_benjamini_hochberg_uphold_what_their_papers_say() -> None:
    p_values = (0.001, 0.02, 0.022, 0.9)
    surviving = {}
    for how in ("holm", "bh"):
        tests = [case(claim(p)) for p in p_values]
        found = correct(tests, how)
        assert found is not None
        assert (found["claims"], found["violated"]) == (4, 3)
        surviving[how] = [test["claims"][0]["survives"] for test in tests]
    assert surviving == {"holm": [True, False, False, False], "bh": [True, True, True, False]}


def test_the_uncorrected_figure_stands_beside() -> None:
    tests = [case(claim(0.02), claim(0.9), claim(0.8))]
    found = correct(tests, "holm")
    assert found is not None
    assert "1 of 3 claims against baselines violated, 0 of them" in line(found)
    assert tests[0]["claims"][0]["explanation"][-1].startswith("  p 0.02 alone, 0.06 among the session's 3 claims")
    assert tests[0]["claims"][0]["verdict"] == {"p_value": 0.02, "confidence": 0.90, "p_corrected": pytest.approx(0.06)}


def test_a_claim_decided_at_an_early_look_is_on_the_same_scale() -> None:
    """At a look that may spend 1 %, p = 0.009 is just enough, as 0.045 is where one look may spend 5 %."""
    tests = [case(claim(0.009, confidence=0.98))]
    correct(tests, "holm")
    assert tests[0]["claims"][0]["verdict"]["p_corrected"] == pytest.approx(0.045)
    assert tests[0]["claims"][0]["survives"]


def test_only_regressions_are_counted() -> None:
    tests = [
        case(claim(0.01, against="control"), claim(0.01, against="")),
        case(claim(0.01), expect="refuted"),
        case(claim(0.0, confidence=1.0)),
        case({**claim(0.5), "verdict": None}),
    ]
    assert correct(tests, "holm") is None
    assert correct([case(claim(0.01))], "none") is None


def test_a_test_is_excused_only_if_nothing_else_failed_it() -> None:
    weak, strong, control = claim(0.04), claim(0.0001), claim(0.04, against="control")
    tests = [case(weak), case(strong), case(control), case(weak, control), case(claim(0.6))]
    correct(tests, "holm")
    assert [excused(test) for test in tests] == [True, False, False, False, False]
    assert not excused({**tests[0], "error": {"kind": "crashed"}})
