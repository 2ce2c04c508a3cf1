"""What makes a trial invalid, figure by figure: each bound from both sides."""

from __future__ import annotations

from array import array

import pytest

from pytest_sglang_perf.agent.load._digest import STATUSES, Tally
from pytest_sglang_perf.agent.load._result import build
from pytest_sglang_perf.agent.load._spec import parse

MS = 1_000_000
START = 1000 * MS
GOOD = {"cpu_share": 0.3, "cpu_wait_share": 0.0, "lag_p50_ms": 0.1, "lag_p99_ms": 1.0}


def tally(requests=20, *, status="ok", bad=0, ttft_ms=100, late_ms=0.0, prompt=100, cached=0, busy_ms=500):
    """Requests one after the other on two slots, ending in a window of 10 s."""
    made = Tally()
    for i in range(requests):
        end = START + (i + 1) * busy_ms * MS
        made.index.append(i)
        made.scheduled.append(end - busy_ms * MS - int(late_ms * MS))
        made.sent.append(end - busy_ms * MS)
        made.first.append(end - busy_ms * MS + ttft_ms * MS)
        made.end.append(end)
        name = status if i < bad else "ok"
        made.status.append(STATUSES.index(name))
        made.counts[name] += 1
        made.prompt.append(prompt)
        made.cached.append(cached)
    return made


def judge(
    made=None, *, arrival=None, ended_by="done", window=(START, START + 10_000 * MS), limits=None, seen=(), **audit
):
    order = {
        "url": "http://127.0.0.1:1",
        "arrival": arrival or {"kind": "closed", "concurrency": 1},
        "input": 100,
        "output": 8,
        "requests": 20,
        "limits": limits or {},
    }
    made = made or tally()
    start, end = window
    result = build(
        parse(order),
        made,
        start_ns=start,
        end_ns=end,
        ended_by=ended_by,
        audit=GOOD | audit,
        requests=20,
        server_seen=seen,
    )
    assert result["valid"] is (not result["invalid"])
    for item in result["invalid"]:
        assert item["message"]
    return [item["check"] for item in result["invalid"]], result


def test_a_good_trial():
    checks, result = judge()
    assert checks == []
    assert result["counts"]["ok"] == 20
    assert result["audit"]["delivered_concurrency"] == pytest.approx(1)
    assert result["audit"]["ttft_p50_ms"] == 100


@pytest.mark.parametrize(
    ("audit", "check"),
    [
        ({"cpu_share": 0.89}, None),
        ({"cpu_share": 0.91}, "cpu_share"),
        ({"cpu_share": 0.25, "cpu_wait_share": 0.7}, "cpu_share"),  # starved rather than busy: as bad
        ({"lag_p50_ms": 9.0}, None),  # below 10 % of (100 - 9) ms
        ({"lag_p50_ms": 9.2}, "lag_p50_ms"),
        ({"lag_p99_ms": 24.9}, None),
        ({"lag_p99_ms": 25.1}, "lag_p99_ms"),
        ({"lag_p99_ms": None, "lag_p50_ms": None}, None),
    ],
)
def test_the_client(audit, check):
    checks, _ = judge(**audit)
    assert checks == ([] if check is None else [check])


def test_lag_is_judged_beside_what_it_distorts():
    slow = tally(ttft_ms=400, busy_ms=500)
    assert judge(slow, lag_p99_ms=70.0)[0] == []
    assert judge(slow, lag_p99_ms=90.0)[0] == ["lag_p99_ms"]  # 25 % of (400 - 90) ms


def test_a_client_is_not_excused_by_the_slowness_that_it_causes():
    inflated = tally(ttft_ms=450, busy_ms=500)
    assert judge(inflated, lag_p99_ms=400.0)[0] == ["lag_p99_ms"]
    assert judge(inflated, lag_p50_ms=19.0)[0] == []
    assert judge(inflated, lag_p50_ms=300.0)[0] == ["lag_p50_ms"]


@pytest.mark.parametrize(
    ("status", "check"),
    [("failed", "failed_share"), ("errored", "failed_share"), ("empty", "failed_share"), ("short", "short_share")],
)
def test_requests_that_went_wrong(status, check):
    assert judge(tally(100, status=status, bad=8, busy_ms=100))[0] == [check]
    if check == "failed_share":
        assert judge(tally(100, status=status, bad=5, busy_ms=100))[0] == []


def test_delivered_concurrency():
    two = {"kind": "closed", "concurrency": 2}
    checks, result = judge(arrival=two)
    assert checks == ["delivered_concurrency"]
    assert "1.0 of 2" in result["invalid"][0]["message"]


def test_the_servers_own_count():
    seen = [(START + i * MS, 0.4) for i in range(1, 9)]
    assert judge(seen=seen)[0] == ["server_running"]
    assert judge(seen=seen[:4])[0] == []  # too few to say
    assert judge(seen=[(at, 0.9) for at, _ in seen])[0] == []


def test_what_the_servers_front_end_holds_was_not_held_back_on_the_way():
    """One H200 at 256: its scheduler counted 124, its stamps of each request covered 2.44 s of 2.50 s."""
    seen = [(START + i * MS, 0.4) for i in range(1, 9)]
    stamped = tally()
    took_s = (stamped.end[0] - stamped.sent[0]) / 1e9
    stamped.server_gap_s.extend([0.03 * took_s] * 20)
    assert judge(stamped, seen=seen)[0] == []
    late = tally()
    late.server_gap_s.extend([0.6 * took_s] * 20)
    assert judge(late, seen=seen)[0] == ["server_running"]


def test_the_servers_own_count_of_an_open_pattern():
    rate = {"kind": "constant", "rate": 20}
    many = tally(200, busy_ms=50)
    many.sent = many.scheduled = array("q", [end - 500 * MS for end in many.end])  # ten at a time
    few = [(START + i * MS, 3.0) for i in range(1, 9)]
    assert judge(many, arrival=rate, seen=few)[0] == ["server_running"]
    assert judge(many, arrival=rate, seen=[(at, 9.0) for at, _ in few])[0] == []
    assert judge(tally(), arrival=rate, seen=[(at, 0.0) for at, _ in few])[0] == []  # one or none at a time: by chance


@pytest.mark.parametrize(("late_ms", "checks"), [(20.0, []), (30.0, ["schedule_lag_p99_ms"])])
def test_the_schedule(late_ms, checks):
    assert judge(tally(late_ms=late_ms), arrival={"kind": "poisson", "rate": 2})[0] == checks


def test_a_schedule_held_back_on_purpose_is_not_late():
    arrival = {"kind": "poisson", "rate": 2, "max_concurrency": 1}
    assert judge(tally(late_ms=3000.0), arrival=arrival)[0] == []


@pytest.mark.parametrize(("cached", "checks"), [(1, []), (2, ["cached_share"])])
def test_cached_tokens(cached, checks):
    found, result = judge(tally(cached=cached))
    assert found == checks
    assert result["cached_share"] == cached / 100


def test_unknown_cached_tokens_are_no_evidence():
    found, result = judge(tally(prompt=-1, cached=-1))
    assert found == []
    assert result["cached_share"] is None


@pytest.mark.parametrize("reason", ["deadline", "stall", "server_died", "cancelled", "all_failed", "worker_died"])
def test_whatever_did_not_end_well_is_invalid(reason):
    checks, result = judge(ended_by=reason, window=(None, None))
    assert checks == ["ended_by"]
    assert result["window"] is None


def test_no_window_although_all_was_sent():
    assert judge(window=(5, None))[0] == ["window"]
