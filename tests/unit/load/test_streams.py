"""Answers of a real sglang, cut at every byte: no boundary between two reads changes what is counted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._connection import BufferedConnection, Connection
from pytest_sglang_perf.agent.load._digest import status_of
from pytest_sglang_perf.agent.load._requests import RequestFactory
from pytest_sglang_perf.agent.load._spec import parse

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parents[2] / "data" / "streams").glob("*.http")}
FACTORY = RequestFactory(
    parse(
        {
            "url": "http://127.0.0.1:1",
            "arrival": {"kind": "closed", "concurrency": 1},
            "input": 16,
            "output": 12,
            "requests": 1,
        }
    ),
    "salt",
)


class Wire:
    """A transport and an owner in one: takes what a connection says."""

    def __init__(self):
        self.ended_at = None

    def write(self, data):
        """Nothing to send to."""

    def close(self):
        """Nothing to close."""

    abort = close

    def arrived(self, exchange):
        """Decoding early is for long answers."""

    def dropped(self, connection):
        """Nobody is told."""

    def ended(self, connection, exchange, now_ns):  # noqa: ARG002
        self.ended_at = now_ns


def received(connection, data):
    """Hand over a read as asyncio does for either kind of protocol."""
    if isinstance(connection, BufferedConnection):
        while data:
            buffer = connection.get_buffer(-1)
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            connection.buffer_updated(taken)
            buffer[:taken] = bytes(taken)  # what is kept must not be this memory
            data = data[taken:]
    else:
        connection.data_received(data)


def read(wire: bytes, cuts=(), kind=Connection):
    """Status, token counts, totals and finish of an answer that arrives in these pieces."""
    owner = Wire()
    connection = kind(owner)
    connection.connection_made(owner)
    exchange = FACTORY.build(0)
    connection.send(exchange)
    for low, high in pairwise(sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})):
        assert owner.ended_at is None, "the answer was taken for complete before its last byte"
        received(connection, wire[low:high])
    assert owner.ended_at is not None
    assert exchange.error is None
    arrivals = exchange.pending[0::2]
    assert arrivals == sorted(arrivals)
    exchange.decoder.take(exchange.pending, len(exchange.pending))
    exchange.decoder.finish(owner.ended_at)
    decoder, summary = exchange.decoder, exchange.decoder.summary()
    status = status_of(exchange, summary["finish"], ignore_eos=True)
    counts = decoder.chunks[1::2]
    return (
        status,
        counts,
        decoder.tokens,
        summary["finish"],
        summary["prompt_tokens"],
        decoder.idle_events,
        decoder.error,
    )


EXPECTED = {
    "generate": ("ok", list(range(1, 13)), 12, "length", 16),
    "generate_text": ("ok", list(range(1, 13)), 12, "length", None),
    "generate_too_long": ("errored", [], None, None, None),
    "completions": ("ok", None, 12, "length", 16),
    "completions_total": ("ok", None, 12, "length", 16),
    "chat": ("ok", None, 12, "length", None),
    "chat_total": ("ok", None, 12, "length", None),
    "chat_plain": ("ok", None, None, "length", None),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_a_real_server_said(name):
    status, counts, tokens, finish, prompt = EXPECTED[name]
    got = read(STREAMS[name])
    assert (got[0], got[2], got[3]) == (status, tokens, finish)
    if counts is not None:
        assert got[1] == counts
    if prompt is not None:
        assert got[4] == prompt
    if name in ("completions_total", "chat_total", "chat_plain"):
        assert set(got[1]) == {None}
    elif name in ("completions", "chat"):
        assert got[1] == sorted(set(got[1]))
        assert got[1][-1] == 12
    if name == "generate_too_long":
        assert "longer than the model's context length" in got[6]


def test_the_counts_are_those_that_json_says():
    """The quick search against a full decoding of every event."""
    for name in ("generate", "generate_text", "completions", "chat"):
        seen: list[int] = []
        for line in STREAMS[name].split(b"\n"):
            if line.startswith(b"data: {"):
                data = json.loads(line[6:].split(b"\r")[0])
                count = (data.get("meta_info") or data.get("usage") or {}).get("completion_tokens")
                if count and (not seen or count > seen[-1]):
                    seen.append(count)
        assert read(STREAMS[name])[1] == seen, name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_split_position(name):
    wire = STREAMS[name]
    whole = read(wire)
    for cut in range(1, len(wire)):
        assert read(wire, [cut]) == whole, cut


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(EXPECTED)), cuts=st.lists(st.integers(0, 10**6), max_size=60))
def test_any_pieces(name, cuts):
    assert read(STREAMS[name], cuts) == read(STREAMS[name])


def test_byte_by_byte():
    for name, wire in STREAMS.items():
        assert read(wire, range(len(wire))) == read(wire), name


def chunk_edges(wire: bytes):
    """Where each chunk of an answer begins."""
    at = wire.index(b"\r\n\r\n") + 4
    while at < len(wire):
        yield at
        line_end = wire.index(b"\r\n", at)
        at = line_end + 2 + int(wire[at:line_end], 16) + 2


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"generate_too_long"}))
def test_chunk_by_chunk_as_servers_send_them(name):
    wire = STREAMS[name]
    edges = list(chunk_edges(wire))
    assert len(edges) > 2
    for _ in range(2):  # sizes are read the first time, and known the second
        assert read(wire, edges) == read(wire)
        assert read(wire, edges, BufferedConnection) == read(wire)
    for cut in range(edges[1], edges[2]):
        assert read(wire, [*edges, cut]) == read(wire), cut


@pytest.mark.parametrize("end", [b"XX", b"\r\r", b"\n\n"])
def test_a_chunk_without_its_line_end_is_an_error(end):
    owner = Wire()
    connection = Connection(owner)
    connection.connection_made(owner)  # type: ignore[arg-type]
    exchange = FACTORY.build(0)
    connection.send(exchange)
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(3):
        connection.data_received(b"9\r\ndata: 1\n\n\r\n")
    assert exchange.pending[1::2] == [b"data: 1\n\n"] * 3
    connection.data_received(b"9\r\ndata: 1\n\n" + end)
    assert exchange.error is not None
    assert connection.closed
