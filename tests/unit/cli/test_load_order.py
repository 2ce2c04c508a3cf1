"""``sglang-perf load``: what its options order, and that the load engine takes it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from pytest_sglang_perf.agent.load import _spec as load_spec
from pytest_sglang_perf.cli import load
from pytest_sglang_perf.errors import MeasureError

URL = ["--url", "http://127.0.0.1:1"]


def ordered(*words: str) -> tuple[dict[str, Any], load_spec.Spec]:
    """The order, and the engine's reading of it."""
    parser = argparse.ArgumentParser()
    load._add_options(parser)
    order = load.order(parser.parse_args([*URL, *words]), "records.jsonl")
    return order, load_spec.parse(order)


@pytest.mark.parametrize(
    ("words", "arrival", "requests"),
    [
        (["--concurrency", "8"], load_spec.Arrival("closed", concurrency=8), 32),
        (["--rate", "2.5"], load_spec.Arrival("poisson", rate=2.5), 200),
        (
            ["--rate", "2", "--arrival", "constant", "--concurrency", "9"],
            load_spec.Arrival("constant", rate=2.0, max_concurrency=9),
            200,
        ),
        (
            ["--rate", "2", "--arrival", "gamma", "--burstiness", "0.5", "--requests", "7"],
            load_spec.Arrival("gamma", rate=2.0, burstiness=0.5),
            7,
        ),
        (["--burst", "64/2.5"], load_spec.Arrival("burst", size=64, period_s=2.5), 256),
        (["--trace", "t.csv", "--requests", "5"], load_spec.Arrival("trace", path="t.csv"), 5),
    ],
)
def test_arrivals(words, arrival, requests):
    _, spec = ordered(*words)
    assert spec.arrival == arrival
    assert spec.requests == requests


@pytest.mark.parametrize(
    ("text", "kind", "low", "high"),
    [
        ("128", "fixed", 128, 128),
        ("64:256", "uniform", 64, 256),
        ("normal:128,32", "normal", 1, 257),
        ("normal:128,32,100,200", "normal", 100, 200),
    ],
)
def test_lengths(text, kind, low, high):
    _, spec = ordered("--concurrency", "1", "--input-len", "5", "--output-len", text)
    assert (spec.output.kind, spec.output.low, spec.output.high) == (kind, low, high)
    assert spec.input.high == 5


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths"
    file.write_text("3\n9\n")
    _, spec = ordered("--concurrency", "1", "--input-len", f"@{file}")
    assert spec.input.values == (3, 9)


@pytest.mark.parametrize("text", ["", "many", "1:2:3", "normal:1", "normal:1,2,3", "normal:1,2,3,4,5", "normal:a,b"])
def test_what_is_no_length(text):
    with pytest.raises(MeasureError, match="not a length"):
        load.lengths(text)


def test_the_rest():
    words = ["--concurrency", "4", "--ramp", "3", "--warmup", "2", "--workers", "2", "--api", "chat", "--model", "m"]
    words += ["--api-key-env", "KEY", "--vocab", "5:50", "--shared-prefix", "6", "--no-flush-cache", "--seed", "7"]
    words += ["--salt", "s", "--temperature", "0.5", "--stop-at-eos", "--keep-bodies", "--event-loop", "asyncio"]
    words += ["--deadline", "9", "--stall", "8", "--limit", "lag_p99_ms=10", "--limit", "server_share=0.7"]
    _, spec = ordered(*words)
    assert (spec.ramp_s, spec.warmup, spec.workers, spec.api, spec.model) == (3.0, 2, 2, "chat", "m")
    assert (spec.api_key_env, spec.vocab, spec.shared_prefix, spec.flush_cache) == ("KEY", (5, 50), 6, False)
    assert (spec.seed, spec.salt, spec.keep_bodies, spec.event_loop) == (7, "s", True, "asyncio")
    assert spec.sampling == {"temperature": 0.5, "ignore_eos": False}
    assert spec.limits == load_spec.Limits(stall_s=8.0, deadline_s=9.0, lag_p99_ms=10.0, server_share=0.7)


@pytest.mark.parametrize("text", ["lag_p99_ms", "lag_p99_ms=", "lag_p99_ms=much"])
def test_what_is_no_limit(text):
    with pytest.raises(MeasureError, match="not a limit"):
        ordered("--concurrency", "1", "--limit", text)


def test_a_limit_that_does_not_exist_is_refused_by_the_engine():
    with pytest.raises(load_spec.SpecError, match="unknown key lag"):
        ordered("--concurrency", "1", "--limit", "lag=3")
