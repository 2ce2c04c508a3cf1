"""Every row of the table from claims and errors to outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_sglang_perf.claims import Claim, Shown
from pytest_sglang_perf.errors import (
    ConnectionLost,
    CrashedUnderLoad,
    MetricAbsent,
    NoBaseline,
    NotComparable,
    ServerCrashed,
)
from pytest_sglang_perf.outcome import CATEGORIES, Outcome, decide

SIDE = Shown(label="now", value=100.0, low=99.0, high=101.0, boots=1, trials=3)


def claim(status: str) -> Claim:
    return Claim(
        text="output_throughput >= 0.97 x baseline",
        metric="output_throughput",
        unit="tok/s",
        op=">=",
        bound=0.97,
        candidate=SIDE,
        reference=SIDE,
        verdict=None,
        status=status,
        where="test_x.py::test_x",
    )


def outcome(**overrides: Any) -> Outcome | None:
    arguments: dict[str, Any] = {
        "error": None,
        "claims": [],
        "expect": None,
        "reason": "2026-02-19: no effect",
        "crash": None,
        "inconclusive": "fail",
    }
    return decide(**{**arguments, **overrides})


class TestWithoutExpectation:
    def test_a_pass_stays_pytests_own(self) -> None:
        assert outcome(claims=[claim("holds")]) is None
        assert outcome() is None

    def test_one_inconclusive_claim_decides_over_those_that_hold(self) -> None:
        found = outcome(claims=[claim("holds"), claim("inconclusive"), claim("holds")])
        assert found is not None
        assert (found.result, found.category) == ("failed", "inconclusive")
        assert found.text is not None
        assert found.text.count("inconclusive:") == 1

    def test_warn_passes_but_keeps_the_word(self) -> None:
        found = outcome(claims=[claim("inconclusive")], inconclusive="warn")
        assert found is not None
        assert (found.result, found.category) == ("passed", "inconclusive")

    def test_a_failed_assertion_stays_a_failure_whatever_else_was_claimed(self) -> None:
        assert outcome(error=AssertionError(), claims=[claim("inconclusive"), claim("violated")]) is None

    def test_recorded(self) -> None:
        assert outcome(claims=[claim("recorded"), claim("holds")]) == Outcome("passed", "recorded")

    @pytest.mark.parametrize(
        ("error", "category"),
        [
            (NoBaseline("none"), "no baseline"),
            (NotComparable("other"), "not comparable"),
            (MetricAbsent("no GPU"), ""),
            (ServerCrashed("boom"), ""),
            (ConnectionLost("gone"), ""),
        ],
    )
    def test_our_errors_fail_with_their_message_and_no_traceback(self, error: Exception, category: str) -> None:
        assert outcome(error=error) == Outcome("failed", category, str(error))

    def test_other_errors_stay_pytests_own(self) -> None:
        assert outcome(error=ZeroDivisionError()) is None


class TestExpectedToBeRefuted:
    def test_met_by_a_violated_claim(self) -> None:
        found = outcome(expect="refuted", error=AssertionError(), claims=[claim("holds"), claim("violated")])
        assert found == Outcome("skipped", "refuted", "2026-02-19: no effect")

    @pytest.mark.parametrize("claims", [[], [claim("holds")], [claim("inconclusive")]])
    def test_not_met_by_another_assertion(self, claims: list[Claim]) -> None:
        assert outcome(expect="refuted", error=AssertionError(), claims=claims) is None

    def test_holding_now_is_a_failure_that_says_so(self) -> None:
        found = outcome(expect="refuted", claims=[claim("holds")])
        assert found is not None
        assert found.result == "failed"
        assert found.text is not None
        assert "it holds now" in found.text

    @pytest.mark.parametrize("mode", ["fail", "warn"])
    def test_inconclusive_does_not_meet_it(self, mode: str) -> None:
        found = outcome(expect="refuted", claims=[claim("inconclusive")], inconclusive=mode)
        assert found is not None
        assert found.category == "inconclusive"
        assert found.result == ("failed" if mode == "fail" else "passed")

    def test_no_claim_is_a_failure(self) -> None:
        found = outcome(expect="refuted")
        assert found is not None
        assert found.result == "failed"

    @pytest.mark.parametrize("error", [ServerCrashed("boom"), ConnectionLost("gone"), MetricAbsent("no")])
    def test_not_met_by_an_error(self, error: Exception) -> None:
        found = outcome(expect="refuted", error=error, claims=[claim("violated")])
        assert found is not None
        assert found.result == "failed"
        assert str(error) in str(found.text)

    def test_no_baseline_keeps_its_own_outcome(self) -> None:
        found = outcome(expect="refuted", error=NoBaseline("none"))
        assert found is not None
        assert found.category == "no baseline"

    def test_recorded_while_recording(self) -> None:
        assert outcome(expect="refuted", claims=[claim("recorded")]) == Outcome("passed", "recorded")


class TestExpectedToBeBlocked:
    @pytest.mark.parametrize(
        "error", [ServerCrashed("boom", crash_class="oom"), CrashedUnderLoad("b", crash_class="oom")]
    )
    @pytest.mark.parametrize("crash", [None, "oom"])
    def test_met_by_a_crash(self, error: Exception, crash: str | None) -> None:
        assert outcome(expect="blocked", error=error, crash=crash) == Outcome(
            "skipped", "blocked", "2026-02-19: no effect"
        )

    def test_not_met_by_another_crash(self) -> None:
        found = outcome(expect="blocked", error=ServerCrashed("boom", crash_class="bad-flag"), crash="oom")
        assert found is not None
        assert found.result == "failed"
        assert "otherwise" in str(found.text)

    @pytest.mark.parametrize("error", [ConnectionLost("gone"), NoBaseline("none"), MetricAbsent("no")])
    def test_not_met_by_other_errors(self, error: Exception) -> None:
        found = outcome(expect="blocked", error=error)
        assert found is not None
        assert found.result == "failed"

    def test_coming_up_is_a_failure_that_says_so(self) -> None:
        found = outcome(expect="blocked")
        assert found is not None
        assert found.result == "failed"
        assert "the server is up" in str(found.text)

    def test_not_met_by_a_violated_claim(self) -> None:
        assert outcome(expect="blocked", error=AssertionError(), claims=[claim("violated")]) is None


def test_letters_are_single_and_words_are_there() -> None:
    for letter, word, markup in CATEGORIES.values():
        assert len(letter) == 1
        assert word.isprintable()
        assert markup
