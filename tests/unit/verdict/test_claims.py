"""Claims: agreement with textbook intervals, the three answers, and input that has no meaning."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import (
    Boot,
    Noise,
    Status,
    Verdict,
    at_least,
    at_least_value,
    at_most,
    at_most_value,
    compare,
    equivalent,
    estimate,
    exact,
)

REFERENCE = [[100.0], [103.0], [98.5], [101.0], [99.0]]


def builtin(value: object) -> bool:
    """Only types that every serialiser between processes knows."""
    if isinstance(value, (list, tuple)):
        return all(builtin(item) for item in value)
    if isinstance(value, dict):
        return all(builtin(item) for item in value.values())
    return value is None or type(value) in (str, int, float, bool, Status)


def test_several_boots_without_noise_give_the_pooled_t_interval():
    candidate = [[95.0], [97.0], [92.0]]
    verdict = compare(candidate, REFERENCE, margin=0.05, better="higher")
    expected = stats.ttest_ind(np.log(np.ravel(candidate)), np.log(np.ravel(REFERENCE))).confidence_interval(0.90)
    assert np.log(verdict.interval) == pytest.approx(np.array(expected), abs=5e-4)
    assert verdict.boots == (3, 5)
    assert verdict.trials == (3, 5)


def test_one_new_boot_is_judged_by_the_prediction_interval():
    verdict = compare([[95.0]], REFERENCE, margin=0.05, better="higher")
    logs = np.log(np.ravel(REFERENCE))
    half = stats.t.ppf(0.95, 4) * logs.std(ddof=1) * math.sqrt(1 + 1 / 5)
    centre = math.log(95) - logs.mean()
    assert np.log(verdict.interval) == pytest.approx([centre - half, centre + half], abs=1e-3)
    assert "prediction interval" in verdict.method


def test_learned_noise_moderates_the_variance_like_smyth():
    noise = Noise(boot_sd=0.01, boot_df=20)
    verdict = compare([[95.0]], REFERENCE, margin=0.05, better="higher", noise=noise)
    logs = np.log(np.ravel(REFERENCE))
    s2 = (20 * 0.01**2 + 4 * logs.var(ddof=1)) / 24
    half = stats.t.ppf(0.95, 24) * math.sqrt(s2 * (1 + 1 / 5))
    low, high = np.log(verdict.interval)
    assert (high - low) / 2 == pytest.approx(half, rel=0.02)


def test_a_single_level_gives_the_one_sample_t_interval():
    result = estimate(REFERENCE)
    logs = np.log(np.ravel(REFERENCE))
    half = stats.t.ppf(0.95, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert np.log(result.interval) == pytest.approx([logs.mean() - half, logs.mean() + half], abs=5e-4)
    assert result.value == pytest.approx(math.exp(logs.mean()))


def abba(speeds, effect):
    """Reference and candidate boots of one metric, in ABBA order, on a node of the given speeds."""
    runs = [s * (effect if k % 4 in (1, 2) else 1.0) for k, s in enumerate(speeds)]
    reference = [[runs[k]] for k in range(len(runs)) if k % 4 in (0, 3)]
    candidate = [[runs[k]] for k in range(len(runs)) if k % 4 in (1, 2)]
    return candidate, reference


def test_paired_boots_give_the_paired_t_interval():
    candidate, reference = abba([100.0, 101.0, 100.2, 99.5, 99.9, 100.1, 101.2, 101.0], 0.97)
    verdict = at_least(candidate, reference, 0.95, paired=True)
    d = np.log(np.ravel(candidate)) - np.log(np.ravel(reference))
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.90)
    assert np.log(verdict.interval) == pytest.approx(np.array(expected))
    assert verdict.status is Status.INCONCLUSIVE or verdict.effect > 0.95
    with pytest.raises(VerdictError, match="as many candidate as reference boots"):
        at_least(candidate[:3], reference, 0.95, paired=True)


def test_steady_drift_cancels_in_abba_order_and_is_reported():
    wobble = [1.001, 0.999, 1.002, 0.998, 0.9995, 1.0005, 1.0015, 0.9985]
    wobble += [1.0005, 1.001]
    candidate, reference = abba([100 * 1.02**k * w for k, w in enumerate(wobble)], 0.97)
    verdict = at_least(candidate, reference, 0.95, paired=True)
    assert verdict.status is Status.HOLDS
    assert verdict.effect == pytest.approx(0.97, abs=0.003)
    assert verdict.trend == pytest.approx(1.02, abs=0.003)
    assert "drift" in verdict.method
    # The same boots judged as if unpaired cannot tell: the drift is in the spread.
    assert at_least(candidate, reference, 0.95).status is Status.INCONCLUSIVE


def test_an_odd_number_of_pairs_does_not_cancel_the_drift_and_says_so():
    candidate, reference = abba([100 * 1.03**k for k in range(6)], 1.0)
    verdict = at_least(candidate, reference, 0.95, paired=True)
    assert any("odd number of pairs" in warning for warning in verdict.warnings)


def test_drift_has_the_sign_of_the_pairs_as_they_were_begun():
    """Six boots of a node that gains 2 % a boot and a candidate like its control, paired in another order than ABBA."""
    drift, first = [1.02**k for k in range(8)], ["reference", "reference", "candidate", "candidate"]
    wobble = [1.0005, 0.9995, 1.001, 0.999, 1.0, 1.0, 0.9995, 1.0005]
    runs = [[100 * speed * w] for speed, w in zip(drift, wobble, strict=True)]
    candidate = [runs[2 * k + (side == "reference")] for k, side in enumerate(first)]
    reference = [runs[2 * k + (side == "candidate")] for k, side in enumerate(first)]
    told = at_least(candidate, reference, 0.95, paired=first)
    assert told.balanced
    assert told.trend == pytest.approx(1.02, abs=0.002)
    assert told.effect == pytest.approx(1, abs=0.002)
    # Three of four begun by the reference: half of a boot's drift is left in the effect, and said.
    uneven = ["reference", "reference", "reference", "candidate"]
    candidate = [runs[2 * k + (side == "reference")] for k, side in enumerate(uneven)]
    reference = [runs[2 * k + (side == "candidate")] for k, side in enumerate(uneven)]
    told = at_least(candidate, reference, 0.95, paired=uneven)
    assert not told.balanced
    assert told.effect == pytest.approx(1.01, abs=0.002)
    assert any("pairs begun unevenly" in warning for warning in told.warnings)


def test_where_one_side_began_all_pairs_the_drift_cannot_be_told():
    told = at_least([[102.0], [102.1]], [[100.0], [100.0]], 0.95, paired=["reference", "reference"])
    assert told.trend is None
    assert not told.balanced
    assert any("the reference began all pairs" in warning for warning in told.warnings)


@pytest.mark.parametrize("first", [["reference"], ["reference", "control"], ["reference"] * 3])
def test_the_order_of_pairs_is_checked(first):
    with pytest.raises(VerdictError, match="name the side that ran first in each of 2 pairs"):
        at_least([[1.0], [1.0]], [[1.0], [1.0]], 0.95, paired=first)


def test_a_further_pair_is_one_further_degree_of_freedom():
    found = at_least([[0.985], [1.015]], [[1.0], [1.0]], 0.97, paired=True, alike=False)
    assert found.more_boots is not None
    assert found.more_boots_each == found.more_boots


@pytest.mark.parametrize(
    ("factor", "status"), [(0.85, Status.HOLDS), (0.95, Status.INCONCLUSIVE), (1.05, Status.VIOLATED)]
)
def test_three_answers_from_one_interval(factor, status):
    candidate = [[95.0], [97.0], [92.0]]
    assert at_least(candidate, REFERENCE, factor).status is status
    # The same statement with the sides exchanged, and about the inverse metric.
    assert at_most(REFERENCE, candidate, 1 / factor).status is status
    inverse, inverse_reference = ([[1 / value] for (value,) in side] for side in (candidate, REFERENCE))
    assert at_most(inverse, inverse_reference, 1 / factor).status is status


def test_equivalence_needs_both_sides_and_is_violated_beyond_either():
    near = [[100.5], [99.8], [100.2], [99.9], [100.1]]
    tight = [[100.0], [100.3], [99.9], [100.2], [99.7]]
    assert equivalent(near, tight, within=0.03).status is Status.HOLDS
    assert equivalent(near, tight, within=0.001).status is Status.INCONCLUSIVE
    assert equivalent([[v * 1.1] for (v,) in near], tight, within=0.03).status is Status.VIOLATED
    assert equivalent([[v * 0.9] for (v,) in near], tight, within=0.03).status is Status.VIOLATED


def test_absolute_limits():
    p99 = [[480.0, 470.0], [490.0, 500.0], [470.0, 465.0]]
    assert at_most_value(p99, 520).status is Status.HOLDS
    assert at_most_value(p99, 485).status is Status.INCONCLUSIVE
    assert at_least_value(p99, 520).status is Status.VIOLATED
    assert at_least_value(p99, 400).sides[0] == pytest.approx(479.0, abs=1)


def test_a_point_estimate_on_the_right_side_does_not_decide():
    verdict = compare([[94.0]], [[100.0], [108.0], [92.0]], margin=0.05, better="higher")
    assert verdict.status is Status.INCONCLUSIVE


def test_one_boot_each_is_inconclusive_unless_the_stated_prior_decides():
    verdict = compare([[90.0, 90.5]], [[100.0, 100.5]], margin=0.05, better="higher")
    assert verdict.status is Status.INCONCLUSIVE
    assert "stated prior" in verdict.method
    assert any("stated prior" in warning for warning in verdict.warnings)
    assert verdict.more_boots is None  # a second reference boot is what is missing
    assert compare([[50.0, 50.5]], [[100.0, 100.5]], margin=0.05, better="higher").status is Status.VIOLATED
    wide = Noise.stated(0.30)
    assert compare([[50.0]], [[100.0]], margin=0.05, better="higher", noise=wide).status is Status.INCONCLUSIVE


def test_trials_within_a_boot_do_not_pass_for_boots():
    """A hundred trials of one boot say no more about other boots than a few do."""
    few = compare([[100.0, 101.0, 99.0]], [[100.0, 99.0, 101.0]], margin=0.05, better="higher")
    many = compare([[100.0, 101.0, 99.0] * 40], [[100.0, 99.0, 101.0] * 40], margin=0.05, better="higher")
    assert many.status is few.status is Status.INCONCLUSIVE
    assert many.interval[1] - many.interval[0] > 0.8 * (few.interval[1] - few.interval[0])


def test_known_sessions_widen_the_interval_and_one_common_session_does_not():
    values = [100.0, 103.0, 98.5, 101.0, 99.0]
    ours = [95.0, 95.5, 95.2]

    def width(their_sessions: list[str], our_session: str) -> float:
        reference = [Boot((v,), s) for v, s in zip(values, their_sessions, strict=True)]
        verdict = compare([Boot((v,), our_session) for v in ours], reference, margin=0.05, better="higher")
        return verdict.interval[1] - verdict.interval[0]

    apart = width(list("abcde"), "new")
    assert apart > 1.1 * width([""] * 5, "")
    assert width(["new"] * 5, "new") == pytest.approx(width([""] * 5, ""))


def test_a_reference_from_one_session_is_named():
    reference = [Boot((v,), "a") for (v,) in REFERENCE]
    verdict = compare([Boot((99.0,), "b")], reference, margin=0.05, better="higher")
    assert any("comes from 1 session" in warning for warning in verdict.warnings)
    assert verdict.drift_sd is not None


def test_unequal_spread_falls_back_to_welch():
    calm = [[100.0], [100.1], [99.9], [100.05], [99.95], [100.02], [99.97], [100.01]]
    wild = [[90.0], [112.0], [96.0]]
    verdict = compare(wild, calm, margin=0.05, better="higher")
    expected = stats.ttest_ind(np.log(np.ravel(wild)), np.log(np.ravel(calm)), equal_var=False)
    assert np.log(verdict.interval) == pytest.approx(np.array(expected.confidence_interval(0.90)), abs=1e-2)
    assert "Welch" in verdict.method


def test_another_configuration_may_be_noisier():
    """Five calm boots of the control do not vouch for the next boot of another configuration."""
    control = [[100.0], [100.5], [99.6], [100.2], [99.8]]
    gate = compare([[97.0]], control, margin=0.02, better="higher")
    hypothesis = compare([[97.0]], control, margin=0.02, better="higher", alike=False)
    assert hypothesis.interval[1] - hypothesis.interval[0] > 1.5 * (gate.interval[1] - gate.interval[0])
    assert gate.status is Status.VIOLATED
    assert hypothesis.status is Status.INCONCLUSIVE
    assert "may differ in spread" in hypothesis.method


def test_one_boot_a_side_is_decided_by_more_of_each():
    """Two boots of one session: with more of the candidate alone the control's one boot stays what limits."""
    verdict = compare([[215.0, 216.0]], [[216.0, 217.0]], margin=0.10, better="higher")
    assert verdict.status == "inconclusive"
    assert verdict.more_boots_each is not None
    assert verdict.more_boots is None or verdict.more_boots_each <= verdict.more_boots
    more = 1 + verdict.more_boots_each
    assert compare([[215.0, 216.0]] * more, [[216.0, 217.0]] * more, margin=0.10, better="higher").status == "holds"


