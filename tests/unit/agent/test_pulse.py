"""When a server counts as frozen."""

from __future__ import annotations

import pytest

from pytest_sglang_perf.agent.pulse import Pulse, is_sign_of_life

S = 1_000_000_000
STOPPED = [{"pid": 7, "title": "sglang::scheduler", "state": "T"}]


def progressed(since_ns):
    pulse = Pulse(0, silent_s=20.0)
    pulse.report({"ok": 1, "silent_since_ns": since_ns})
    return pulse


@pytest.mark.parametrize(
    ("streams_s", "log_s", "stopped", "frozen"),
    [
        (20, 20, [], True),
        (20, 19, [], False),  # a long prefill, logged batch by batch
        (19, 99, [], False),  # a server that logs nothing, and streams
        (5, 0, STOPPED, True),  # its colleagues still talk
        (4, 99, STOPPED, False),  # it may go on
        (0, 99, STOPPED, False),  # streams flow in spite of it
    ],
)
def test_silence_of_streams_and_log_is_needed_unless_a_process_is_stopped(streams_s, log_s, stopped, frozen):
    now = 1000 * S
    found = progressed(now - streams_s * S).frozen(now, now - log_s * S, stopped)
    assert (found is not None) is frozen
    if found is not None:
        assert found == {"silent_s": float(streams_s), "stopped": stopped}


def test_who_waits_for_nothing_is_not_kept_waiting():
    """An open loop with pauses between its requests."""
    assert progressed(0).frozen(1000 * S, 0, STOPPED) is None


def test_a_server_that_never_answers_is_frozen_from_the_start():
    pulse = Pulse(10 * S, silent_s=20.0)
    assert pulse.frozen(29 * S, 0, []) is None
    assert pulse.frozen(31 * S, 0, []) == {"silent_s": 21.0, "stopped": []}


def test_a_limit_below_the_one_for_stopped_processes_holds_for_them_too():
    now = 1000 * S
    assert Pulse(now - 2 * S, silent_s=2.0).frozen(now, 0, STOPPED) is not None


@pytest.mark.parametrize(
    ("line", "alive"),
    [
        ("[2026-02-19 10:00:00] Prefill batch, #new-seq: 1, #new-token: 8192", True),
        ("[2026-02-19 10:00:00 TP0] Decode batch, #running-req: 8", True),
        ('[2026-02-19 10:00:00] INFO:     127.0.0.1:52340 - "GET /metrics HTTP/1.1" 200 OK', False),
        ("[2026-02-19 10:00:00] Health check failed. Server couldn't get a response from detokenizer", False),
    ],
)
def test_what_the_front_end_says_alone_is_no_sign_of_life(line, alive):
    assert is_sign_of_life(line) is alive
