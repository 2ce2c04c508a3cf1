"""What comparisons of estimates mean in Python: flips, factors, truth, negation."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_sglang_perf.claims import Claim, Quantity, Shown
from pytest_sglang_perf.errors import VerdictError

if TYPE_CHECKING:
    from collections.abc import Callable

THROUGHPUT: Any = SimpleNamespace(name="output_throughput", unit="tok/s", better="higher", exact=False)
TTFT: Any = SimpleNamespace(name="ttft_p50", unit="s", better="lower", exact=False)
SHOWN = Shown(label="now", value=1402.0, low=1380.0, high=1424.0, boots=1, trials=3)


@dataclass
class Asked:
    candidate: Quantity
    op: str
    reference: Quantity | float
    within: float | None


class FakeJudge:
    """Records what it is asked, and answers what the test wants."""

    def __init__(self, status: str = "holds") -> None:
        self.status = status
        self.asked: list[Asked] = []

    def judge(self, candidate: Quantity, op: str, reference: Quantity | float, *, within: float | None = None) -> Claim:
        self.asked.append(Asked(candidate, op, reference, within))
        return make_claim(self.status)


def make_claim(status: str) -> Claim:
    return Claim(
        text="output_throughput >= 0.97 x baseline at concurrency 1024",
        metric="output_throughput",
        unit="tok/s",
        op=">=",
        bound=0.97,
        candidate=SHOWN,
        reference=replace(SHOWN, label="baseline", value=1520.0, boots=5, trials=15),
        verdict=None,
        status=status,
        where="test_x",
    )


@pytest.fixture
def judge() -> FakeJudge:
    return FakeJudge()


@pytest.fixture
def now(judge: FakeJudge) -> Quantity:
    return Quantity(judge, "now", object(), THROUGHPUT)


@pytest.fixture
def stored(judge: FakeJudge) -> Quantity:
    return Quantity(judge, "baseline", object(), THROUGHPUT)


@pytest.mark.parametrize(
    ("write", "op"),
    [
        (lambda now, stored: now >= 0.97 * stored, ">="),
        (lambda now, stored: now > stored * 0.97, ">="),
        (lambda now, stored: 0.97 * stored <= now, ">="),
        (lambda now, stored: stored / (1 / 0.97) < now, ">="),
        (lambda now, stored: now <= 0.97 * stored, "<="),
        (lambda now, stored: 0.97 * stored >= now, "<="),
    ],
)
def test_however_it_is_written_the_candidate_comes_first(
    write: Callable[[Quantity, Quantity], Claim], op: str, judge: FakeJudge, now: Quantity, stored: Quantity
) -> None:
    write(now, stored)
    (asked,) = judge.asked
    assert asked.candidate.side == "now"
    assert asked.op == op
    assert isinstance(asked.reference, Quantity)
    assert asked.reference.factor == pytest.approx(0.97)


def test_a_number_is_an_absolute_limit(judge: FakeJudge, now: Quantity) -> None:
    assert now >= 1500
    assert now >= 1500
    assert [(a.op, a.reference) for a in judge.asked] == [(">=", 1500.0), (">=", 1500.0)]


def test_a_chained_comparison_asks_twice(judge: FakeJudge, now: Quantity) -> None:
    assert 1000 <= now <= 2000
    assert [a.op for a in judge.asked] == [">=", "<="]


def test_equals_carries_its_width(judge: FakeJudge, now: Quantity, stored: Quantity) -> None:
    assert now.equals(stored, within=0.03)
    assert judge.asked[0].within == 0.03


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda now, stored: now == stored,
        lambda now, stored: now != stored,
        lambda now, stored: now >= now,
        lambda now, stored: now >= "1500",
        lambda now, stored: now >= True,
        lambda now, stored: -1 * now,
        lambda now, stored: True * now,
        lambda now, stored: now / 0,
        lambda now, stored: now * float("nan"),
        lambda now, stored: bool(now),
        lambda now, stored: now.equals(stored, within=1.5),
        lambda now, stored: now.equals(1500, within=0.1),
    ],
)
def test_nonsense_is_told_what_to_write_instead(
    nonsense: Callable[[Quantity, Quantity], object], now: Quantity, stored: Quantity
) -> None:
    with pytest.raises(VerdictError):
        nonsense(now, stored)


def test_different_metrics_are_not_compared(judge: FakeJudge, now: Quantity) -> None:
    with pytest.raises(VerdictError, match="different metrics"):
        operator.ge(now, Quantity(judge, "baseline", object(), TTFT))


@pytest.mark.parametrize(
    ("status", "truth"), [("holds", True), ("inconclusive", True), ("recorded", True), ("violated", False)]
)
def test_only_violated_is_false(status: str, truth: bool) -> None:
    assert bool(make_claim(status)) is truth


def test_not_is_refused_and_jumps_are_not() -> None:
    claim = make_claim("inconclusive")
    with pytest.raises(VerdictError, match="opposite comparison"):
        _ = not claim
    reached = "no"
    if claim:
        reached = "yes"
    assert reached == "yes"
    both = claim and make_claim("holds")
    assert both.status == "holds"


@pytest.mark.parametrize("status", ["holds", "violated", "inconclusive", "recorded"])
def test_an_explanation_fits_what_pytest_shows(status: str) -> None:
    verdict: Any = SimpleNamespace(
        trend=None,
        interval=(0.905, 0.94),
        effect=0.922,
        confidence=0.9,
        more_boots=3,
        warnings=("a warning that goes on for some time about the noise", "another"),
    )
    claim = replace(make_claim(status), verdict=verdict if status != "recorded" else None)
    lines = claim.explain()
    assert len(lines) <= 7
    assert sum(len(line) for line in lines) <= 640
    text = "\n".join(lines)
    for expected in (
        status,
        "1,402 tok/s",
        "[1,380 .. 1,424]",
        "1,520 tok/s",
        "1 boot, 3 trials",
        "5 boots, 15 trials",
    ):
        assert expected in text
