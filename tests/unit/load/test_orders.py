"""Orders, lengths, prompts and schedules."""

from __future__ import annotations

import json
import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load._lengths import Lengths
from pytest_sglang_perf.agent.load._prompts import PromptSource
from pytest_sglang_perf.agent.load._requests import RequestFactory
from pytest_sglang_perf.agent.load._schedule import read_trace, schedule
from pytest_sglang_perf.agent.load._spec import SpecError, parse
from pytest_sglang_perf.agent.load._vocabulary import choose

BASE = {
    "url": "http://127.0.0.1:1",
    "arrival": {"kind": "closed", "concurrency": 8},
    "input": {"kind": "fixed", "value": 16},
    "output": {"kind": "fixed", "value": 8},
    "requests": 20,
}


def spec(**changes):
    return parse(BASE | changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"arival": {}}, "arival"),
        ({"url": "127.0.0.1:1"}, "url"),
        ({"api": "grpc"}, "api"),
        ({"requests": 0}, "requests"),
        ({"requests": True}, "requests"),
        ({"requests": None}, "requests"),
        ({"arrival": {"kind": "poisson"}}, "rate"),
        ({"arrival": {"kind": "closed", "level": 3}}, "level"),
        ({"arrival": {"kind": "trace"}}, "path"),
        ({"vocab": [5, 5]}, "vocab"),
        ({"limits": {"stal_s": 3}}, "stal_s"),
        ({"limits": {"stall_s": "x"}}, "stall_s"),
        ({"input": {"kind": "uniform", "low": 5, "high": 3}}, "high 3 is below low 5"),
        ({"input": {"kind": "uniform", "low": 5, "high": 9, "mean": 3}}, "mean"),
        ({"output": {"kind": "file", "path": "/nonexistent"}}, "/nonexistent"),
        ({"output": {"kind": "normal", "mean": 0}}, "mean"),
        ({"sampling": 3}, "sampling"),
        ({"dialect": {}}, "dialect"),
    ],
)
def test_wrong_orders_name_the_key(changes, word):
    with pytest.raises(SpecError, match=word):
        spec(**changes)


def test_rounds():
    assert spec().warmup_requests == 8
    assert spec().window_requests == 24
    assert spec(warmup={"requests": 3}).warmup_requests == 3
    assert spec(warmup={"requests": None}).warmup_requests == 8
    burst = spec(arrival={"kind": "burst", "size": 6, "period_s": 1})
    assert (burst.warmup_requests, burst.window_requests) == (6, 24)
    assert spec(arrival={"kind": "poisson", "rate": 5}).window_requests == 20


@pytest.mark.parametrize(
    ("data", "low", "high", "mean"),
    [
        ({"kind": "fixed", "value": 9}, 9, 9, 9),
        (9, 9, 9, 9),
        ({"kind": "uniform", "low": 10, "high": 20}, 10, 20, 15),
        ({"kind": "normal", "mean": 100, "std": 10}, 60, 141, 100),
        ({"kind": "normal", "mean": 100, "std": 50, "low": 90, "high": 110}, 90, 110, 100),
    ],
)
def test_lengths(data, low, high, mean):
    rng, lengths = random.Random(1), Lengths.parse(data)
    drawn = [lengths.draw(rng) for _ in range(3000)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)
    if data == {"kind": "uniform", "low": 10, "high": 20}:
        assert set(drawn) == set(range(10, 21))


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths"
    file.write_text("# recorded\n3\n\n5\n5\n")
    lengths = Lengths.parse({"kind": "file", "path": str(file)})
    drawn = [lengths.draw(random.Random(i)) for i in range(300)]
    assert set(drawn) == {3, 5}
    assert drawn.count(5) > drawn.count(3)
    file.write_text("3\nx\n")
    with pytest.raises(ValueError, match="one whole number a line"):
        Lengths.parse({"kind": "file", "path": str(file)})


@settings(max_examples=25, deadline=None)
@given(
    low=st.integers(0, 50),
    size=st.integers(2, 3000),
    seed=st.integers(0, 5),
    length=st.integers(3, 40),
    shared=st.integers(0, 5),
)
def test_prompts_have_their_length_and_never_share_a_beginning(low, size, seed, length, shared):
    source = PromptSource(low, low + size - 1, seed=seed, salt="s", shared=shared)
    prompts = [[int(token) for token in source.ids(i, length).split(b",")] for i in range(min(size, 200))]
    for prompt in prompts:
        assert len(prompt) == length + shared
        assert min(prompt) >= low
        assert max(prompt) < low + size
    assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
    assert len({prompt[shared] for prompt in prompts}) == len(prompts)  # not one token of a cached prefix


def test_prompts_stay_different_beyond_the_vocabulary():
    source = PromptSource(10, 13, seed=0, salt="s")
    assert len({source.ids(i, 6) for i in range(4**5)}) == 4**5