def test_more_boots_is_what_is_missing():
    close = compare([[96.0]], REFERENCE, margin=0.05, better="higher")
    assert close.status is Status.INCONCLUSIVE
    at_the_margin = compare([[95.2]], REFERENCE, margin=0.05, better="higher")
    assert at_the_margin.more_boots is None or at_the_margin.more_boots > (close.more_boots or 0)
    assert compare([[99.9]], [[100.0], [100.1]] * 4, margin=0.05, better="higher").more_boots == 0


def test_constant_data_gets_an_answer_and_a_warning():
    same = compare([[100.0]] * 3, [[100.0]] * 3, margin=0.05, better="higher")
    assert same.status is Status.HOLDS
    assert any("identical" in warning for warning in same.warnings)
    assert compare([[90.0]] * 3, [[100.0]] * 3, margin=0.05, better="higher").status is Status.VIOLATED
    assert compare([[100.0]] * 3, [[100.0]] * 3, margin=0.0, better="higher").status is Status.INCONCLUSIVE


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ([], "no boots"),
        ([[]], "boot 1 of the candidate has no trials"),
        ([[1.0], [math.nan]], "trial 1 in boot 2 of the candidate is nan"),
        ([[math.inf]], "is inf"),
        ([[0.0]], "positive"),
        ([[-1.0]], "positive"),
        ([["fast"]], "not a number"),
        ([[True]], "not a number"),
        ([[None]], "not a number"),
        ("fast", "sequence of boots"),
        (5.0, "sequence of boots"),
        ([5.0, 6.0], "boot 1 of the candidate must be a sequence"),
        (Boot((1.0,)), "sequence of boots"),
        ([Boot((1.0,), unit="s"), Boot((1.0,), unit="ms")], "different units"),
        ([Boot((1.0,), unit="ms")], "different units"),
    ],
)
def test_input_without_meaning_is_an_error_that_says_where(candidate, message):
    reference = [Boot((100.0,), unit="s"), Boot((101.0,), unit="s")]
    with pytest.raises(VerdictError, match=message):
        compare(candidate, reference, margin=0.05, better="higher")
    if message != "different units":
        with pytest.raises(VerdictError):
            compare(reference, candidate, margin=0.05, better="higher")


