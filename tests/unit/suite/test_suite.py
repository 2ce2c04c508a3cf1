"""The suite as a whole: nodes, workloads, defaults, references, and how wrong values are told."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.load import _spec as load_spec
from pytest_sglang_perf.cli import main
from pytest_sglang_perf.errors import NotDeclared, SuiteError
from pytest_sglang_perf.suite import LocalNode, SimNode, SshNode, UrlNode, load_suite, parse_suite
from pytest_sglang_perf.suite.models import Limits
from pytest_sglang_perf.suite.schema import json_schema, json_schema_text

from .conftest import MINIMAL

REFERENCE = Path(__file__).parents[3] / "docs/reference"


def test_defaults(read) -> None:
    suite = read(MINIMAL)
    assert (suite.boots, suite.trials, suite.lease_wait) == ((1, 1), 4, 600.0)
    assert suite.node() == suite.node("sim")
    assert suite.workload().name == "short"
    assert suite.margins == {}


def test_every_kind_of_node(read) -> None:
    suite = read("""
        default_node: b
        nodes:
          a: {kind: sim, profile: p, seed: 3, time_scale: 50, fail: crash:weights}
          b: {kind: local, agent_python: /usr/bin/python3, gpus: [0, 1]}
          c: {kind: ssh, host: h, user: u, port: 22, identity_file: k, host_key: x, proxy_jump: j}
          d: {kind: url, url: "http://h:1", api: chat, model: m, api_key_env: K}
    """)
    a, b, c, d = (suite.node(name) for name in "abcd")
    assert isinstance(a, SimNode)
    assert (a.profile, a.seed, a.time_scale, a.fail) == ("p", 3, 50, "crash:weights")
    assert isinstance(b, LocalNode)
    assert b.gpus == [0, 1]
    assert isinstance(c, SshNode)
    assert (c.host, c.port, c.proxy_jump) == ("h", 22, "j")
    assert isinstance(d, UrlNode)
    assert d.api == "chat"
    assert suite.node() is b


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "suite.yaml: the file is empty"),
        ("[1]", "suite.yaml:1:1: the file is a list of 1"),
        (
            "default_nod: a",
            "suite.yaml:1:1: default_nod: unknown key 'default_nod'; did you mean 'default_node'?",
        ),
        ("xyz: a", "unknown key 'xyz'; expected boots, correction, default_node,"),
        (
            "default_node: x\nnodes: {y: {kind: sim}}",
            "suite.yaml:1:1: default_node: 'x' is not among nodes; there are y",
        ),
        ("default_workload: x", "'x' is not among workloads; there are none"),
        ("boots: 0", "suite.yaml:1:8: boots: found 0, expected a number of at least 1"),
        ("boots: 1.5", "expected a number such as 1, or [first, most] (found 1.5)"),
        ("boots: [3, 1]", "expected [first, most] with first no larger than most"),
        ("trials: '4'", "found '4', expected a whole number"),
        ("margins: {ttft_p50: 3}", "expected a number below 1 (a fraction: 0.03 is 3 %)"),
        (
            "margins: {output_troughput: 0.1}",
            "margins.output_troughput: there is no metric 'output_troughput'; did you mean 'output_throughput'?",
        ),
        ("margins: {power_draw: 0.1}", "has no better direction, so that it cannot regress; gate energy_per_token"),
        ("margins: {failed_requests: 0.1}", "is counted exactly"),
        (
            "nodes: {a: {kind: shh}}",
            "suite.yaml:1:19: nodes.a.kind: found 'shh', expected sim, local, ssh or url; did",
        ),
        (
            "nodes: {a: {host: x}}",
            "nodes.a: the key 'kind' is missing; expected kind: sim, local, ssh or url",
        ),
        ("nodes: {a: {kind: ssh}}", "nodes.a: the key 'host' is missing"),
        ("nodes: {a: {kind: ssh, hots: x}}", "nodes.a: the key 'host' is missing ('hots' is not it)"),
        ("nodes: {a: {kind: ssh, host: x, port: 99999}}", "expected a number of at most 65535"),
        ("nodes: {a: {kind: url, url: foo}}", "found 'foo', expected a URL such as"),
        ("nodes: {a: {kind: local, gpus: []}}", "found a list of 0, expected at least 1"),
        ("nodes: 3", "nodes: found 3, expected a mapping"),
        ("servers: {a: {model: m, args: [1]}}", "servers.a.args: found a list of 1, expected a mapping"),
        ("servers: {a: {model: m, arg: {}}}", "unknown key 'arg'; did you mean 'args'?"),
        ("servers: {a: null}", "servers.a: found nothing (null), expected a mapping"),
    ],
)
def test_wrong_values(read, text: str, expected: str) -> None:
    assert any(expected in line for line in read.errors(text))


OPEN = [
    "{kind: constant, rate: 2}",
    "{kind: poisson, rate: [0.5, 4], max_concurrency: 9}",
    "{kind: gamma, rate: 2, burstiness: 0.5}",
    "{kind: burst, size: [8, 64], period_s: 2}",
    "{kind: trace, path: f}",
]
LENGTHS = [
    "128",
    "{kind: fixed, value: 128}",
    "{kind: uniform, low: 1, high: 9}",
    "{kind: normal, mean: 64, std: 8}",
    "{kind: normal, mean: 64, std: 8, low: 2, high: 99}",
    "{kind: file, path: f}",
]
LIMITS = "max_failed_share: 0.1, lag_p99_ms: 30, stall_s: 9"
WORKLOAD = "workloads: {{w: {{input_len: 128, output_len: 128, {}}}}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a workload needs 'concurrency' or 'arrival'"),
        ("concurrency: 1, arrival: {kind: constant, rate: 1}", "not both 'concurrency' and 'arrival'"),
        ("concurrency: []", "expected at least 1"),
        ("concurrency: [1, 0]", "workloads.w.concurrency[1]: found 0, expected a number of at least 1"),
        ("concurrency: [8, 8]", "the level 8 is listed twice"),
        ("concurrency: [1, x]", "found 'x', expected a whole number"),
        (
            "concurrency: 1, requests: {2: 5}",
            "workloads.w.requests.2: 2 is not a level of this workload; it has 1",
        ),
        ("concurrency: 1, requests: {x: 5}", "x is not a level of this workload"),
        (
            "concurrency: 1, requests: {1: 0}",
            "workloads.w.requests.1: found 0, expected a number of at least 1",
        ),
        (
            "concurrency: 1, api: chatt",
            "found 'chatt', expected generate, completions or chat; did you mean 'chat'?",
        ),
        ("concurrency: 1, limits: {stall: 3}", "unknown key 'stall'; did you mean 'stall_s'?"),
        (
            "arrival: {kind: posson, rate: 1}",
            "workloads.w.arrival.kind: found 'posson', expected constant, poisson,",
        ),
        ("arrival: {kind: gamma, rate: 1}", "the key 'burstiness' is missing"),
        ("arrival: {kind: trace, path: x}", "a trace needs 'requests'"),
        ("concurrency: 1, vocab: [5, 5]", "vocab is [low, high], with low below high"),
        (
            "arrival: {kind: trace, path: nowhere.csv}, requests: 5",
            "the file 'nowhere.csv' cannot be read (No such file",
        ),
    ],
)
def test_wrong_workloads(read, text: str, expected: str) -> None:
    assert expected in read.error(WORKLOAD.format(text))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (
            "abc",
            "expected a number of tokens, or a mapping such as {kind: uniform, low: 64, high: 256} (found",
        ),
        ("0", "found 0, expected a number of at least 1"),
        ("{kind: uniform, low: 3}", "the key 'high' is missing"),
        ("{kind: uniform, low: 3, high: 1}", "low (3) is above high (1)"),
        (
            "{kind: fixd, value: 3}",
            "workloads.w.input_len.kind: found 'fixd', expected fixed, uniform, normal or file",
        ),
        ("{kind: fixed, valu: 3}", "unknown key 'valu'; did you mean 'value'?"),
    ],
)
def test_wrong_lengths(read, length: str, expected: str) -> None:
    lines = read.errors(f"workloads: {{w: {{input_len: {length}, output_len: 1, concurrency: 1}}}}")
    assert any(expected in line for line in lines)


def test_several_errors_come_in_file_order(read) -> None:
    lines = read.errors("trials: 0\nnodes: {a: {kind: x}}\nservers: {s: {mdel: m}}\nboots: x\n")
    assert [int(line.split(":")[1]) for line in lines] == sorted(int(line.split(":")[1]) for line in lines)
    assert len(lines) == 4


def test_the_load_spec_of_a_closed_level(read) -> None:
    assert read(MINIMAL).workload().spec(256) == {
        "api": "generate",
        "arrival": {"kind": "closed", "concurrency": 256},
        "ramp_s": 0.0,
        "input": {"kind": "fixed", "value": 128},
        "output": {"kind": "fixed", "value": 128},
        "requests": 512,
        "warmup": {"requests": None},
        "shared_prefix": 0,
        "vocab": None,
        "seed": 1,
        "flush_cache": True,
        "limits": {"stall_s": 60.0, "silent_s": 20.0, "deadline_s": 1800.0, "max_cached_share": 0.01},
        "workers": None,
        "sampling": {"temperature": 0, "ignore_eos": True},
    }


@pytest.mark.parametrize(
    ("arrival", "levels", "spec"),
    [
        (
            "{kind: poisson, rate: [0.5, 4], max_concurrency: 9}",
            (0.5, 4),
            {"kind": "poisson", "rate": 0.5, "burstiness": 1.0, "max_concurrency": 9},
        ),
        (
            "{kind: gamma, rate: 2, burstiness: 0.5}",
            (2,),
            {"kind": "gamma", "rate": 2, "burstiness": 0.5, "max_concurrency": None},
        ),
        (
            "{kind: burst, size: [8, 64], period_s: 2}",
            (8, 64),
            {"kind": "burst", "size": 8, "period_s": 2, "max_concurrency": None},
        ),
    ],
)
def test_open_arrivals(read, arrival: str, levels: tuple, spec: dict) -> None:
    workload = read(WORKLOAD.format(f"arrival: {arrival}")).workload()
    assert workload.levels == levels
    assert workload.spec(levels[0])["arrival"] == spec


@pytest.mark.parametrize(
    ("level", "requests"), [(1, 16), (2, 16), (4, 32), (10, 64), (32, 64), (256, 512), (1024, 2048)]
)
def test_default_requests_of_a_closed_loop(read, level: int, requests: int) -> None:
    assert read(WORKLOAD.format(f"concurrency: {level}")).workload().requests(level) == requests


@pytest.mark.parametrize("arrival", ["concurrency: 8", *(f"arrival: {a}" for a in OPEN)])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_load_engine_takes_every_spec(read, arrival: str, length: str) -> None:
    (read.folder / "f").write_text("7\n")
    text = f"workloads: {{w: {{input_len: {length}, output_len: 9, {arrival}, requests: 5, limits: {{{LIMITS}}}}}}}"
    workload = read(text).workload()
    spec = load_spec.parse(workload.spec(workload.levels[0]) | {"url": "http://h:1"})
    assert spec.requests == 5
    assert spec.output.draw(random.Random(1)) == 9


def test_limits_are_those_of_the_load_engine() -> None:
    assert set(Limits.model_fields) == {field.name for field in dataclasses.fields(load_spec.Limits)}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(load_spec.Limits)])
def test_every_limit_of_the_load_engine_can_be_set(read, name: str) -> None:
    workload = read(WORKLOAD.format(f"concurrency: 1, limits: {{{name}: 0.125}}")).workload()
    limits = load_spec.parse(workload.spec(1) | {"url": "http://h:1"}).limits
    assert getattr(limits, name) == 0.125
    others = {"stall_s": 60.0, "silent_s": 20.0, "deadline_s": 1800.0, "max_cached_share": 0.01}
    assert dataclasses.replace(limits, **{name: 0}) == dataclasses.replace(load_spec.Limits(**others), **{name: 0})


def test_requests_for_all_levels_or_by_level(read) -> None:
    assert read(WORKLOAD.format("concurrency: [1, 8], requests: 99")).workload().requests(8) == 99
    by_level = read(WORKLOAD.format("concurrency: [1, 8], requests: {8: 99}")).workload()
    assert (by_level.requests(1), by_level.requests(8)) == (16, 99)
    rates = read(WORKLOAD.format("arrival: {kind: constant, rate: [0.5, 20]}, requests: {0.5: 7}")).workload()
    assert (rates.requests(0.5), rates.requests(20)) == (7, 200)


def test_an_undeclared_level_names_the_declared_ones(read) -> None:
    with pytest.raises(NotDeclared, match=r"'short' has no level 512; it has 1, 10, 256, 1024"):
        read(MINIMAL).workload().spec(512)


def test_unknown_names_are_told_with_a_guess(read) -> None:
    suite = read(MINIMAL)
    with pytest.raises(SuiteError, match=r"no server config 'bse'; did you mean 'base'\? It has base"):
        suite.server("bse")
    with pytest.raises(SuiteError, match=r"no workload 'x'\. It has short"):
        suite.workload("x")
    with pytest.raises(SuiteError, match=r"no node is named; name one by default_node or --sglang-node"):
        read("nodes: {a: {kind: sim}, b: {kind: local}}").node()


def test_files_are_relative_to_the_suite_and_part_of_the_fingerprint(read) -> None:
    text = "workloads: {w: {input_len: {kind: file, path: l.txt}, output_len: 1, concurrency: 1}}"
    (read.folder / "l.txt").write_text("1\n")
    before = read(text).workload()
    assert before.spec(1)["input"] == {"kind": "file", "path": str(read.folder / "l.txt")}
    (read.folder / "l.txt").write_text("2\n")
    after = read(text).workload()
    assert before.fingerprint != after.fingerprint
    assert before.describe_difference(after) == ["the content of l.txt changed"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("concurrency: [1, 8]", True),
        ("concurrency: 1, requests: 7", True),
        ("concurrency: 1, description: d", True),
        ("concurrency: 1, limits: {stall_s: 3}", True),
        ("concurrency: 1, seed: 2", False),
        ("concurrency: 1, shared_prefix: 8", False),
        ("concurrency: 1, api: chat", False),
        ("arrival: {kind: constant, rate: 1}", False),
    ],
)
def test_the_workload_fingerprint_is_over_what_changes_figures(read, change: str, same: bool) -> None:
    base, other = (read(WORKLOAD.format(text)).workload() for text in ("concurrency: 1", change))
    assert (base.fingerprint == other.fingerprint) == same
    assert bool(base.describe_difference(other)) == ("description" not in change)


def test_a_shared_prefix_may_be_cached(read) -> None:
    assert (
        read(WORKLOAD.format("concurrency: 1, shared_prefix: 64")).workload().spec(1)["limits"]["max_cached_share"] == 1
    )


def test_a_missing_file_and_foreign_bytes_are_errors(read, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"none\.yaml cannot be read \(No such file or directory\)"):
        load_suite(tmp_path / "none.yaml")
    assert "suite.yaml:2: not UTF-8 text (byte 0xff)" in read.error(b"a: 1\n\xff")
    (tmp_path / "ok.yaml").write_text("\ufeff" + MINIMAL)
    assert load_suite(tmp_path / "ok.yaml").path == tmp_path / "ok.yaml"


def test_the_committed_json_schema_is_the_generated_one() -> None:
    # To renew it: python -m pytest_sglang_perf.suite.schema > docs/reference/sglang-perf.schema.json
    committed = (REFERENCE / "sglang-perf.schema.json").read_text()
    here = json_schema_text()
    if json.loads(committed)["$comment"] == json.loads(here)["$comment"]:
        assert committed == here
    else:  # another pydantic writes the same things in other words
        assert properties(json.loads(committed)) == properties(json.loads(here))


def properties(schema: dict) -> dict[str, list[str]]:
    models = {"": schema} | schema["$defs"]
    return {name: sorted(model.get("properties", ())) for name, model in models.items()}


def test_the_json_schema_knows_keys_and_flags() -> None:
    schema = json_schema()
    server = schema["$defs"]["ServerModel"]
    assert server["additionalProperties"] is False
    assert "tp-size" in server["properties"]["args"]["properties"]
    assert {"nodes", "servers", "workloads", "default_node"} <= set(schema["properties"])
    concurrency = schema["$defs"]["WorkloadModel"]["properties"]["concurrency"]
    assert {"type": "integer", "minimum": 1} in concurrency["anyOf"]


_WORDS = st.sampled_from(
    [
        *("default_node", "default_workload", "boots", "trials", "margins", "nodes", "servers", "workloads"),
        *("kind", "host", "url", "extends", "model", "args", "env", "secret_env", "secret_args", "command", "tp"),
        *("input_len", "output_len", "concurrency", "arrival", "requests", "limits", "rate", "path", "low", "high"),
        *("a", "b", "1", "api-key", "HF_TOKEN", "stall_s", "ttft_p50", "value", "vocab", "boot_limits_s"),
    ]
)
_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.floats(-1, 9)
    | _WORDS
    | st.sampled_from(["sim", "ssh", "local", "uniform", "normal", "fixed", "poisson", "trace", "hunter2", ""])
)
_TREES = st.recursive(
    _VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=5), max_leaves=15
)
_SERVER = st.fixed_dictionaries({}, optional={"extends": _TREES, "model": _TREES, "args": _TREES, "env": _TREES})
_LENGTH = st.integers(0, 3) | st.fixed_dictionaries(
    {"kind": st.sampled_from(["fixed", "uniform", "normal", "x"])},
    optional={"low": _VALUES, "high": _VALUES, "mean": _VALUES, "std": _VALUES, "value": _VALUES},
)
_WORKLOAD = st.fixed_dictionaries(
    {"input_len": _LENGTH, "output_len": _LENGTH},
    optional={"concurrency": _TREES, "arrival": _TREES, "requests": _TREES, "limits": _TREES, "vocab": _TREES},
)
_SUITES = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.dictionaries(_WORDS, _TREES, max_size=3) | _TREES,
        "servers": st.dictionaries(_WORDS, _SERVER, max_size=3) | _TREES,
        "workloads": st.dictionaries(_WORDS, _WORKLOAD, max_size=3) | _TREES,
        "margins": _TREES,
        "boots": _TREES,
        "default_node": _VALUES,
    },
)


@given(_SUITES | _TREES)
def test_any_data_is_a_suite_or_refused_in_one_way(data: object) -> None:
    text = json.dumps(data)
    try:
        suite = parse_suite(text.encode(), Path("/nowhere/suite.yaml"), name="suite.yaml")
    except SuiteError as error:
        message = str(error)
        assert "pydantic" not in message
        if '"HF_TOKEN": "hunter2"' in text and '"hunter2"' not in text.replace('"HF_TOKEN": "hunter2"', ""):
            assert "hunter2" not in message
    else:
        for server in suite.servers.values():
            assert all(isinstance(item, str) for item in server.argv("h", 1))
        for workload in suite.workloads.values():
            for level in workload.levels:
                load_spec.parse(workload.spec(level) | {"url": "http://h:1"})


def test_the_schema_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
