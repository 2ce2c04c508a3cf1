"""Events: line ends, comments, several lines, split characters, in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._sse import EventSplitter


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    splitter, events = EventSplitter(), []
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for low, high in pairwise(edges):
        events += splitter.feed(body[low:high])
    return events + splitter.finish()


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b": ping\n\ndata: a\n\n: ping\n\n", [b"a"]),
        (b"event: x\nid: 3\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n", [b"a"]),
        ("data: größe 日本\n\n".encode(), ["größe 日本".encode()]),
        (b"data: a\n\ndata: last", [b"a", b"last"]),
        (b"", []),
    ],
)
def test_every_split_position(body, events):
    for first in range(len(body) + 1):
        for second in range(first, len(body) + 1):
            assert split(body, [first, second]) == events


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(
    events=st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 10**6), max_size=12),
)
def test_any_events_in_any_pieces(events, end, cuts):
    body = "".join("".join(f"data: {line}{end}" for line in lines) + end for lines in events)
    assert split(body.encode(), cuts) == ["\n".join(lines).encode() for lines in events]


@settings(deadline=None)
@given(body=st.binary(max_size=100), cuts=st.lists(st.integers(0, 10**6), max_size=6))
def test_pieces_never_matter(body, cuts):
    assert split(body, cuts) == split(body, [])
