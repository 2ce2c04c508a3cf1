"""What each event of an answer counts for, in the three dialects."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._decode import Decoder


def sse(*events) -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)


def decode(*events, keep_bodies: bool = False) -> Decoder:
    decoder = Decoder(keep_bodies=keep_bodies)
    for number, event in enumerate(events):
        decoder.feed(number, sse(event))
    decoder.finish(len(events))
    return decoder


def native(count, *, text="x", finish=None, **more):
    meta = {"id": "1", "finish_reason": finish, "prompt_tokens": 7, "completion_tokens": count, "cached_tokens": 2}
    return {"text": text, "meta_info": meta | more}


def delta(content=None, *, role=None, finish=None, usage=None):
    inner = {key: value for key, value in (("role", role), ("content", content)) if value is not None}
    return {"choices": [{"index": 0, "delta": inner, "finish_reason": finish}], "usage": usage}


def usage(count):
    return {
        "prompt_tokens": 7,
        "total_tokens": 7 + count,
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


LENGTH = {"type": "length", "length": 5}


def test_native_counts_are_the_servers_own():
    done = native(5, finish=LENGTH, e2e_latency=0.25)
    decoder = decode(native(1, text=""), native(2), native(4), native(4), done, b"[DONE]")
    assert decoder.chunks == [0, 1, 1, 2, 2, 4, 4, 5]
    assert decoder.idle_events == 1
    assert decoder.tokens == 5
    assert decoder.done
    assert decoder.summary() == {
        "finish": "length",
        "prompt_tokens": 7,
        "cached_tokens": 2,
        "server": {"e2e_s": 0.25},
        "text": "x",
        "ids": None,
    }


def test_a_models_text_cannot_forge_a_count_or_an_error():
    text = '"completion_tokens": 99, "error": {"message": "no"}, data: [DONE]'
    decoder = decode(native(1, text=text), native(2, text=text, finish=LENGTH))
    assert decoder.chunks == [0, 1, 1, 2]
    assert decoder.error is None
    assert not decoder.done


def test_chat_with_counts_in_every_chunk():
    decoder = decode(
        delta("", role="assistant", usage=usage(0)),
        delta("He", usage=usage(1)),
        delta("", usage=usage(2)),  # half a character: a token without text
        delta("llo", usage=usage(4)),
        delta(finish="length", usage=usage(4)),
        {"choices": [], "usage": usage(4)},
        b"[DONE]",
    )
    assert decoder.chunks == [1, 1, 2, 2, 3, 4]
    assert decoder.idle_events == 3
    summary = decoder.summary()
    assert (summary["finish"], summary["prompt_tokens"], summary["cached_tokens"]) == ("length", 7, 4)


def test_chat_with_a_total_only():
    decoder = decode(
        delta("", role="assistant"),
        delta("He"),
        delta(""),
        delta("llo"),
        delta(finish="stop"),
        {"choices": [], "usage": usage(4)},
        b"[DONE]",
    )
    assert decoder.chunks == [1, None, 3, None]
    assert decoder.tokens == 4
    assert decoder.summary()["finish"] == "stop"


def test_without_any_usage_the_total_is_unknown():
    decoder = decode(delta("a"), delta("b", finish="stop"), b"[DONE]")
    assert decoder.chunks == [0, None, 1, None]
    assert decoder.tokens is None


def test_reasoning_and_tool_arguments_are_output():
    reasoning = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    tool = {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}, "finish_reason": None}]}
    assert decode(reasoning, tool).chunks == [0, None, 1, None]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": {"message": "KV cache is full", "code": 500}}, "KV cache is full"),
        ({"error": "plain"}, "plain"),
        (b"upstream went away", "not JSON: upstream went away"),
    ],
)
def test_errors_after_a_200(event, error):
    decoder = decode(native(1), event, b"[DONE]")
    assert decoder.error == error
    assert decoder.chunks == [0, 1]


def test_an_error_key_of_null_is_no_error():
    decoder = decode(native(1) | {"error": None}, native(2))
    assert decoder.error is None
    assert decoder.chunks == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ({"type": "abort", "message": "out of memory"}, "abort: out of memory"),
        ({"type": "stop", "matched": "NaN happened"}, "stop: NaN happened"),
        ({"type": "stop", "matched": 2}, "stop"),
        (None, None),
    ],
)
def test_finish(reason, finish):
    assert decode(native(1, finish=reason)).summary()["finish"] == finish


def test_bodies_go_with_chunks():
    events = [native(1), native(1), native(2)]
    decoder = decode(*events, keep_bodies=True)
    assert [json.loads(body) for body in decoder.bodies] == [events[0], events[2]]


def test_events_read_together_share_their_arrival():
    decoder = Decoder()
    decoder.feed(50, sse(native(1), native(2)))
    assert decoder.chunks == [50, 1, 50, 2]


SPECIAL = [b"[DONE]", {"error": {"message": "no"}}, b"{nonsense"]
EVENT = st.fixed_dictionaries(
    {
        "step": st.sampled_from([1, 1, 1, 2, 0, -1]),
        "text": st.sampled_from(["x", "x", "", None, '"completion_tokens":99,', '"error"', "\n"]),
        "finish": st.sampled_from([False, False, False, True]),
        "counted": st.sampled_from([True, True, True, False]),
        "compact": st.sampled_from([True, True, False]),
        "instead": st.sampled_from([None] * 9 + SPECIAL),
        "error": st.sampled_from([False] * 9 + [True]),
        "end": st.sampled_from([b"\n\n"] * 12 + [b"\r\n\r\n", b"\n: note\n\n", b"\n", b"\rdata: 1\n\n"]),
        "apart": st.sampled_from([True, True, True, False]),
    }
)


def written(choices, *, as_native):
    """The events of one answer in one dialect, as bytes."""
    count = 0
    for number, chosen in enumerate(choices):
        count = max(0, count + chosen["step"])
        if as_native:
            event = native(count, text=chosen["text"], finish=LENGTH if chosen["finish"] else None, sent_ns=number)
        else:
            counts = usage(count) if chosen["counted"] else None
            event = delta(chosen["text"], finish="stop" if chosen["finish"] else None, usage=counts)
        if chosen["error"]:
            event["error"] = {"message": "no"}
        if chosen["instead"] is not None:
            event = chosen["instead"]
        if not isinstance(event, bytes):
            event = json.dumps(event, separators=(",", ":") if chosen["compact"] else None).encode()
        yield b"data: " + event + chosen["end"]


@settings(deadline=None, max_examples=300)
@given(
    choices=st.lists(EVENT, min_size=3),
    as_native=st.booleans(),
    cuts=st.lists(st.integers(0, 10**4), max_size=3),
    batch=st.integers(1, 9),
    keep_bodies=st.booleans(),
)
def test_many_at_once_are_read_as_one_by_one(choices, as_native, cuts, batch, keep_bodies):
    bodies = list(written(choices, as_native=as_native))
    wire = b"".join(bodies)
    edges = {0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)}
    edges.update(sum(map(len, bodies[:number])) for number in range(len(bodies)) if choices[number]["apart"])
    pieces: list[Any] = []
    for at, (low, high) in enumerate(pairwise(sorted(edges))):
        pieces += [at, wire[low:high]]
    singly, together = (Decoder(keep_bodies=keep_bodies, stamped=True) for _ in range(2))
    for at in range(0, len(pieces), 2):
        singly.feed(pieces[at], pieces[at + 1])
    for at in range(0, len(pieces), 2 * batch):
        part = pieces[at : at + 2 * batch]
        together.take(part, len(part))
    for decoder in (singly, together):
        decoder.finish(len(pieces))
    for name in ("chunks", "tokens", "done", "error", "idle_events", "bodies", "lags"):
        assert getattr(singly, name) == getattr(together, name), name
    assert singly.summary() == together.summary()
