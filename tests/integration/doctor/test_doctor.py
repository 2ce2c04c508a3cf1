"""``sglang-perf doctor`` with the real agent: on this machine, simulated, and through a real sshd."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_sglang_perf.cli import main
from tests import _sshd

LIMIT_S = 10.0
pytestmark = pytest.mark.usefixtures("suite")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Leases, caches and agents of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SGLANG_PERF_LEASE_DIR", str(tmp_path / "lease"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake_sglang(tmp_path):
    """An interpreter whose sglang is two files of source: enough for everything that doctor reads."""
    source = tmp_path / "fake" / "sglang" / "srt"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").write_text("")
    (source.parent / "_version.py").write_text('__version__ = "0.5.10"\n')
    (source / "server_args.py").write_text(
        textwrap.dedent("""
        class ServerArgs:
            tp_size: int = 1
            num_continuous_decode_steps: int = 1

            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--tp-size", type=int)
                parser.add_argument("--num-continuous-decode-steps", type=int)
        """)
    )
    (source / "scheduler.py").write_text("def run(server_args):\n    return server_args.tp_size\n")
    python = tmp_path / "fake" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/fake exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    """Put a program of this text on PATH as nvidia-smi."""

    def make(text: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text("#!/bin/sh\n" + text)
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return make


@pytest.fixture
def suite(tmp_path, fake_sglang):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")

    def write(nodes: str = "here: {kind: local}", server: str = "", args: str = "tp: 1") -> None:
        default = nodes.partition(":")[0]
        Path("sglang-perf.yaml").write_text(
            f"default_node: {default}\n"
            f"nodes:\n  {nodes}\n"
            f"servers:\n  base: {{model: {model}, python: {fake_sglang}, {server} args: {{{args}}}}}\n"
            "workloads:\n  short: {input_len: 8, output_len: 8, concurrency: [1]}\n"
        )

    write()
    return write


def doctor(capsys, *arguments: str) -> tuple[int, dict]:
    status = main(["doctor", "--json", *arguments])
    answer = json.loads(capsys.readouterr().out)
    assert answer["seconds"] < LIMIT_S * 3  # ten on a quiet machine; see the documentation
    return status, {check["what"]: check for check in answer["checks"]}


def test_this_machine(fake_sglang, capsys):
    _, checks = doctor(capsys)
    assert checks["way"]["status"] == "ok"
    assert checks["agent"]["reason"].startswith(f"runs as {getpass.getuser()}@")
    assert checks["clock"]["status"] == "ok"
    assert checks["lease"]["reason"] == "free"
    assert checks[f"sglang of {fake_sglang}"]["reason"].startswith("0.5.10 on Python")
    assert checks["flags of base"]["status"] == "ok"
    assert next(check for name, check in checks.items() if name.startswith("model "))["status"] == "ok"


def test_a_simulated_node_is_fit(suite, capsys):
    suite("sim: {kind: sim, profile: rtx-pro-6000-x8}")
    status, checks = doctor(capsys)
    assert status == 0, checks
    assert checks["gpus"]["reason"].startswith("8 x NVIDIA RTX PRO 6000")
    assert checks["other GPU processes"]["status"] == "ok"


def test_the_table_for_people(suite, capsys):
    suite(args="tp: 1, enable-mscclpq: true")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "BAD   flags of base" in out
    assert "this sglang does not know --enable-mscclpq" in out
    assert "look for the new name" in out


# -- ten ways to break it ------------------------------------------------------------------------------------


def test_a_port_that_is_held(suite, capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        suite(server=f"port: {port},")
        status, checks = doctor(capsys)
    assert status == 1
    assert checks[f"port {port}"]["status"] == "bad"
    assert f"held by pid {os.getpid()}" in checks[f"port {port}"]["reason"]


def test_a_model_that_is_not_there(tmp_path, capsys):
    shutil.rmtree(tmp_path / "model")
    status, checks = doctor(capsys)
    assert (status, checks[f"model {tmp_path}/model"]["reason"]) == (1, "there is no such folder")


def test_a_model_with_a_shard_missing(tmp_path, capsys):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model" / "model-1.safetensors").write_text("")
    status, checks = doctor(capsys)
    assert (status, checks[f"model {tmp_path}/model"]["reason"]) == (1, "incomplete: model-2.safetensors")


def test_an_interpreter_without_sglang(tmp_path, fake_sglang, capsys):
    shutil.rmtree(tmp_path / "fake" / "sglang")
    status, checks = doctor(capsys)
    assert status == 1
    assert checks[f"sglang of {fake_sglang}"]["status"] == "bad"
    assert checks["flags of base"]["status"] == "skip"


def test_an_interpreter_that_does_not_exist(fake_sglang, capsys):
    Path(fake_sglang).unlink()
    status, checks = doctor(capsys)
    assert (status, checks[f"sglang of {fake_sglang}"]["status"]) == (1, "bad")


def test_a_flag_that_this_release_lost_and_one_that_nothing_reads(suite, capsys):
    suite(args="tp: 1, num-continuous-decode-steps: 16")
    status, checks = doctor(capsys)
    assert (status, checks["flags of base"]["status"]) == (0, "warn") or checks["gpus"]["status"] == "bad"
    assert "nothing in this sglang reads --num-continuous-decode-steps" in checks["flags of base"]["reason"]


def test_nvidia_smi_that_fails(fake_smi, capsys):
    fake_smi('echo "NVIDIA-SMI has failed because it could not communicate with the driver" >&2; exit 9\n')
    status, checks = doctor(capsys)
    assert (status, checks["gpus"]["status"]) == (1, "bad")
    assert "has failed" in checks["gpus"]["reason"]


def test_nvidia_smi_that_hangs(fake_smi, capsys):
    fake_smi("exec sleep 60\n")
    status, checks = doctor(capsys)
    assert (status, checks["gpus"]["status"]) == (1, "bad")
    assert "did not answer in time" in checks["gpus"]["reason"]


@pytest.mark.parametrize(
    ("fault", "what", "words"),
    [("lost:3", "gpus", "Unable to determine the device handle"), ("foreign:2", "other GPU processes", "GPU 2")],
)
def test_simulated_gpus_that_are_sick(suite, fault, what, words, monkeypatch, capsys):
    suite("sim: {kind: sim, profile: rtx-pro-6000-x8}")
    monkeypatch.setenv("SGLANG_SIM_SMI_FAIL", fault)
    status, checks = doctor(capsys)
    assert (status, checks[what]["status"]) == (1, "bad")
    assert words in checks[what]["reason"]


def test_what_earlier_runs_left_behind(capsys):
    run = "ab" * 16
    gone = {"SGLANG_PERF_RUN": run, "SGLANG_PERF_AGENT": "4194301:1"}
    for _ in range(10):
        left = subprocess.Popen(["sleep", "60"], env={**os.environ, **gone})
        try:
            status, checks = doctor(capsys)
            stayed = left.poll() is None
        finally:
            left.kill()
            left.wait()
        if stayed:
            break  # else another session on this machine took its lease meanwhile and reaped it, as it should
    assert (status, checks["orphans"]["status"]) == (1, "bad")
    assert f"pid {left.pid}: sleep 60" in checks["orphans"]["reason"]


def test_no_python_for_the_agent(suite, capsys):
    suite("here: {kind: local, agent_python: /nonexistent/python}")
    status, checks = doctor(capsys)
    assert status == 1
    assert "/nonexistent/python" in checks["agent"]["reason"]


def test_a_wrong_node_is_a_usage_error(capsys):
    assert main(["doctor", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


# -- through SSH ---------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    server = _sshd.start(
        tmp_path / "sshd",
        host_keys=("ed25519",),
        extra=f"SetEnv XDG_CACHE_HOME={tmp_path}/cache SGLANG_PERF_LEASE_DIR={tmp_path}/lease",
    )
    yield server
    server.stop()


def over_ssh(node, known_hosts=None) -> str:
    return (
        f"far: {{kind: ssh, host: 127.0.0.1, port: {node.port}, user: {node.user}, identity_file: {node.user_key}, "
        f"known_hosts: {known_hosts or node.known_hosts}, agent_python: {sys.executable}}}"
    )


@pytest.mark.sshd
def test_over_ssh(suite, node, capsys):
    suite(over_ssh(node))
    _, checks = doctor(capsys)
    assert checks["way"]["reason"].startswith(f"ssh {node.user}@127.0.0.1:{node.port}")
    assert checks["flags of base"]["status"] == "ok"


@pytest.mark.sshd
def test_what_is_broken_over_ssh_has_its_line(suite, node, tmp_path, capsys):
    shutil.rmtree(tmp_path / "model")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        suite(
            over_ssh(node), server=f"port: {port},", args="tp: 1, enable-mscclpq: true, num-continuous-decode-steps: 4"
        )
        status, checks = doctor(capsys)
    assert status == 1
    assert checks[f"port {port}"]["status"] == "bad"
    assert checks[f"model {tmp_path}/model"]["status"] == "bad"
    assert checks["flags of base"]["status"] in {"bad", "warn"}
    assert checks["gpus"]["status"] in {"bad", "ok"}  # as this machine is


@pytest.mark.sshd
def test_a_host_key_that_nobody_knows(suite, node, tmp_path, capsys):
    (tmp_path / "nobody").write_text("")
    suite(over_ssh(node, tmp_path / "nobody"))
    status, checks = doctor(capsys)
    assert (status, list(checks)) == (1, ["host key"])
    assert checks["host key"]["fix"]


@pytest.mark.sshd
def test_nobody_listens(suite, node, capsys):
    node.stop()
    suite(over_ssh(node))
    status, checks = doctor(capsys)
    assert (status, list(checks)) == (1, ["way"])
    assert checks["way"]["fix"]
