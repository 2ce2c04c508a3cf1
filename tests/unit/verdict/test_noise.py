"""Learning noise: what is found, what it is worth, and what it never does."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import STATED, Boot, Noise, Status, at_least, compare, learn_noise


def history(rng, boot_sd, *, boots=6, trials=4, trial_sd=0.01, drift_sd=0.0, per_session=1):
    """Boots of one level around a mean of their own."""
    mean = rng.normal(5, 1)
    shift = rng.normal(0, drift_sd, boots)
    return [
        Boot(
            tuple(np.exp(mean + shift[b // per_session] + rng.normal(0, boot_sd) + rng.normal(0, trial_sd, trials))),
            f"s{b // per_session}",
        )
        for b in range(boots)
    ]


def test_the_spread_between_boots_is_found_without_the_trial_noise():
    rng = np.random.default_rng(1)
    found = [learn_noise({k: history(rng, 0.02, trial_sd=0.04, boots=8) for k in range(4)}) for _ in range(20)]
    assert np.median([noise.boot_sd for noise in found]) == pytest.approx(0.02, rel=0.35)
    assert np.median([noise.trial_sd for noise in found]) == pytest.approx(0.04, rel=0.2)


def test_levels_that_agree_are_worth_more_than_levels_that_do_not():
    rng = np.random.default_rng(2)
    alike = learn_noise([history(rng, 0.02, boots=20) for _ in range(4)])
    apart = learn_noise([history(rng, sd, boots=20) for sd in (0.004, 0.02, 0.1, 0.02)])
    assert alike.boot_df > 2 * apart.boot_df


def test_several_boots_a_session_tell_drift_from_boot_noise():
    rng = np.random.default_rng(3)
    calm = learn_noise([history(rng, 0.01, boots=24, per_session=4) for _ in range(4)])
    drifting = learn_noise([history(rng, 0.01, boots=24, per_session=4, drift_sd=0.02) for _ in range(4)])
    assert calm.drift_share < 0.6 * STATED.drift_share
    assert drifting.drift_share > 0.6
    assert drifting.drift_sd == pytest.approx(0.02, rel=0.5)


def test_one_boot_a_session_leaves_the_belief_in_drift_as_it_was():
    rng = np.random.default_rng(4)
    noise = learn_noise([history(rng, 0.02) for _ in range(3)])
    assert noise.drift == pytest.approx(STATED.drift)


def test_boots_of_this_session_count_by_their_spread_and_not_by_their_mean():
    rng = np.random.default_rng(7)
    stored = {level: history(rng, 0.02, boots=5) for level in (1, 16, 64)}

    def now(change):
        spread = np.random.default_rng(8)
        return {
            level: [
                Boot(tuple(np.array(boots[0].trials) * change * np.exp(spread.normal(0, 0.004))), "now")
                for _ in range(4)
            ]
            for level, boots in stored.items()
        }

    same, slower = (learn_noise(stored, current=now(change)) for change in (1.0, 0.8))
    assert same.boot_sd == pytest.approx(slower.boot_sd)
    assert same.drift == pytest.approx(slower.drift)
    # Boots of one session agree five times better than sessions do: that is drift.
    assert same.drift_share > 1.5 * learn_noise(stored).drift_share
    merged = learn_noise({level: [*boots, *now(0.8)[level]] for level, boots in stored.items()})
    assert merged.boot_sd > 2 * slower.boot_sd


def test_the_judged_level_is_left_out():
    rng = np.random.default_rng(5)
    histories = {"quiet": history(rng, 0.005), "loud": history(rng, 0.2), "calm": history(rng, 0.005)}
    assert learn_noise(histories, leave_out="loud").boot_sd < learn_noise(histories).boot_sd


def test_without_two_boots_anywhere_the_stated_prior_stays():
    noise = learn_noise({"a": [[100.0, 101.0]], "b": [[3.0, 3.1, 3.05]]})
    assert (noise.boot_sd, noise.boot_df) == (STATED.boot_sd, STATED.boot_df)
    assert noise.trial_df > 0
    assert learn_noise({}) == STATED


def test_noise_survives_the_way_between_processes():
    noise = learn_noise([history(np.random.default_rng(6), 0.02)])
    data = noise.to_dict()
    assert Noise.from_dict(data) == noise
    assert {type(value) for value in data.values()} <= {float, str, list}


def test_the_margin_has_a_floor_of_two_boot_sds():
    noise = Noise(boot_sd=0.03, boot_df=5)
    assert noise.margin(0.03) == pytest.approx(0.0618, abs=1e-3)
    assert noise.margin(0.10) == 0.10


@pytest.mark.parametrize(
    "fields",
    [
        {"boot_sd": -0.1, "boot_df": 3},
        {"boot_sd": float("nan"), "boot_df": 3},
        {"boot_sd": 0.0, "boot_df": 3},
        {"boot_sd": 0.1, "boot_df": 3, "drift": (1.0,)},
    ],
)
def test_noise_without_meaning_is_an_error(fields):
    with pytest.raises(VerdictError):
        Noise(**fields)


boots = st.lists(
    st.builds(
        Boot,
        st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4).map(tuple),
        st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(stored=st.lists(boots, min_size=1, max_size=4), now=boots, alike=st.booleans())
def test_any_positive_figures_teach_something_that_compare_can_use(stored, now, alike):
    noise = learn_noise(dict(enumerate(stored)), current={0: now})
    assert all(math.isfinite(x) and x >= 0 for x in (noise.boot_sd, noise.boot_df, noise.trial_sd, noise.trial_df))
    assert sum(noise.drift) == pytest.approx(1.0)
    assert Noise.from_dict(json.loads(json.dumps(noise.to_dict()))) == noise
    verdict = compare(now, stored[0], margin=0.05, better="lower", noise=noise, alike=alike)
    assert 0 <= verdict.interval[0] <= verdict.effect <= verdict.interval[1] < math.inf
    many = compare(now, now, margin=0.05, better="lower", noise=noise, paired=True)
    assert many.effect == pytest.approx(1.0)
    assert many.status is not Status.VIOLATED


def test_another_levels_trial_noise_does_not_blur_this_level():
    """Recorded on two H200: at concurrency 64 the first trial of a boot was a sixth slower, at 1 none was."""
    noisy = {("candidate", 64): [[10577.0, 12477.0]], ("control", 64): [[10540.0, 11932.0]]}
    now, control = [[306.1, 313.8], [318.3, 318.0]], [[305.6, 319.3], [320.0, 319.1]]
    alone = at_least(now, control, 0.9, noise=STATED, alike=False)
    pooled = at_least(now, control, 0.9, noise=learn_noise(noisy), alike=False)
    assert pooled.interval == pytest.approx(alone.interval, rel=0.01)


def test_another_levels_trial_noise_stands_in_where_a_level_has_one_trial_a_boot():
    noisy = {64: [[100.0, 120.0, 90.0], [110.0, 95.0, 130.0]], 16: [[100.0, 115.0, 90.0], [120.0, 95.0, 130.0]]}
    quiet = {64: [[100.0, 101.0, 99.5], [101.0, 99.0, 100.0]], 16: [[100.0, 101.0, 99.8], [100.5, 99.5, 100.0]]}
    wide, narrow = (at_least([[100.0]], [[100.0]], 0.9, noise=learn_noise(others)) for others in (noisy, quiet))
    assert wide.interval[0] < narrow.interval[0]
