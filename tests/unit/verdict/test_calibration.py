"""The calibration benchmark judges as `compare` does, and a few of its cells, with room for Monte Carlo error."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration.draws import Truth, as_boots, draw, other_levels
from benchmarks.calibration.ours import below, learn
from benchmarks.calibration.peers import RULES
from benchmarks.calibration.recorded import as_units, splits, throughput
from benchmarks.calibration.studies import EDGE, MARGIN, looked, one_look
from pytest_sglang_perf.verdict import Noise, Status, compare, learn_noise, stability
from pytest_sglang_perf.verdict._claims import caution

DRAWS = 600


def tolerance(share: float) -> float:
    """Four sds of a Monte Carlo share: such a test fails by chance less than once in 10 000 runs."""
    return 4 * math.sqrt(share * (1 - share) / DRAWS)


@pytest.mark.parametrize(
    "truth",
    [
        Truth(change=-0.05, trial_sd=0.02, drift_sd=0.01),
        Truth(change=-0.05, sessions=0),
        Truth(change=-0.05, candidate=8),
        Truth(change=-0.05, candidate=1, sessions=0, boot_sd=0.005, trial_sd=0.1),
        Truth(change=-0.05, reference=8, candidate=5, sessions=0, shape="bimodal"),
        Truth(change=-0.05, reference=1, candidate=1, sessions=0),
        Truth(change=-0.05, trials=1),
    ],
)
@pytest.mark.parametrize("pooled", [False, True])
def test_the_benchmark_judges_as_compare_does(truth, pooled):
    if pooled and truth.reference == 1:
        pytest.skip("one boot at every level: nothing to pool")
    rng = np.random.default_rng(1)
    sample = draw(rng, truth, 25)
    others = other_levels(rng, truth, 25)
    learned = learn(others) if pooled else None
    (chances,) = below(sample, (EDGE,), learned)
    for number in range(25):
        candidate, reference = as_boots(sample, number)
        noise = None
        if pooled:
            stored = {level: as_boots(other, number)[1] for level, other in enumerate(others)}
            current = {level: as_boots(other, number)[0] for level, other in enumerate(others)}
            noise = learn_noise(stored, current=current)
            if truth.trials == 1:  # the benchmark's draws of single trials leave trial noise in the boots
                noise = replace(noise, trial_sd=0.0, trial_df=0.0)
        verdict = compare(candidate, reference, margin=MARGIN, better="higher", noise=noise)
        share = caution(truth.candidate, truth.reference, drifting=truth.sessions > 0)
        assert verdict.p_value == pytest.approx(min((1 - chances[number]) / share, 1.0), abs=1e-6)


def test_false_alarms_at_the_margin_are_nominal():
    for truth in (Truth(sessions=0), Truth(sessions=0, candidate=1), Truth(sessions=0, boot_sd=0.05, candidate=8)):
        wrong, missed, cover = one_look(truth, DRAWS, pooled=False)
        assert wrong <= 0.05 + tolerance(0.05)
        assert missed <= 0.05 + tolerance(0.05)
        assert abs(cover - 0.90) <= tolerance(0.10)


def test_looks_do_not_add_up_the_error_and_drift_does_not_either():
    assert looked(Truth(change=-0.05), (1, 2, 3), DRAWS)[1] <= 0.05 + tolerance(0.05)
    assert looked(Truth(change=-0.05, drift_sd=0.02), (1, 2, 3), DRAWS)[1] <= 0.08 + tolerance(0.08)


def test_the_answers_come_often_enough():
    holds, wrong, used = looked(Truth(), (1, 2, 3), DRAWS)
    assert holds >= 0.90 - tolerance(0.90)
    assert wrong <= 0.002
    assert 1 < used < 3
    assert looked(Truth(change=-0.10), (1, 2, 3), DRAWS)[1] >= 0.90 - tolerance(0.90)


def test_peers_answer_the_same_draws():
    rng = np.random.default_rng(2)
    sample = draw(rng, Truth(trial_sd=0.01, change=-0.05), DRAWS)
    violated = {name: float(np.mean(rule(sample, 0.05, rng) == -1)) for name, rule in RULES.items()}
    # A point estimate against a threshold is a coin at the threshold; an interval is not.
    assert abs(violated["fixed threshold, 1 new boot"] - 0.5) < 0.1
    assert violated["inference-doctor (Welch interval on boots)"] <= 0.05 + tolerance(0.05)
    assert violated["Mann-Whitney on 500 requests, 1 new boot"] > 0.5
    same = draw(rng, Truth(trial_sd=0.01), DRAWS)
    assert np.mean(RULES["Mann-Whitney on 500 requests, 1 new boot"](same, 0.05, rng) == -1) > 0.06


def test_the_noise_within_one_recorded_boot_is_no_regression():
    figures = throughput()
    answers = [
        compare(as_units(a), as_units(b), margin=0.05, better="higher").status
        for level in (1, 16, 64, 256)
        for a, b in splits(figures["default", level])
    ]
    assert len(answers) == 80
    assert sum(answer is Status.VIOLATED for answer in answers) <= 4


def test_a_planted_shift_is_found_in_recorded_trials():
    for a, b in splits(throughput()["default", 1]):
        slower = [value * 0.8 for value in a]
        assert compare(as_units(slower), as_units(b), margin=0.05, better="higher").status is Status.VIOLATED


@pytest.mark.parametrize("level", [1, 16, 64, 256])
@pytest.mark.parametrize("boot_sd", [0.02, 0.05, 0.10])
def test_recorded_boots_without_cuda_graphs_are_slower(level, boot_sd):
    figures = throughput()
    verdict = compare(
        [figures["nocudagraph", level]],
        [figures["default", level]],
        margin=0.05,
        better="higher",
        noise=Noise.stated(boot_sd),
    )
    assert verdict.status is Status.VIOLATED
    assert "stated prior" in verdict.method


def test_no_recorded_run_is_called_unstable():
    """Six trials of a healthy server at saturation scatter by 16 %; that is its nature and no fault."""
    assert [key for key, values in throughput().items() if stability([values])] == []
