"""Throughput and latency against figures worked out by hand, and against a second implementation."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.metrics import REGISTRY, Absent, from_gpu, from_records, from_trials, steady_requests

S = 1_000_000_000
MS = 1_000_000
WINDOW = {"start_ns": 10 * S, "end_ns": 20 * S}


def record(sent_ns, chunks, *, status="ok", scheduled_ns=None, end_ns=..., prompt=100, cached=0, total=None):
    counted = [c for _, c in chunks if c is not None]
    return {
        "scheduled_ns": sent_ns if scheduled_ns is None else scheduled_ns,
        "sent_ns": sent_ns,
        "status": status,
        "chunks": [list(chunk) for chunk in chunks],
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": counted[-1] if counted else total,
        "end_ns": (chunks[-1][0] if chunks else sent_ns + MS) if end_ns is ... else end_ns,
        "server": {},
    }


def steady(count, *, first_ms=100, step_ms=10, tokens=11):
    """Requests one after the other inside the window."""
    return [
        record(
            10 * S + (1 + i) * MS,
            [(10 * S + (1 + i + first_ms + step_ms * k) * MS, k + 1) for k in range(tokens)],
        )
        for i in range(count)
    ]


def test_by_hand():
    chunks = [(12 * S, 2), (13 * S, 3), (15 * S, 7)]  # 2 tokens at once, then 1 after 1 s, then 4 after 2 s
    values = from_records([record(11 * S, chunks, scheduled_ns=10 * S + 500 * MS, cached=25)], WINDOW)
    assert values["output_throughput"] == 0.7
    assert values["request_throughput"] == 0.1
    assert values["input_throughput"] == 10.0
    assert values["ttft_mean"] == 1.0
    assert values["ttft_scheduled_mean"] == 1.5
    assert values["tpot_mean"] == 3 / 5
    assert values["itl_mean"] == (1.0 + 4 * 0.5) / 5
    assert values["e2e_mean"] == 4.0
    assert values["cache_hit_rate"] == 0.25
    assert values["concurrency"] == pytest.approx(0.4)
    assert values["failed_requests"] == 0.0


def test_every_registered_metric_of_a_trial_is_there_and_no_other():
    values = from_records(steady(3), WINDOW) | from_gpu([], WINDOW, 1.0)
    assert set(values) == set(REGISTRY) - {"boot_time"}


def test_time_scale_is_applied_once_to_everything():
    plain, scaled = from_records(steady(70), WINDOW), from_records(steady(70), WINDOW, time_scale=20.0)
    for name, value in plain.items():
        unit = REGISTRY[name].unit
        factor = 20.0 if unit == "s" else 1 / 20.0 if unit.endswith("/s") else 1.0
        if isinstance(value, Absent):
            assert scaled[name] == value
        else:
            assert scaled[name] == pytest.approx(value * factor)


def test_tokens_of_the_window_come_also_from_requests_that_cross_its_ends():
    before = record(5 * S, [(9 * S, 1), (10 * S, 2), (11 * S, 3)])
    after = record(19 * S, [(20 * S, 1), (21 * S, 2)])
    cut = record(19 * S, [(20 * S, 4)], status="aborted", end_ns=20 * S + 1)
    values = from_records([before, after, cut], WINDOW)
    assert values["output_throughput"] == (1 + 1 + 4) / 10
    assert values["request_throughput"] == 0.1


@pytest.mark.parametrize("status", ["failed", "errored", "empty", "short"])
def test_what_went_wrong_is_counted_apart(status):
    wrong = record(11 * S, [(12 * S, 50)] if status != "empty" else [], status=status)
    values = from_records([*steady(3), wrong], WINDOW)
    assert values["failed_requests"] == 1.0
    assert values["failed_share"] == 0.25
    assert values["output_throughput"] == 3.3
    assert values["ttft_mean"] == pytest.approx(0.1)


@pytest.mark.parametrize(("percent", "needed"), [(50, 11), (90, 64), (95, 130), (99, 662)])
def test_percentiles_need_their_samples(percent, needed):
    name = f"ttft_p{percent}"
    few = from_records(steady(needed - 1), WINDOW)[name]
    assert isinstance(few, Absent)
    assert str(needed) in few.reason
    assert str(needed - 1) in few.reason
    assert from_records(steady(needed), WINDOW)[name] == pytest.approx(0.1)


def test_gaps_between_tokens_do_not_make_samples():
    values = from_records(steady(10, tokens=500, step_ms=1), WINDOW)
    assert isinstance(values["itl_p50"], Absent)
    assert values["itl_mean"] == pytest.approx(0.001)


def test_trials_of_a_boot_pool_their_requests():
    later = {"start_ns": 30 * S, "end_ns": 40 * S}
    moved = [record(r["sent_ns"] + 20 * S, [(at + 20 * S, count) for at, count in r["chunks"]]) for r in steady(32)]
    assert isinstance(from_records(steady(32), WINDOW)["ttft_p90"], Absent)
    both = from_trials([(steady(32), WINDOW), (moved, later)])
    assert both["ttft_p90"] == pytest.approx(0.1)
    assert both["output_throughput"] == pytest.approx(from_records(steady(32), WINDOW)["output_throughput"])
    assert steady_requests(steady(32), WINDOW) == 32
    assert steady_requests(moved, WINDOW) == 0


def test_a_total_is_spread_over_chunks_without_counts():
    records = [record(11 * S, [(12 * S, None), (13 * S, None), (21 * S, None)], total=6, end_ns=21 * S)]
    values = from_records(records, WINDOW)
    assert values["output_throughput"] == 0.4


def test_without_counts_no_figure_of_tokens_is_made_up():
    values = from_records([record(11 * S, [(12 * S, None), (13 * S, None)])], WINDOW)
    assert values["ttft_mean"] == 1.0
    assert values["e2e_mean"] == 2.0
    for name in ("output_throughput", "tpot_mean", "itl_mean"):
        absent = values[name]
        assert isinstance(absent, Absent)
        assert "token counts" in absent.reason


def test_one_token_answers_have_no_tpot():
    values = from_records(steady(3, tokens=1), WINDOW)
    assert isinstance(values["tpot_mean"], Absent)
    assert values["ttft_mean"] == pytest.approx(0.1)


def test_events_read_together_are_one_arrival():
    values = from_records([record(11 * S, [(12 * S, 1), (13 * S, 2), (13 * S, 3)])], WINDOW)
    assert values["itl_mean"] == 0.5


def test_nothing_in_the_window():
    values = from_records([], WINDOW)
    assert values["output_throughput"] == 0.0
    assert isinstance(values["failed_share"], Absent)
    assert isinstance(values["ttft_p50"], Absent)


REQUESTS = st.lists(
    st.tuples(
        st.integers(5000, 21000), st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 8)), min_size=1, max_size=8)
    ),
    max_size=15,
)


@settings(deadline=None)
@given(REQUESTS)
def test_against_a_naive_implementation(requests):
    records = []
    for sent, steps in requests:
        at, count, chunks = sent * MS, 0, []
        for gap, tokens in steps:
            at, count = at + gap * MS, count + tokens
            chunks.append((at, count))
        records.append(record(sent * MS, chunks))
    values = from_records(records, WINDOW)
    tokens, ttft, tpot, itl = 0, [], [], []
    for item in records:
        chunks = item["chunks"]
        counts = [chunks[0][1], *(b[1] - a[1] for a, b in pairwise(chunks))]
        tokens += sum(n for (at, _), n in zip(chunks, counts, strict=True) if 10 * S < at <= 20 * S)
        if 10 * S < chunks[-1][0] <= 20 * S:
            ttft.append((chunks[0][0] - item["sent_ns"]) / 1e9)
            if len(chunks) > 1:
                tpot.append((chunks[-1][0] - chunks[0][0]) / 1e9 / (chunks[-1][1] - chunks[0][1]))
            for before, (at, _), n in zip(chunks, chunks[1:], counts[1:], strict=False):
                itl += [(at - before[0]) / 1e9 / n] * n
    assert values["output_throughput"] == pytest.approx(tokens / 10)
    for name, samples in (("ttft", ttft), ("tpot", tpot), ("itl", itl)):
        mean = values[f"{name}_mean"]
        if samples:
            assert mean == pytest.approx(statistics.fmean(samples))
        else:
            assert isinstance(mean, Absent)
