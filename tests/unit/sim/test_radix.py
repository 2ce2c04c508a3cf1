"""The prefix cache against a naive one that knows every sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.sim.radix import RadixCache

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def common(one, other):
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


@given(st.lists(tokens, max_size=12), tokens)
def test_the_longest_common_prefix_is_found_and_the_last_token_is_always_computed(stored, prompt):
    cache = RadixCache()
    for sequence in stored:
        cache.insert(sequence)
    longest = max((common(sequence, prompt) for sequence in stored), default=0)
    assert cache.match(prompt) == min(longest, len(prompt) - 1)


@given(st.lists(tokens, max_size=12))
def test_size_is_the_number_of_distinct_prefixes(stored):
    cache = RadixCache()
    new = sum(cache.insert(sequence) for sequence in stored)
    prefixes = {sequence[:end] for sequence in stored for end in range(1, len(sequence) + 1)}
    assert cache.size == new == len(prefixes)


@given(st.lists(tokens, min_size=1, max_size=12), st.integers(0, 60))
def test_eviction_frees_what_it_says_and_keeps_a_tree(stored, wanted):
    cache = RadixCache()
    for sequence in stored:
        cache.insert(sequence)
    before = cache.size
    freed = cache.evict(wanted)
    assert cache.size == before - freed >= 0
    assert freed >= min(wanted, before)
    for sequence in stored:
        cache.insert(sequence)
        assert cache.match((*sequence, 9)) == len(sequence)
    assert cache.size == before


def test_the_least_recently_used_goes_first():
    cache = RadixCache()
    cache.insert((1, 1, 1))
    cache.insert((2, 2, 2))
    cache.match((1, 1, 1))
    assert cache.evict(1) == 3
    assert cache.match((1, 1, 1)) == 2
    assert cache.match((2, 2, 2)) == 0


def test_a_reset_forgets_everything():
    cache = RadixCache()
    cache.insert((1, 2, 3))
    cache.reset()
    assert cache.size == 0
    assert cache.match((1, 2, 3)) == 0
