"""Runs that should not be believed, and metrics over time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import Status, canary, change_points, slow_drift, stability
from pytest_sglang_perf.verdict._stability import kendall_p, theil_sen


def series(logs):
    return [[float(np.exp(value))] for value in logs]


def test_kendall_and_theil_sen_agree_with_scipy():
    rng = np.random.default_rng(1)
    for n in (5, 8, 12):
        values = rng.normal(size=n) + 0.2 * np.arange(n)
        expected = stats.kendalltau(np.arange(n), values, method="exact").pvalue
        assert kendall_p([values]) == pytest.approx(expected)
        assert theil_sen(values) == pytest.approx(stats.theilslopes(values)[0])


def test_calm_runs_are_not_accused():
    rng = np.random.default_rng(2)
    accused = sum(bool(stability([tuple(np.exp(rng.normal(0, 0.03, 6))) for _ in range(4)])) for _ in range(300))
    assert accused <= 9  # 3 % against three tests at 1 %, which also ask for relevance


def test_a_run_that_still_warms_up_is_named():
    rng = np.random.default_rng(3)
    boots = [[100 * (1 + 0.02 * k) * np.exp(rng.normal(0, 0.004)) for k in range(6)] for _ in range(2)]
    (reason,) = stability(boots)
    assert "trend within the run: +1" in reason


def test_two_modes_are_named():
    rng = np.random.default_rng(4)
    boots = [[v * np.exp(rng.normal(0, 0.005)) for v in (100, 120, 120, 100, 100, 120)] for _ in range(3)]
    assert any("two modes: the trials" in reason for reason in stability(boots))
    alternating = [[v * np.exp(rng.normal(0, 0.005))] for v in (100, 120, 120, 100, 100, 120, 120, 100)]
    assert any("two modes: the boots" in reason for reason in stability(alternating))


def test_a_lone_outlier_is_not_a_mode():
    rng = np.random.default_rng(5)
    values = np.exp(rng.normal(0, 0.01, 12))
    values[7] *= 1.3
    assert not any("modes" in reason for reason in stability([tuple(values)]))


def test_a_spread_beyond_use_is_named():
    boots = [[100.0, 220.0, 60.0, 140.0, 300.0, 90.0]]
    assert any("spread: sd between trials" in reason for reason in stability(boots))
    boots = [[100.0], [200.0], [70.0], [300.0], [130.0]]
    assert any("spread: sd between boots" in reason for reason in stability(boots))


def test_a_canary_that_moved_voids_the_session():
    before, after = [[100.0], [100.4], [99.7]], [[90.0], [90.2], [90.3]]
    assert canary(before, [[100.1], [99.9], [100.2]], within=0.03).status is Status.HOLDS
    moved = canary(before, after, within=0.03)
    assert moved.status is Status.VIOLATED
    assert "the node itself moved" in moved.warnings[0]
    blind = canary([[100.0], [110.0]], [[104.0], [97.0]], within=0.03)
    assert blind.status is Status.INCONCLUSIVE
    assert "cannot exclude" in blind.warnings[0]


def test_a_step_in_history_is_found_where_it_is():
    rng = np.random.default_rng(6)
    logs = np.r_[rng.normal(4.0, 0.01, 12), rng.normal(3.9, 0.01, 9), rng.normal(4.05, 0.01, 5)]
    points = change_points(series(logs))
    assert [point.index for point in points] == [12, 21]
    assert points[0].ratio == pytest.approx(np.exp(-0.1), abs=0.01)
    assert points[0].p_value < 0.01


def test_history_without_a_change_has_none():
    rng = np.random.default_rng(7)
    false = sum(bool(change_points(series(rng.normal(4, 0.02, 20)))) for _ in range(300))
    assert false <= 9
    assert change_points([[100.0]]) == ()
    assert change_points([[100.0]] * 10) == ()
    with pytest.raises(VerdictError):
        change_points([[100.0]] * 10, least=1)


def test_one_strange_boot_is_no_change_of_level():
    logs = np.full(12, 4.0) + np.resize([0.005, -0.005], 12)
    logs[6] -= 0.3
    assert change_points(series(logs)) == ()


def test_a_drift_that_every_gate_let_pass_is_found():
    rng = np.random.default_rng(8)
    logs = 4 - 0.008 * np.arange(15) + rng.normal(0, 0.006, 15)
    drift = slow_drift(series(logs), margin=0.05, better="higher")
    assert drift is not None
    assert drift.hidden
    assert drift.ratio == pytest.approx(np.exp(-0.112), abs=0.02)
    assert slow_drift(series(logs), margin=0.05, better="lower") is None
    assert slow_drift(series(-logs), margin=0.05, better="lower") is not None
    assert slow_drift(series(rng.normal(4, 0.01, 15)), margin=0.05, better="higher") is None
    assert slow_drift(series(logs[:4]), margin=0.05, better="higher") is None