@pytest.mark.parametrize(
    "question",
    [
        lambda: compare(REFERENCE, REFERENCE, margin=-0.1, better="higher"),
        lambda: compare(REFERENCE, REFERENCE, margin=1.0, better="higher"),
        lambda: compare(REFERENCE, REFERENCE, margin=math.nan, better="higher"),
        lambda: compare(REFERENCE, REFERENCE, margin=0.05, better="bigger"),  # type: ignore[arg-type]
        lambda: compare(REFERENCE, REFERENCE, margin=0.05, better="higher", confidence=1.0),
        lambda: compare(REFERENCE, REFERENCE, margin=0.05, better="higher", confidence=0.05),
        lambda: at_least(REFERENCE, REFERENCE, 0.0),
        lambda: at_most(REFERENCE, REFERENCE, math.inf),
        lambda: at_most(REFERENCE, REFERENCE, True),
        lambda: equivalent(REFERENCE, REFERENCE, within=0.0),
        lambda: at_most_value(REFERENCE, -1.0),
        lambda: exact(math.nan, "<=", 0),
        lambda: exact(0, "about", 0),  # type: ignore[arg-type]
        lambda: estimate([]),
    ],
)
def test_questions_without_meaning_are_errors(question):
    with pytest.raises(VerdictError):
        question()