def test_a_salt_makes_other_prompts_with_the_same_lengths():
    uniform = spec(input={"kind": "uniform", "low": 4, "high": 40})
    one, same, other = (RequestFactory(uniform, salt) for salt in ("a", "a", "b"))
    for index in range(20):
        first = one.build(index)
        assert first.payload == same.build(index).payload
        assert first.payload != other.build(index).payload
        assert first.input_len == other.build(index).input_len


@pytest.mark.parametrize(
    ("api", "path", "prompt"),
    [
        ("generate", "/generate", "input_ids"),
        ("completions", "/v1/completions", "prompt"),
        ("chat", "/v1/chat/completions", "messages"),
    ],
)
def test_requests_are_http(api, path, prompt, monkeypatch):
    monkeypatch.setenv("THE_KEY", "s3cret")
    exchange = RequestFactory(spec(api=api, model="m", api_key_env="THE_KEY"), "salt").build(0)
    head, _, body = exchange.payload.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"POST {path} HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert headers["Host"] == "127.0.0.1:1"
    assert headers["Authorization"] == "Bearer s3cret"
    assert int(headers["Content-Length"]) == len(body)
    data = json.loads(body)
    assert data["stream"] is True
    if api == "generate":
        assert len(data[prompt]) == 16
        assert data["sampling_params"] == {"temperature": 0, "ignore_eos": True, "max_new_tokens": 8}
    else:
        assert data["max_tokens"] == 8
        assert data["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_a_missing_key_is_an_error_before_anything_is_sent(monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    with pytest.raises(SpecError, match="THE_KEY"):
        RequestFactory(spec(api_key_env="THE_KEY"), "salt")


def times(count, **changes):
    return [at for at, _ in islice(schedule(spec(**changes)), count)]


@pytest.mark.parametrize(
    ("arrival", "variation"),
    [
        ({"kind": "constant", "rate": 10}, 0.0),
        ({"kind": "poisson", "rate": 10}, 1.0),
        ({"kind": "gamma", "rate": 10, "burstiness": 4.0}, 0.5),
        ({"kind": "gamma", "rate": 10, "burstiness": 0.25}, 2.0),
    ],
)
def test_patterns_have_their_rate_and_variation(arrival, variation):
    at = times(20000, arrival=arrival)
    gaps = [b - a for a, b in pairwise(at)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.06, abs=1e-6)
    assert at == times(20000, arrival=arrival)


def test_a_ramp_grows_in_proportion_to_time():
    at = times(2000, arrival={"kind": "constant", "rate": 100}, ramp_s=10)
    for moment in (2.0, 5.0, 10.0):
        assert sum(1 for t in at if t < moment) == pytest.approx(100 * moment**2 / 20, abs=1.5)
    assert sum(1 for t in at if 10 <= t < 15) == pytest.approx(500, abs=1.5)


def test_bursts():
    assert times(7, arrival={"kind": "burst", "size": 3, "period_s": 2}) == [0, 0, 0, 2, 2, 2, 4]


OURS = """arrival_s,input_len,output_len
5.5,10,20
5,30,40
"""
OURS_JSON = """{"arrival_s": 5.5, "input_len": 10, "output_len": 20}

{"arrival_s": 5, "input_len": 30, "output_len": 40}
"""
MOONCAKE = """{"timestamp": 5500, "input_length": 10, "output_length": 20, "hash_ids": [1]}
{"timestamp": 5000, "input_length": 30, "output_length": 40, "hash_ids": [1]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.5000000,10,20
2023-11-16 18:17:03,30,40
"""


@pytest.mark.parametrize("text", [OURS, OURS_JSON, MOONCAKE, AZURE])
def test_traces(tmp_path, text):
    file = tmp_path / "trace"
    file.write_text(text)
    assert read_trace(str(file)) == [(0.0, (30, 40)), (0.5, (10, 20))]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "arrival_s,input_len,output_len\n1,0,3\n", "{nonsense\n"])
def test_what_is_no_trace(tmp_path, text):
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(SpecError, match=str(file)):
        read_trace(str(file))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 2000}, (100, 1500)),
        ({"text_config": {"vocab_size": 400}}, (20, 300)),
        ({}, (100, 20000)),
        (None, (100, 20000)),
    ],
)
def test_token_ids_stay_inside_the_models_vocabulary(tmp_path, monkeypatch, config, expected):
    def ask(_, __, path):
        assert path == "/model_info"
        return 200, json.dumps({"model_path": str(tmp_path)}).encode()

    monkeypatch.setattr("pytest_sglang_perf.agent.load._vocabulary.ask", ask)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert choose(spec())[0] == expected
    assert choose(spec(vocab=[7, 9]))[0] == (7, 9)


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"vocab_size": 1000}')
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("pytest_sglang_perf.agent.load._vocabulary.ask", lambda *_: (200, b'{"model_path": "a/b"}'))
    assert choose(spec())[0] == (50, 750)
