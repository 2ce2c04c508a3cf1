"""How long bytes wait, from how long the loop was away."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._probe import quantile, waiting_quantile


def simulated(absences, total, q):
    """Throw arrivals at random into the absences and the rest of the time; each is served in turn after its absence."""
    rng = random.Random(1)
    waits = []
    for _ in range(10000):
        at = rng.uniform(0, total)
        for g, h in zip(absences, [*absences[1:], 0.0], strict=True):
            if at < g:
                waits.append(g - at + at / g * h)
                break
            at -= g
        else:
            waits.append(0.0)
    return quantile(waits, q)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("absences", "total"),
    [
        ([1600.0] + [1.0] * 500, 5000.0),
        ([100.0] * 40, 4200.0),
        ([0.1] * 900, 5000.0),
        ([5, 10, 20, 40, 80], 160.0),
        ([80, 5], 100.0),
    ],
)
def test_as_arrivals_at_random_moments_wait(absences, total, q):
    assert waiting_quantile(absences, total, q) == pytest.approx(simulated(absences, total, q), rel=0.1, abs=0.3)


def test_one_long_absence_counts_by_what_it_holds_up():
    rings = [0.1] * 500 + [1600.0]  # one ring in 501: its p99 would be 0.1 ms; the last, so nothing follows it
    assert quantile(rings, 0.99) == pytest.approx(0.1)
    assert waiting_quantile(rings, 5000.0, 0.99) == pytest.approx(1550, abs=1)


def served_in_turn(gap_ms, each_ms, count):
    """A loop that reads what is there and then works through it: its absences, and how long each arrival waited."""
    arrivals = deque(gap_ms * i for i in range(count))
    now, absences, waits = 0.0, [], []
    while arrivals:
        ready = bisect_right(arrivals, now)
        began = now
        for _ in range(ready):
            now += each_ms
            waits.append(now - arrivals.popleft())
        absences.append(now - began)
        now = now if ready else arrivals[0]
    return absences, waits, now


@pytest.mark.parametrize("each_ms", [0.5, 0.9, 0.99, 1.05, 1.2])
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_a_loop_below_and_beyond_its_limit(each_ms, q):
    absences, waits, total = served_in_turn(1.0, each_ms, 4000)
    true = quantile(waits, q)
    estimate = waiting_quantile(absences, total, q)
    assert true is not None
    assert estimate is not None
    assert estimate == pytest.approx(true, rel=0.15, abs=1.5)


def test_nothing_is_no_evidence():
    assert waiting_quantile([], 10.0, 0.5) is None
    assert waiting_quantile([1.0], 0.0, 0.5) is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.floats(0, 1))
def test_never_longer_than_the_longest_absence_and_never_falls_with_q(absences, q):
    total = sum(absences) + 1
    low, high = (waiting_quantile(absences, total, at) for at in (q, min(1.0, q + 0.1)))
    assert low is not None
    assert high is not None
    assert 0 <= low <= high + 1e-9
    assert high <= max(absences) + 1e-9
