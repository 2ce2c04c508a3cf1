"""Corrections over many claims, against published examples."""

from __future__ import annotations

import pytest
from scipy import stats

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import benjamini_hochberg, holm

# The fifteen p-values of Benjamini and Hochberg (1995), section 4.
P = [
    0.0001,
    0.0004,
    0.0019,
    0.0095,
    0.0201,
    0.0278,
    0.0298,
    0.0344,
    0.0459,
    0.3240,
    0.4262,
    0.5719,
    0.6528,
    0.7590,
    1.0,
]


def test_the_paper_rejects_four_with_their_procedure_and_three_with_familywise_control():
    assert sum(p <= 0.05 for p in benjamini_hochberg(P)) == 4
    assert sum(p <= 0.05 for p in holm(P)) == 3


def test_benjamini_hochberg_agrees_with_scipy_in_any_order():
    shuffled = P[::2] + P[1::2]
    assert benjamini_hochberg(shuffled) == pytest.approx(stats.false_discovery_control(shuffled))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([]) == ()


@pytest.mark.parametrize("bad", [[float("nan")], [-0.1], [1.1], ["0.1"]])
def test_what_is_no_p_value_is_an_error(bad):
    for correct in (holm, benjamini_hochberg):
        with pytest.raises(VerdictError):
            correct(bad)
