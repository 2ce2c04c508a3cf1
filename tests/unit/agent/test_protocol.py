"""Framing survives every split, every length and every kind of rubbish."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.protocol import LineBuffer, OrderError, Params, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_what_is_encoded_is_decoded(message):
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_what_is_not_finite_becomes_null():
    assert decode(encode({"a": float("nan"), "b": [float("inf"), {"c": -float("inf")}]})) == {
        "a": None,
        "b": [None, {"c": None}],
    }


def test_bytes_that_are_no_utf8_travel():
    assert decode(encode({"path": b"\xff\xfe".decode(errors="surrogateescape")}))["path"] == "\udcff\udcfe"


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 200)))
def test_no_split_changes_the_lines(lines, cuts):
    stream = b"".join(line + b"\n" for line in lines)
    places = sorted(min(cut, len(stream)) for cut in cuts)
    buffer = LineBuffer()
    found: list[bytes] = []
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        found.extend(buffer.feed(stream[start:end]))
    assert found == lines
    assert buffer.rest() == b""


@given(st.integers(1, 40), st.binary(max_size=100).filter(lambda line: b"\n" not in line), st.integers(1, 7))
def test_a_line_without_end_is_given_up_once_and_the_next_is_read(limit, line, step):
    stream = line + b"\nnext\n"
    buffer = LineBuffer(limit)
    found: list[bytes] = []
    for start in range(0, len(stream), step):
        found.extend(buffer.feed(stream[start : start + step]))
    assert found[0] == line[: limit + 1]
    if limit >= 4:
        assert found[1:] == [b"next"]


@given(st.binary())
def test_rubbish_is_refused_and_nothing_else(line):
    try:
        message = decode(line)
    except OrderError as error:
        assert error.kind == "bad_message"  # noqa: PT017 - it may as well be valid
        json.dumps(error.as_dict())
    else:
        assert isinstance(message, dict)


def test_deep_nesting_is_refused():
    with pytest.raises(OrderError):
        decode(b"[" * 1_000_000)


@given(
    st.dictionaries(st.sampled_from("abc"), JSON), st.sampled_from(["text", "number", "integer", "texts", "mapping"])
)
def test_every_parameter_is_read_as_its_type_or_refused(values, kind):
    types = {"text": str, "number": float, "integer": int, "texts": list, "mapping": dict}
    try:
        value = getattr(Params(values), kind)("a")
    except OrderError as error:
        assert error.kind == "bad_request"  # noqa: PT017 - it may as well be valid
        assert "'a'" in str(error)  # noqa: PT017
    else:
        assert isinstance(value, types[kind])
        assert not isinstance(value, bool)
