"""Decoding in slices: short ones while it keeps up, longer ones instead of a backlog without end."""

from __future__ import annotations

import json
from io import StringIO
from types import SimpleNamespace

import pytest

from pytest_sglang_perf.agent.load import _digest
from pytest_sglang_perf.agent.load._digest import STATUSES, Digester, _line
from pytest_sglang_perf.agent.load._requests import RequestFactory
from pytest_sglang_perf.agent.load._spec import parse

STREAMS = 512
SPEC = parse(
    {
        "url": "http://127.0.0.1:1",
        "arrival": {"kind": "closed", "concurrency": STREAMS},
        "input": 4,
        "output": 1,
        "requests": 1,
    }
)
FACTORY = RequestFactory(SPEC, "salt")
STEP_S = 0.00001


@pytest.fixture
def decoded(monkeypatch):
    """How many of so many waiting answers one slice decodes, where the clock moves by a set time at each look."""

    def run(waiting):
        digester = Digester(SPEC, SimpleNamespace(call_later=lambda *_: None), StringIO())  # type: ignore[arg-type]
        clock = iter(range(10**6))
        monkeypatch.setattr(_digest, "perf_counter", lambda: next(clock) * STEP_S)
        for index in range(waiting):
            exchange = FACTORY.build(index)
            exchange.error, exchange.end_ns = "closed", 1
            digester.push(exchange)
        digester._slice()
        return sum(digester.tally.counts[status] for status in STATUSES)

    return run


def test_one_answer_of_every_stream_is_no_backlog(decoded):
    assert decoded(STREAMS // 2) == decoded(STREAMS) == pytest.approx(_digest._SLICE_S / STEP_S, abs=1)


def test_a_backlog_makes_slices_longer(decoded):
    assert decoded(4 * STREAMS) == pytest.approx(4 * decoded(STREAMS), rel=0.1)


def test_all_is_decoded_at_last(decoded):
    assert decoded(7) == 7


@pytest.mark.parametrize("chunks", [[], [5, 1], [5, None, 7, None], [5, 1, 7, 2, 9, 40]])
def test_a_line_is_the_record_with_its_chunks(chunks):
    pairs = [[chunks[i], chunks[i + 1]] for i in range(0, len(chunks), 2)]
    assert json.loads(_line({"index": 1, "error": 'a "quote"'}, chunks)) == {
        "index": 1,
        "error": 'a "quote"',
        "chunks": pairs,
    }
