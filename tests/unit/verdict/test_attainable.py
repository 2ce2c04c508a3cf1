"""The linear program behind what calibration.md calls out of reach."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.attainable import DRIFTS, NOMINAL, best_deviation


@pytest.mark.parametrize("levels", [1, 4])
def test_the_best_rule_strays_by_more_than_two_points(levels):
    worst, coverage = best_deviation(3, levels, 40_000, np.random.default_rng(levels))
    assert 0.02 < worst < 0.05
    assert len(coverage) == len(DRIFTS)
    assert max(abs(share - NOMINAL) for share in coverage) == pytest.approx(worst, abs=1e-6)


def test_more_levels_leave_less_to_stray():
    one, four = (best_deviation(3, levels, 40_000, np.random.default_rng(levels))[0] for levels in (1, 4))
    assert four < one
