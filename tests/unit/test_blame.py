from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.blame import OutOfBudget, changes, find, with_changes
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


@given(st.sampled_from(FLAGS), st.sets(st.sampled_from(FLAGS), max_size=4))
def test_sets_that_cannot_be_told_are_gone_around(culprit: str, murky: set[str]) -> None:
    """A set with something murky and without the culprit is unresolved; the culprit always shows."""

    def fails(subset: tuple[str, ...]) -> bool | None:
        if culprit in subset:
            return True
        return None if murky & set(subset) else False

    found = find(FLAGS, fails, budget=200)
    assert found.culprits == (culprit,)
    assert found.minimal


@given(st.sets(st.sampled_from(FLAGS), min_size=1, max_size=3), st.sets(st.sampled_from(FLAGS), min_size=1, max_size=3))
def test_what_is_found_fails_and_is_only_called_minimal_when_it_is(culprits: set[str], needed: set[str]) -> None:
    """Without ``needed`` nothing can be told, as where one flag crashes unless another is there."""

    def fails(subset: tuple[str, ...]) -> bool | None:
        return culprits <= set(subset) if needed <= set(subset) else None

    found = find(FLAGS, fails, budget=300)
    assert culprits <= set(found.culprits)
    assert found.unresolved > 0 or needed <= culprits
    if found.minimal and len(found.culprits) > 1:
        assert set(found.culprits) == culprits


def test_a_test_may_spend_the_budget_itself() -> None:
    boots = 0

    def fails(subset: tuple[str, ...]) -> bool:
        nonlocal boots
        if boots == 3:
            raise OutOfBudget
        boots += 1
        return FLAGS[5] in subset

    found = find(FLAGS, fails, budget=100)
    assert found.tests == 3
    assert FLAGS[5] in found.culprits
    assert not found.minimal
