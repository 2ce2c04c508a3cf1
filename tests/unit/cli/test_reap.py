from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_sglang_perf.cli import main, reap
from pytest_sglang_perf.errors import AgentError, NodeSetupError, SuiteError

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
nodes:
  here: {kind: local}
  theirs: {kind: url, url: "http://127.0.0.1:9"}
servers: {base: {model: m}}
workloads: {short: {input_len: 8, output_len: 8, concurrency: [1]}}
"""


class Agent:
    """Answers orders from a script, as an agent would."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def request(self, op: str, *, timeout: float, **_: Any) -> Any:
        assert timeout > 0
        self.asked.append(op)
        answer = self.answers[op]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe(self) -> str:
        return "ssh hopper"


class Node(SimpleNamespace):
    def close(self) -> None:
        self.closed = True


def node(**answers: Any) -> Any:
    return Node(client=Agent(**answers), hello={"host": "hopper"}, closed=False)


THEIRS = {"gpu": 1, "pid": 77, "user": "ann", "command": "python train.py"}


def test_what_was_ended_and_what_was_left_alone() -> None:
    ours = {"pid": 41, "command": "sglang::scheduler", "run": "5f0c"}
    one = node(reap={"killed": [ours], "foreign": [THEIRS]})
    assert reap.reap(one) == {"killed": [ours], "sessions": [], "left_alone": [THEIRS], "gpu_error": None}


def test_live_sessions_are_shown_with_owner_and_run(capsys, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = {"run": "ab" * 16, "user": "ada", "host": "desk", "pid": 9, "gpus": [0, 1], "since": "now", "purpose": "x"}
    sessions = [
        {**lease, "processes": [{"gpu": 0, "pid": 55}]},
        {"run": "cd" * 16, "processes": [{"gpu": 2, "pid": 66}]},
    ]
    opened = node(reap={"killed": [], "sessions": sessions, "foreign": [THEIRS]})
    monkeypatch.setattr(reap, "open_node", lambda *_, **__: opened)
    assert main(["reap", "here", "--suite", str(suite)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "live sessions, left alone"
    assert lines[3].split() == ["abababababab", "ada@desk", "(pid", "9)", "0", "1", "now", "x", "55"]
    assert lines[4].split() == ["cdcdcdcdcdcd", "holds", "no", "lease", "here", "66"]


def test_an_agent_that_cannot_reap_is_said_clearly() -> None:
    with pytest.raises(NodeSetupError, match=r"does not know how to reap, so nothing was ended"):
        reap.reap(node(reap=AgentError("no operation 'reap'", kind="unknown_op")))
    with pytest.raises(AgentError, match="denied"):
        reap.reap(node(reap=AgentError("denied", kind="failed")))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-perf.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def test_the_command_prints_both_and_leaves_the_node(capsys, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = node(reap={"killed": [{"pid": 41, "command": "sglang serve"}], "foreign": [THEIRS]})
    asked: dict[str, Any] = {}

    def open_node(name: str, config: object, **more: Any) -> Any:
        asked.update(name=name, config=config, **more)
        return opened

    monkeypatch.setattr(reap, "open_node", open_node)
    assert main(["reap", "here", "--suite", str(suite)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert asked["name"] == "here"
    assert lines[0] == "node here (hopper)"
    assert lines[1] == "ended"
    assert lines[3].split() == ["41", "sglang", "serve"]
    assert lines[4].startswith("left alone")
    assert lines[6].split() == ["77", "1", "ann", "python", "train.py"]
    assert opened.closed


def test_nothing_to_end(capsys, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for facts, said in (
        ({"gpu_error": None}, "no other process is on a GPU"),
        ({"gpu_error": "nvidia-smi is not there"}, "GPUs: nvidia-smi is not there"),
    ):
        opened = node(reap={"killed": [], "foreign": []}, facts=facts)
        monkeypatch.setattr(reap, "open_node", lambda *_, opened=opened, **__: opened)
        assert main(["reap", "here", "--suite", str(suite)]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["nothing of ours was left", said]


def test_the_node_is_left_also_when_the_agent_fails(capsys, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = node(reap=AgentError("x", kind="unknown_op"))
    monkeypatch.setattr(reap, "open_node", lambda *_, **__: opened)
    assert main(["reap", "here", "--suite", str(suite), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not know how to reap" in err
    assert opened.closed


def test_nodes_that_cannot_be_reaped(capsys, suite: Path) -> None:
    assert main(["reap", "theirs", "--suite", str(suite)]) == 2
    assert "we start nothing there" in capsys.readouterr().err
    assert main(["reap", "hopper", "--suite", str(suite)]) == 2
    assert "there is no node 'hopper'" in capsys.readouterr().err


def test_the_suite_is_found_as_pytest_finds_it(suite: Path) -> None:
    below = suite.parent / "a" / "b"
    below.mkdir(parents=True)
    assert reap.find_suite(below, {}) == suite
    assert reap.find_suite(below, {"SGLANG_PERF_SUITE": "x.yaml"}).name == "x.yaml"
    tests = below / "perf_tests"
    tests.mkdir()
    (tests / "sglang-perf.yaml").write_text(SUITE, encoding="utf-8")
    assert reap.find_suite(below, {}) == tests / "sglang-perf.yaml"
    suite.unlink()
    with pytest.raises(SuiteError, match="Name it with --suite"):
        reap.find_suite(suite.parent, {})
