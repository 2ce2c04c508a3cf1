from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.blame import changes, find, with_changes
from pytest_sglang_perf.suite import ResolvedServer

FLAGS = tuple(f"flag-{n}" for n in range(12))


@pytest.mark.parametrize("culprit", FLAGS)
def test_one_of_twelve_is_found_in_at_most_eight_boots(culprit: str) -> None:
    found = find(FLAGS, lambda subset: culprit in subset, budget=8)
    assert found.culprits == (culprit,)
    assert found.minimal
    assert found.tests <= 5


@given(st.sets(st.sampled_from(FLAGS), min_size=1, max_size=4))
def test_several_that_only_fail_together_are_found(culprits: set[str]) -> None:
    tried: list[tuple[str, ...]] = []

    def fails(subset: tuple[str, ...]) -> bool:
        assert subset not in tried, "a boot was repeated"
        tried.append(subset)
        return culprits <= set(subset)

    found = find(FLAGS, fails, budget=200)
    assert set(found.culprits) == culprits
    assert found.minimal
    assert found.tests == len(tried)


@given(st.sets(st.sampled_from(FLAGS), min_size=2, max_size=6), st.integers(0, 10))
def test_a_spent_budget_still_gives_a_failing_set(culprits: set[str], budget: int) -> None:
    found = find(FLAGS, lambda subset: culprits <= set(subset), budget=budget)
    assert culprits <= set(found.culprits)
    assert found.tests <= budget


@given(st.sets(st.sampled_from(FLAGS), min_size=1, max_size=3))
def test_any_one_of_several_is_enough(culprits: set[str]) -> None:
    found = find(FLAGS, lambda subset: bool(culprits & set(subset)), budget=8)
    assert len(found.culprits) == 1
    assert culprits >= set(found.culprits)


def test_changes_between_configs_can_be_applied_in_parts() -> None:
    parent = ResolvedServer("p", ("p",), "m", args={"a": 1, "b": True}, env={"X": "1"})
    child = ResolvedServer("c", ("p", "c"), "m", args={"a": 2, "c": "new"}, env={"X": "1", "Y": "2"})
    found = changes(parent, child)
    assert found == (("args", "a"), ("args", "b"), ("args", "c"), ("env", "Y"))
    assert with_changes(parent, child, found, name="all").fingerprint == child.fingerprint
    assert with_changes(parent, child, (), name="none").fingerprint == parent.fingerprint
    some = with_changes(parent, child, [("args", "b"), ("env", "Y")], name="some")
    assert (some.args, some.env) == ({"a": 1}, {"X": "1", "Y": "2"})
