"""HTTP responses: framing, every byte boundary, and refusal of what is not HTTP."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._http1 import HttpError, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes, trailer: bytes = b"") -> bytes:
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n" + trailer + b"\r\n"


def parse(wire: bytes, cuts: list[int], *, eof: bool = False) -> tuple[Response, bytes]:
    response, body = Response(), b""
    edges = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    for low, high in pairwise(edges):
        body += response.feed(wire[low:high])
    if eof:
        response.eof()
    return response, body


WIRES = {
    "chunked": (chunked(b"data: a\n\n", b"data: bc\n\n"), b"data: a\n\ndata: bc\n\n"),
    "end mark inside a chunk": (chunked(b"\r\n0\r\n\r\n", b"x"), b"\r\n0\r\n\r\nx"),
    "trailer and extension": (
        HEAD + b"3;name=value\r\nabc\r\n0\r\nX-Time: 3\r\nY: z\r\n\r\n",
        b"abc",
    ),
    "length": (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nwrong", b"wrong"),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
}


@pytest.mark.parametrize("name", WIRES)
def test_every_split_position_gives_the_same_body(name):
    wire, body = WIRES[name]
    for first in range(len(wire) + 1):
        for second in {first, min(first + 1, len(wire)), len(wire) // 2}:
            response, got = parse(wire, [first, second])
            assert response.done, (first, second)
            assert got == body, (first, second)
            assert response.excess == b""


@settings(deadline=None)
@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=6), cuts=st.lists(st.integers(0, 10**6)))
def test_any_chunks_in_any_pieces(parts, cuts):
    response, body = parse(chunked(*parts), cuts)
    assert response.done
    assert response.keep_alive
    assert body == b"".join(parts)


@settings(deadline=None)
@given(wire=st.binary(max_size=200), cuts=st.lists(st.integers(0, 10**6), max_size=5))
def test_garbage_is_refused_and_never_an_accident(wire, cuts):
    try:
        parse(wire, cuts)
    except HttpError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test


def test_done_only_with_the_last_byte():
    wire = chunked(b"data: x\n\n")
    response, _ = parse(wire[:-1], [len(HEAD)])
    assert not response.done


def test_bytes_after_the_end_are_kept_apart():
    response, body = parse(chunked(b"x") + b"HTTP/1.1 200", [])
    assert (body, response.excess) == (b"x", b"HTTP/1.1 200")


def test_a_body_without_length_ends_with_the_connection():
    wire = b"HTTP/1.1 200 OK\r\n\r\nall of it"
    response, body = parse(wire, [20])
    assert not response.done
    assert response.eof()
    assert body == b"all of it"
    assert not response.keep_alive


def test_a_cut_chunked_body_is_not_complete_at_eof():
    response, _ = parse(chunked(b"abc")[:-3], [], eof=True)
    assert not response.done


@pytest.mark.parametrize(
    ("line", "keep_alive"),
    [(b"Connection: close\r\n", False), (b"Connection: keep-alive\r\n", True), (b"", True)],
)
def test_keep_alive(line, keep_alive):
    response, _ = parse(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 0\r\n\r\n", [])
    assert response.keep_alive is keep_alive


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"zz\r\n",
        HEAD + b"-1\r\n",
        HEAD + b"3\r\nabcd\r\n",
        HEAD + b"0x3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"x" * 70000,
    ],
)
def test_not_http(wire):
    with pytest.raises(HttpError):
        Response().feed(wire)
