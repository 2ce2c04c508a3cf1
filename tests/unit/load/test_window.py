"""The window's boundaries, and why they are where they are."""

from __future__ import annotations

import random

import pytest

from pytest_sglang_perf.agent.load._window import WindowFinder
from pytest_sglang_perf.metrics import from_records

MS = 1_000_000


def waves(concurrency, prefill_ms, decode_ms, tokens, rounds, jitter=0):
    """Records of a closed loop whose requests prefill together and then decode in step."""
    rng = random.Random(1)
    records, begin = [], 0
    for round_ in range(rounds):
        first = begin + prefill_ms * MS
        end = 0
        for slot in range(concurrency):
            late = rng.randrange(jitter + 1)
            chunks = [[first + late + i * decode_ms * MS, i + 1] for i in range(tokens)]
            index = round_ * concurrency + slot
            end = max(end, chunks[-1][0])
            records.append(record(index, begin, chunks))
        begin = end
    return records, begin // rounds


def record(index, sent_ns, chunks):
    return {
        "index": index,
        "scheduled_ns": sent_ns,
        "sent_ns": sent_ns,
        "status": "ok",
        "chunks": chunks,
        "prompt_tokens": 8,
        "cached_tokens": 0,
        "output_tokens": len(chunks),
        "end_ns": chunks[-1][0],
    }


def find(records, warmup, target):
    finder = WindowFinder(warmup, target)
    finder.full(0)
    for item in sorted(records, key=lambda item: item["end_ns"]):
        if finder.completed(item["index"], item["end_ns"]):
            break
    return finder


@pytest.mark.parametrize("jitter", [0, 3 * MS])
def test_whole_rounds_are_unbiased_where_fixed_times_are_not(jitter):
    records, round_ns = waves(16, prefill_ms=400, decode_ms=10, tokens=20, rounds=8, jitter=jitter)
    truth = 16 * 20 / (round_ns / 1e9)
    finder = find(records, 16, 48)
    ours = from_records(records, {"start_ns": finder.start_ns, "end_ns": finder.end_ns})
    assert ours["output_throughput"] == pytest.approx(truth, rel=0.01)
    errors = []
    for offset in range(0, 600, 50):  # windows of the same length at other phases of the wave, and not whole rounds
        start = finder.start_ns + offset * MS
        fixed = from_records(records, {"start_ns": start, "end_ns": start + int(2.5 * round_ns)})
        errors.append(abs(fixed["output_throughput"] / truth - 1))
    assert max(errors) > 0.15


def test_opens_with_the_last_warm_up_request_not_the_first_that_many():
    finder = WindowFinder(2, 2)
    finder.full(0)
    for index, end in [(0, 10), (2, 15), (3, 20), (1, 30)]:
        assert not finder.completed(index, end)
    assert finder.start_ns == 30
    assert not finder.completed(4, 40)
    assert finder.completed(5, 50)
    assert (finder.start_ns, finder.end_ns) == (30, 50)


def test_waits_for_the_level_to_be_full():
    finder = WindowFinder(1, 1)
    finder.completed(0, 10)
    assert finder.start_ns is None
    finder.full(25)
    assert finder.start_ns == 25


def test_no_warm_up_opens_when_full():
    finder = WindowFinder(0, 1)
    finder.full(5)
    assert finder.start_ns == 5


def test_what_ended_before_the_window_does_not_close_it():
    finder = WindowFinder(1, 1)
    finder.full(0)
    finder.completed(0, 10)
    assert not finder.completed(1, 10)
    assert finder.completed(2, 11)