def test_a_factor_of_a_thousand_asks_for_the_unit():
    verdict = compare([[0.1], [0.101]], [[100.0], [101.0]], margin=0.05, better="lower")
    assert any("units the same" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(
    ("value", "relation", "limit", "status"),
    [(0, "==", 0, "holds"), (1, "<=", 0, "violated"), (3, ">", 2, "holds"), (3, "!=", 3, "violated")],
)
def test_exact_metrics_need_no_statistics(value, relation, limit, status):
    verdict = exact(value, relation, limit)
    assert verdict.status == status
    assert verdict.interval == (value, value)


def test_verdicts_survive_the_way_between_processes():
    verdict = compare([Boot((95.0,), "b")], [Boot((v,), "a") for (v,) in REFERENCE], margin=0.05, better="higher")
    data = verdict.to_dict()
    assert builtin(data)
    assert Verdict.from_dict(json.loads(json.dumps(data))) == verdict


def test_an_unstable_run_has_no_answer():
    verdict = compare(REFERENCE, REFERENCE, margin=0.2, better="higher")
    unsettled = verdict.unsettled(["thermal slowdown on GPU 3"])
    assert verdict.status is Status.HOLDS
    assert unsettled.status is Status.INCONCLUSIVE
    assert unsettled.warnings[0] == "unstable: thermal slowdown on GPU 3"
    assert verdict.unsettled([]) is verdict


boots = st.lists(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(candidate=boots, reference=boots, margin=st.floats(0, 0.9))
def test_any_positive_figures_get_a_consistent_answer(candidate, reference, margin):
    verdict = compare(candidate, reference, margin=margin, better="higher")
    low, high = verdict.interval
    assert low <= verdict.effect <= high
    assert all(math.isfinite(x) for x in (low, high, verdict.effect, verdict.p_value))
    expected = Status.HOLDS if low >= 1 - margin else Status.VIOLATED if high < 1 - margin else Status.INCONCLUSIVE
    if any("has to confirm it" in warning for warning in verdict.warnings):
        assert len(candidate) == 1
        assert expected is Status.VIOLATED
        expected = Status.INCONCLUSIVE
    assert verdict.status is expected or min(abs(low - 1 + margin), abs(high - 1 + margin)) < 1e-9
    assert (verdict.status is Status.VIOLATED) == (verdict.p_value < 0.05) or abs(verdict.p_value - 0.05) < 1e-6
    assert builtin(verdict.to_dict())
    scaled = compare(
        [[v * 8 for v in boot] for boot in candidate],
        [[v * 8 for v in boot] for boot in reference],
        margin=margin,
        better="higher",
    )
    assert scaled.interval == pytest.approx(verdict.interval, rel=1e-6)


def test_the_package_is_pure():
    """It must be usable without pytest, and cheap to import on a worker."""
    code = (
        "import sys, pytest_sglang_perf.verdict; "
        "print([m for m in ('pytest', 'paramiko', 'requests', 'yaml', 'rich', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_single_new_boot_accuses_only_beyond_what_a_slow_one_would_do():
    reference = [[value] for value in (100.0, 101.0, 99.0, 100.5, 99.5)]
    steps = [compare([[value]], reference, margin=0.05, better="higher") for value in np.arange(95.0, 85.0, -0.05)]
    statuses = [step.status for step in steps]
    assert statuses[0] is Status.INCONCLUSIVE
    assert statuses[-1] is Status.VIOLATED
    between = [step for step in steps if step.interval[1] < 0.95 and step.status is Status.INCONCLUSIVE]
    assert between
    for step in between:
        assert "a second has to confirm it" in step.warnings[-1]
        assert step.p_value > 0.05
        assert step.more_boots == 1
    for step in steps:
        assert (step.status is Status.VIOLATED) == (step.p_value <= 0.05)
    two = compare([[90.0], [90.2]], reference, margin=0.05, better="higher")
    assert two.status is Status.VIOLATED
    assert not any("confirm" in warning for warning in two.warnings)
