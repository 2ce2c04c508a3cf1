"""What waits is bounded, numbered without gaps, and told again to who comes back."""

from __future__ import annotations

import json
import threading

from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.outbox import CHATTER, LOG, VITAL, Outbox


def drain(box, sender):
    found = []
    while (line := box.take(sender, 0)) is not None:
        found.append(json.loads(line))
    return found


@given(st.lists(st.sampled_from([VITAL, LOG, CHATTER]), max_size=200))
def test_numbers_have_no_gaps_and_vital_messages_always_arrive(ranks):
    box, sender = Outbox(pending_bytes=2000), object()
    box.attach(sender)
    for number, rank in enumerate(ranks):
        box.put({"event": f"rank {rank}", "number": number}, rank)
    told = drain(box, sender)
    assert [message["seq"] for message in told] == list(range(1, len(told) + 1))
    vital = [message["number"] for message in told if message["event"] == f"rank {VITAL}"]
    assert vital == [number for number, rank in enumerate(ranks) if rank == VITAL]
    dropped = sum(sum(message["events"].values()) for message in told if message["event"] == "dropped")
    arrived = len([message for message in told if message["event"] != "dropped"])
    assert arrived + dropped == len(ranks)


def test_chatter_goes_before_logs():
    box, sender = Outbox(pending_bytes=4000), object()
    box.attach(sender)
    for number in range(20):
        box.put({"event": "log", "n": number}, LOG)
    for number in range(200):
        box.put({"event": "chatter", "n": number}, CHATTER)
    told = drain(box, sender)
    assert len([message for message in told if message["event"] == "log"]) == 20
    (dropped,) = [message["events"] for message in told if message["event"] == "dropped"]
    assert set(dropped) == {"chatter"}


@given(st.integers(0, 30), st.integers(0, 40))
def test_who_comes_back_is_told_what_it_missed(sent, last_seq):
    box, first, second = Outbox(), object(), object()
    box.attach(first)
    for number in range(sent):
        box.put({"event": "e", "n": number})
    assert len(drain(box, first)) == sent
    assert box.attach(second, last_seq) == 0
    box.put({"event": "new"})
    assert [message["seq"] for message in drain(box, second)] == list(range(min(last_seq, sent) + 1, sent + 2))


def test_a_gap_in_memory_is_admitted():
    box, first, second = Outbox(history_bytes=300), object(), object()
    box.attach(first)
    for number in range(50):
        box.put({"event": "e", "n": number})
    drain(box, first)
    missed = box.attach(second, 0)
    again = drain(box, second)
    assert missed == again[0]["seq"] - 1 > 0
    assert again[-1]["seq"] == 50


def test_a_sender_that_was_replaced_takes_nothing_any_more():
    box, old, new = Outbox(), object(), object()
    box.attach(old)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(box.take(old, 30)))
    waiting.start()
    box.attach(new)
    box.put({"event": "e"})
    waiting.join(timeout=10)
    assert taken == [None]
    assert len(drain(box, new)) == 1
