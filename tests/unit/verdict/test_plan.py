"""Plans: published boundaries, the order of looks, and the error they spend."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import SequentialPlan, Status, TrialPlan, compare
from pytest_sglang_perf.verdict._spending import nominal_levels, spent

REFERENCE = [[100.0], [103.0], [98.5], [101.0], [99.0]]


def test_limits_agree_with_published_ones():
    # Lan-DeMets spending of the O'Brien-Fleming kind, one-sided 2.5 %, three and five even looks (Jennison
    # and Turnbull 2000, table 7.2 and the many programs that reproduce it).
    z3 = [-special.ndtri(p) for p in nominal_levels([1, 2, 3], 0.025, "obrien-fleming")]
    assert z3 == pytest.approx([3.7103, 2.5114, 1.9930], abs=2e-3)
    z5 = [-special.ndtri(p) for p in nominal_levels([1, 2, 3, 4, 5], 0.025, "obrien-fleming")]
    assert z5 == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-3)


@pytest.mark.parametrize("family", ["obrien-fleming", "power", "pocock"])
def test_looking_often_spends_exactly_the_error(family):
    looks = [1, 2, 3, 5, 8]
    levels = nominal_levels(looks, 0.05, family)
    rng = np.random.default_rng(1)
    steps = rng.normal(size=(100_000, looks[-1]))
    z = np.cumsum(steps, axis=1)[:, np.array(looks) - 1] / np.sqrt(looks)
    crossed = np.any(special.ndtr(-z) <= np.array(levels), axis=1)
    assert crossed.mean() == pytest.approx(0.05, abs=0.003)
    assert spent(1.0, 0.05, family) == 0.05
    assert spent(0.0, 0.05, family) == 0.0


def test_one_look_spends_all():
    assert SequentialPlan((3,), reference=5).confidence_at(1) == pytest.approx(0.90)


def test_a_plan_goes_on_until_decided_or_spent():
    plan = SequentialPlan((1, 3, 5), reference=5)
    unclear = compare([[95.0]], REFERENCE, margin=0.05, better="higher", confidence=plan.confidence_at(1))
    clear = compare([[60.0]], REFERENCE, margin=0.05, better="higher", confidence=plan.confidence_at(1))
    assert unclear.status is Status.INCONCLUSIVE
    assert plan.next() == 1
    plan = plan.after(1)
    assert plan.next(unclear) == 2
    assert plan.next(unclear, clear) == 2
    assert plan.next(clear) == 0
    plan = plan.after(3).after(5)
    assert plan.done
    assert plan.next(unclear) == 0
    assert plan.error_spent() == pytest.approx(0.05)
    with pytest.raises(VerdictError, match="all looks of this plan are taken"):
        plan.after(6)


def test_a_plan_refuses_looks_it_did_not_plan():
    with pytest.raises(VerdictError, match="planned at 1 boots, not at 2"):
        SequentialPlan((1, 3), reference=5).after(2)
    with pytest.raises(VerdictError):
        SequentialPlan((1, 3)).confidence_at(3)


def test_a_plan_tells_its_cost_before_and_what_was_spent_after():
    plan = SequentialPlan((1, 2, 3), reference=5)
    assert plan.cost(boot_s=120, trials_s=180) == (300, 900)
    assert "up to 3 boots against 5 stored" in plan.describe()
    assert "5.0% in all" in plan.describe()
    assert "spent" not in plan.describe()
    assert "spent: 2 of 3 looks, 2 boots" in plan.after(1).after(2).describe()


@pytest.mark.parametrize(
    "fields",
    [
        {"looks": ()},
        {"looks": (2, 1)},
        {"looks": (0, 1)},
        {"looks": (1.5,)},
        {"looks": (1,), "confidence": 2.0},
        {"looks": (1, 2), "spending": "all"},
        {"looks": (1,), "reference": -1},
    ],
)
def test_plans_without_meaning_are_errors(fields):
    with pytest.raises(VerdictError):
        SequentialPlan(**fields)


def test_trials_go_on_until_the_mean_is_known_well_enough():
    plan = TrialPlan(precision=0.01, least=3, most=6)
    assert plan.next([]) == 3
    assert plan.next([100.0, 100.1, 99.9]) == 0
    assert plan.next([100.0, 120.0, 90.0]) == 1
    assert plan.next([100.0, 120.0, 90.0, 95.0, 111.0, 104.0]) == 0
    with pytest.raises(VerdictError):
        TrialPlan(precision=0.0)
