"""Input without meaning: a verdict or a VerdictError that says why, never anything else."""

from __future__ import annotations

import contextlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf import verdict as package
from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.verdict import Boot, Noise, SequentialPlan, Status, TrialPlan, Verdict

ODD = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 5e-324, 1e-300, 1e-12, 1e15, 1e300, 10**400, 1.0, 100.0, 99.0,
    True, None, "fast", "1.0", "", b"1", 1j, Fraction(1, 3), np.float32(100), np.int64(100), [], [1.0], {}, object(),
]  # fmt: skip
odd = st.sampled_from(ODD) | st.floats()
figure = st.sampled_from([1e-12, 1e-6, 1.0, 99.0, 100.0, 100.0, 101.0, 1e6, 1e15]) | st.floats(1e-12, 1e15)
trials = st.lists(figure, min_size=1, max_size=4) | st.lists(odd, max_size=3) | odd
boot = trials | st.builds(Boot, trials, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "", "s"]))
# Mostly sound boots, so that questions get as far as the arithmetic.
sound = st.lists(st.lists(figure, min_size=1, max_size=4), min_size=1, max_size=6)
boots = sound | sound | sound.map(lambda bs: [Boot(tuple(b), f"s{i % 2}") for i, b in enumerate(bs)]) | st.lists(boot, max_size=4) | odd  # fmt: skip # noqa: E501
share = st.floats(0.001, 0.9) | odd
noise = st.none() | st.builds(Noise, st.floats(1e-9, 9), st.floats(0, 1e3), st.floats(0, 9), st.floats(0, 1e3))
confidence = st.just(0.90) | st.floats(0.51, 0.9999) | odd
how = st.fixed_dictionaries(
    {"noise": noise, "confidence": confidence}, optional={"paired": st.booleans(), "alike": st.booleans()}
)


def sound_verdict(found: Verdict) -> None:
    low, high = found.interval
    assert found.status in Status
    assert all(map(math.isfinite, (low, high, found.effect, found.p_value, *found.bound, found.sides[0])))
    assert low <= found.effect <= high
    assert 0 <= found.p_value <= 1
    assert Verdict.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found


@settings(max_examples=300, deadline=None)
@given(
    which=st.sampled_from(["compare", "at_least", "at_most", "equivalent", "at_least_value", "at_most_value"]),
    candidate=boots, reference=boots, bound=share, better=st.sampled_from(["higher", "lower"]) | odd, told=how,
)  # fmt: skip
def test_a_claim_gets_a_verdict_or_an_error_that_says_why(which, candidate, reference, bound, better, told):
    ask = getattr(package, which)
    with contextlib.suppress(VerdictError):
        if which == "compare":
            found = ask(candidate, reference, margin=bound, better=better, **told)
        elif which == "equivalent":
            found = ask(candidate, reference, within=bound, **told)
        elif which.endswith("value"):
            found = ask(candidate, bound, noise=told["noise"], confidence=told["confidence"])
        else:
            found = ask(candidate, reference, bound, **told)
        sound_verdict(found)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_other_function_falls_over_either(data):
    draw = data.draw
    many = st.lists(boots, max_size=3) | boots
    questions = {
        "paired": lambda: package.paired(
            draw(st.lists(st.tuples(boot, boot), max_size=4) | boots), margin=draw(share), better="higher"
        ),
        "abba": lambda: package.abba(draw(st.integers(-2, 9) | odd)),
        "canary": lambda: package.canary(draw(boots), draw(boots), within=draw(share), noise=draw(noise)),
        "exact": lambda: package.exact(draw(odd), draw(st.sampled_from(["<=", "==", "~"]) | odd), draw(odd)),
        "estimate": lambda: package.estimate(draw(boots), noise=draw(noise), confidence=draw(confidence)),
        "learn_noise": lambda: package.learn_noise(draw(many)),
        "Noise": lambda: Noise(draw(odd), draw(odd), draw(odd), draw(odd)),
        "Noise.drift": lambda: Noise(0.02, 3.0, drift=draw(st.lists(odd, max_size=6).map(tuple) | odd)),
        "Noise.stated": lambda: Noise.stated(draw(odd)),
        "holm": lambda: package.holm(draw(st.lists(odd, max_size=4) | odd)),
        "benjamini_hochberg": lambda: package.benjamini_hochberg(draw(st.lists(odd, max_size=4) | odd)),
        "SequentialPlan": lambda: SequentialPlan(
            draw(st.lists(st.integers(-1, 9) | odd, max_size=3).map(tuple) | odd), reference=draw(st.just(5) | odd)
        ),
        "confidence_at": lambda: SequentialPlan((1, 2)).confidence_at(draw(st.integers() | odd)),
        "TrialPlan": lambda: TrialPlan(draw(share), draw(st.just(2) | odd), draw(st.just(9) | odd)).next(draw(trials)),
        "stability": lambda: package.stability(draw(boots), trend=draw(share), boot_sd=draw(share)),
        "change_points": lambda: package.change_points(draw(boots), alpha=draw(share), least=draw(st.just(2) | odd)),
        "slow_drift": lambda: package.slow_drift(
            draw(boots), margin=draw(share), better=draw(st.sampled_from(["higher", "lower"]) | odd)
        ),
    }  # fmt: skip
    name = draw(st.sampled_from(sorted(questions)))
    with contextlib.suppress(VerdictError):
        found = questions[name]()
        if isinstance(found, Verdict):
            sound_verdict(found)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_trials_that_no_server_measures_are_an_error_that_names_them(better):
    with pytest.raises(VerdictError, match="trial 2 in boot 1 of the reference is 1e-300, which no server measures"):
        package.compare([[1500, 1501]], [[1500, 1e-300]], margin=0.05, better=better)


@pytest.mark.parametrize("confidence", [0.90, 0.99999])
def test_trials_that_differ_by_all_that_is_allowed_are_inconclusive_with_finite_figures(confidence):
    found = package.compare([[1e15, 1.0]], [[1e-12, 1e15]], margin=0.05, better="higher", confidence=confidence)
    assert found.status is Status.INCONCLUSIVE
    assert any("units" in warning for warning in found.warnings)
    sound_verdict(found)


def test_constant_boots_of_both_sides_are_judged_with_the_floor_of_a_boots_spread():
    same = package.compare([[5.0]] * 4, [[5.0]] * 4, margin=0.01, better="higher")
    assert same.status is Status.HOLDS
    assert same.effect == pytest.approx(1.0)
    assert any("identical" in warning for warning in same.warnings)


def test_one_value_on_each_side_rests_on_the_stated_prior_and_says_so():
    found = package.compare([[94.0]], [[100.0]], margin=0.05, better="higher")
    assert found.status is Status.INCONCLUSIVE
    assert any("stated prior" in warning for warning in found.warnings)
