"""Server configs: inheritance, arguments, secrets, fingerprints, differences."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite import SECRET_FILE, ResolvedServer
from pytest_sglang_perf.suite._flags import ALIASES, KNOWN
from pytest_sglang_perf.suite.flags import canonical, render

CHAIN = """
servers:
  base:
    model: lukealonso/GLM-5-NVFP4
    python: /root/venv/bin/python
    args: {tp: 8, disable-radix-cache: true, max-running-requests: 2048}
    env: {NCCL_ALGO: Ring, KEEP: 1}
  child:
    extends: base
    args: {tensor_parallel_size: 4, disable-radix-cache: null, enable-mscclpp: true}
    env: {NCCL_ALGO: Tree, KEEP: null, NCCL_BUFFSIZE: 8388608}
  grandchild: {extends: child, args: {disable-radix-cache: true}}
"""


def test_arguments_and_environment_merge_along_the_chain(read) -> None:
    suite = read(CHAIN)
    child = suite.server("child")
    assert child.chain == ("base", "child")
    assert child.args == {"tp-size": 4, "enable-mscclpp": True, "max-running-requests": 2048}
    assert child.env == {"NCCL_ALGO": "Tree", "NCCL_BUFFSIZE": "8388608"}
    assert suite.server("base").args["tp-size"] == 8
    assert suite.server("grandchild").chain == ("base", "child", "grandchild")
    assert suite.server("grandchild").args["disable-radix-cache"] is True


def test_the_command_line_is_canonical_and_ends_with_host_and_port(read) -> None:
    assert read(CHAIN).server("child").argv("127.0.0.1", 30000) == [
        *("/root/venv/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "lukealonso/GLM-5-NVFP4"),
        *("--enable-mscclpp", "--max-running-requests", "2048", "--tp-size", "4"),
        *("--host", "127.0.0.1", "--port", "30000"),
    ]


def test_a_simulated_node_replaces_only_what_is_launched(read) -> None:
    server = read(CHAIN).server("base")
    argv = server.argv("{host}", "{port}", launch=["py", "-m", "sim"])
    assert argv[:4] == ["py", "-m", "sim", "--model-path"]
    assert argv[-4:] == ["--host", "{host}", "--port", "{port}"]


def test_a_command_replaces_the_launcher(read) -> None:
    server = read("""
        servers:
          c: {model: m, python: /usr/bin/python3, command: [docker, run, i, "{python}", -m, sglang.serve]}
    """).server("c")
    assert server.argv("h", 1)[:6] == ["docker", "run", "i", "/usr/bin/python3", "-m", "sglang.serve"]


@pytest.mark.parametrize(
    ("yaml", "items"),
    [
        ("flag: true", ["--flag"]),
        ("flag: false", []),
        ("flag: null", []),
        ("flag: 0", ["--flag", "0"]),
        ("flag: 0.85", ["--flag", "0.85"]),
        ("flag: 12.10", ["--flag", "12.10"]),
        ("flag: 1e-5", ["--flag", "1e-5"]),
        ("flag: text", ["--flag", "text"]),
        ('flag: ""', ["--flag", ""]),
        ("flag: [1, 2, true]", ["--flag", "1", "2", "true"]),
        ("flag: []", ["--flag"]),
        ("flag: {b: [1], a: null}", ["--flag", '{"a":null,"b":[1]}']),
        ("enable-tf32-matmul: false", ["--no-enable-tf32-matmul"]),
    ],
)
def test_values_on_the_command_line(read, yaml: str, items: list[str]) -> None:
    server = read(f"servers: {{s: {{model: m, args: {{{yaml}}}}}}}").server("s")
    assert server.argv("h", 1)[5:-4] == items


@pytest.mark.parametrize(
    ("spelling", "one"),
    [
        ("tp", "tp-size"),
        ("tp-size", "tp-size"),
        ("tp_size", "tp-size"),
        ("tensor-parallel-size", "tp-size"),
        ("tensor_parallel_size", "tp-size"),
        ("dp", "dp-size"),
        ("ep", "ep-size"),
        ("expert-parallel-size", "ep-size"),
        ("nccl-init-addr", "dist-init-addr"),
        ("enable-hicache", "enable-hierarchical-cache"),
        ("some-flag_of-tomorrow", "some-flag-of-tomorrow"),
    ],
)
def test_one_argument_has_one_name(spelling: str, one: str) -> None:
    assert canonical(spelling) == one


def test_the_alias_table_leads_to_known_flags_in_one_step() -> None:
    assert set(ALIASES.values()) <= KNOWN
    assert not set(ALIASES) & set(ALIASES.values())
    # What the campaign uses, from either release.
    for flag in (
        "enable-mscclpp",
        "enable-single-batch-overlap",
        "disable-piecewise-cuda-graph",
        "moe-runner-backend",
    ):
        assert flag in KNOWN


def test_one_argument_under_two_names_is_an_error_with_both_lines(read) -> None:
    line = read.error("""
        servers:
          s:
            model: m
            args:
              tp: 8
              tensor_parallel_size: 8
    """)
    assert line == (
        "suite.yaml:7:7: servers.s.args.tensor_parallel_size: 'tensor_parallel_size' and 'tp' in line 6 "
        "are the same argument (--tp-size); keep one"
    )


def test_unknown_flags_pass_with_a_note(read) -> None:
    suite = read("servers: {s: {model: m, args: {enable-msclpp: true}}}")
    assert "--enable-msclpp" in suite.server("s").argv("h", 1)
    (note,) = suite.notes
    assert "suite.yaml:1: servers.s.args.enable-msclpp" in note
    assert "did you mean 'enable-mscclpp'?" in note
    assert read(CHAIN).notes == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {extends: b}\n  b: {extends: a}", "extends itself: a -> b -> a"),
        ("a: {extends: a}", "extends itself: a -> a"),
        ("a: {model: m}\n  b: {extends: aa}", "extends the unknown server config 'aa'; did you mean 'a'?"),
        ("a: {args: {x: 1}}", "the key 'model' is missing, here and in what it extends"),
        ("a: {model: m, args: {model-path: x}}", "write 'model' one step further out"),
        ("a: {model: m, args: {port: 1}}", "write 'port' one step further out"),
        ("a: {model: m, args: {--tp: 1}}", "without dashes in front: 'tp'"),
        ("a: {model: m, env: {A: [1]}}", "found a list of 1, expected text, a whole number or a number"),
        ("a: {model: m, env: {A: true}}", "found true, expected text"),
        ("a: {model: m, env: {A=B: x}}", "cannot be the name of a variable"),
        ("a: {model: m, env: {A: x}, secret_env: [A]}", "A is in env and in secret_env"),
        (
            "a: {model: m, args: {config: f}, secret_args: {api-key: K}}",
            "cannot be combined with secret_args",
        ),
        (
            "a: {model: m, args: {api-key: null}, secret_args: {api_key: K}}",
            "are the same argument (--api-key)",
        ),
        ("a: {model: m, boot_limits_s: {weihgts: 9}}", "there is no boot phase 'weihgts'; did you mean 'weights'?"),
        ("a: {model: m, boot_limits_s: {zzz: 9}}", "there is no boot phase 'zzz'; phases are spawn, imports,"),
        ("a b: {model: m}", "a name may have letters, digits"),
    ],
)
def test_faults(read, text: str, expected: str) -> None:
    assert expected in "\n".join(read.errors(f"servers:\n  {text}"))


def test_a_parent_that_is_only_a_parent_needs_no_model(read) -> None:
    suite = read("servers: {common: {args: {tp: 2}}, a: {extends: common, model: m}}")
    assert list(suite.servers) == ["a"]
    with pytest.raises(SuiteError, match="no server config 'common'"):
        suite.server("common")


@pytest.mark.parametrize(
    "where", ["args: {api-key: hunter2}", "args: {admin_api_key: hunter2}", "env: {HF_TOKEN: hunter2}"]
)
def test_a_secret_in_the_file_is_an_error_that_does_not_show_it(read, where: str) -> None:
    line = read.error(f"servers: {{s: {{model: m, {where}}}}}")
    assert "hunter2" not in line
    assert "Write secret_args: {" in line or "Write secret_env: [HF_TOKEN]" in line


def test_numbers_of_tokens_are_no_secrets(read) -> None:
    assert read("servers: {s: {model: m, env: {SGLANG_MAX_NEW_TOKEN: 16, TOKENIZERS_PARALLELISM: x}}}").servers


def test_secrets_travel_in_a_file_and_never_in_the_command_line(read) -> None:
    server = read("servers: {s: {model: m, secret_args: {api_key: MY_KEY}, secret_env: [HF_TOKEN]}}").server("s")
    assert server.secret_env == ("HF_TOKEN",)
    environ = {"MY_KEY": "hunter2", "HF_TOKEN": "hf"}
    argv = server.argv("h", 1)
    assert argv[argv.index("--config") + 1] == SECRET_FILE
    assert SECRET_FILE.endswith(".yaml}")  # sglang refuses other suffixes
    assert json.loads(server.secret_files(environ)[SECRET_FILE]) == {"api-key": "hunter2"}
    assert "hunter2" not in " ".join(argv) + repr(server) + repr(server.describe_difference(server))
    with pytest.raises(SuiteError, match="HF_TOKEN, MY_KEY are not set"):
        server.check_secrets({})
    assert ResolvedServer("s", ("s",), "m").secret_files({}) == {}


def test_a_secret_in_a_child_takes_the_place_of_a_plain_value(read) -> None:
    suite = read("""
        servers:
          a: {model: m, env: {X: plain}, secret_args: {api-key: K}}
          b: {extends: a, secret_env: [X], secret_args: {api-key: null}}
    """)
    assert suite.server("b").env == {}
    assert suite.server("b").secret_env == ("X",)
    assert suite.server("b").secret_args == {}


def test_expect_is_what_the_server_reports(read) -> None:
    suite = read("servers: {s: {model: m}, t: {extends: s, args: {random_seed: 7, served-model-name: n}}}")
    assert suite.server("s").expect == {"model_path": "m"}
    assert suite.server("s").served_model == "m"
    assert suite.server("t").expect == {"model_path": "m", "random_seed": 7}
    assert suite.server("t").served_model == "n"


def test_the_fingerprint_is_over_what_matters() -> None:
    one = ResolvedServer("a", ("a",), "m", args={"x": 1, "y": True}, env={"E": "1"})

    def changed(**fields: Any) -> bool:
        return dataclasses.replace(one, **fields).fingerprint != one.fingerprint

    assert len(one.fingerprint) == 16
    assert int(one.fingerprint, 16) >= 0
    assert not changed(name="b", chain=("c", "b"), description="d", boot_deadline_s=3.0, port=5)
    assert not changed(secret_env=("HF_TOKEN",))
    assert not changed(args={"y": True, "x": 1})
    assert not changed(args={"y": True, "x": 1, "z": False, "w": None})
    assert not changed(args={"y": True, "x": "1"})
    assert changed(args={"x": 1})
    assert changed(args={"x": 2, "y": True})
    assert changed(env={"E": "2"})
    assert changed(env={})
    assert changed(model="n")
    assert changed(python="/other/python")
    assert changed(command=("docker",))
    assert changed(secret_args={"api-key": "K"})
    assert not dataclasses.replace(one, secret_args={"api-key": "K"}).describe_difference(
        dataclasses.replace(one, secret_args={"api-key": "L"})
    )


def test_a_difference_reads_like_the_change(read) -> None:
    suite = read(CHAIN)
    assert suite.server("base").describe_difference(suite.server("child")) == [
        "args.disable-radix-cache removed",
        "args.enable-mscclpp added",
        "args.tp-size changed from 8 to 4",
        "env.KEEP removed (was 1)",
        "env.NCCL_ALGO changed from Ring to Tree",
        "env.NCCL_BUFFSIZE added (8388608)",
    ]


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
_ARGS = st.dictionaries(st.sampled_from(["a", "b", "enable-tf32-matmul"]), _VALUES)


@given(_ARGS, _ARGS)
def test_equal_fingerprints_mean_equal_command_lines_and_no_difference(one: dict, two: dict) -> None:
    left, right = (ResolvedServer("s", ("s",), "m", args=args) for args in (one, two))
    same = left.argv("h", 1) == right.argv("h", 1)
    assert (left.fingerprint == right.fingerprint) == same
    assert (left.describe_difference(right) == []) == same


@given(st.integers(0, 99), st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_argparse_reads_what_was_rendered(number: int, flag: bool, many: list[int]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp-size", type=int)
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("--many", type=int, nargs="+")
    items = [*render("tp-size", number), *render("flag", flag), *render("many", many)]
    assert vars(parser.parse_args(items)) == {"tp_size": number, "flag": flag, "many": many}


@pytest.mark.parametrize(
    ("host", "warned"), [("0.0.0.0", True), ("10.0.0.7", True), ("127.0.0.1", False), ("::1", False)]
)
def test_a_server_that_others_can_reach_is_warned_of(read, host: str, warned: bool) -> None:
    notes = read(f'servers: {{s: {{model: m, host: "{host}"}}}}').notes
    assert bool(notes) is warned
    assert all("servers.s.host" in note and "everybody who reaches the node" in note for note in notes)


def test_by_default_a_server_listens_on_this_machine_alone(read) -> None:
    argv = read("servers: {s: {model: m}}").server("s").argv("{host}", 0)
    assert read("servers: {s: {model: m}}").server("s").host == "127.0.0.1"
    assert argv[argv.index("--host") + 1] == "{host}"
