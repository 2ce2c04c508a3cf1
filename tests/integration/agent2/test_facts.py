"""What a node says about itself, with sick programs among those asked."""

from __future__ import annotations

import asyncio
import getpass
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_sglang_perf.agent import facts as facts_module
from pytest_sglang_perf.agent.facts import facts, gpu_memory_used, gpu_processes

SIM = [sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi"]


def ask(pythons=(), nvidia_smi=None):
    return asyncio.run(facts(list(pythons), nvidia_smi))


def test_this_machine():
    found = ask()
    assert found["cpus"] == os.cpu_count()
    assert found["kernel"] == os.uname().release
    assert found["cpu_model"]
    kib = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1])
    assert found["memory_bytes"] == pytest.approx(kib * 1024, rel=0.01)
    assert found["gpus"] == []
    assert found["gpu_error"] == "no nvidia-smi command is set for this node"
    assert found["gpu_processes"] == []


def test_gpus(monkeypatch):
    monkeypatch.setenv("SGLANG_SIM_SMI_FAIL", "foreign:3")
    found = ask(nvidia_smi=SIM)
    assert found["gpu_error"] is None
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))
    assert len({gpu["uuid"] for gpu in found["gpus"]}) == 8
    gpu = found["gpus"][3]
    assert {"memory_total_mib": 97887.0, "power_limit_w": 600.0}.items() <= gpu.items()
    assert gpu["name"].startswith("NVIDIA RTX PRO 6000")
    assert gpu["driver"].count(".") == 2
    (process,) = found["gpu_processes"]
    assert process == {"gpu": 3, "pid": 4194300, "user": None, "command": "/usr/bin/somebody-elses-job"}
    assert gpu_memory_used(SIM) == [4.0] * 8


@pytest.mark.parametrize(
    ("fault", "said", "gpus"), [("no_driver", "status 9: NVIDIA-SMI has failed", 0), ("lost:3", "GPU3", 7)]
)
def test_sick_gpus(monkeypatch, fault, said, gpus):
    monkeypatch.setenv("SGLANG_SIM_SMI_FAIL", fault)
    found = ask(nvidia_smi=SIM)
    assert said in found["gpu_error"]
    assert len(found["gpus"]) == gpus
    assert gpu_memory_used(SIM) is None


def test_a_hung_nvidia_smi(monkeypatch, fake_smi, gone):
    monkeypatch.setattr(facts_module, "_NVIDIA_SMI_S", 0.5)
    smi = fake_smi("signal.signal(15, signal.SIG_IGN)\ntime.sleep(600)")
    began = time.monotonic()
    found = ask(nvidia_smi=smi)
    assert time.monotonic() - began < 15
    assert found["gpu_error"] == "nvidia-smi did not answer in time"
    assert gone()
    assert gpu_processes(smi) == []
    assert gpu_memory_used(smi) is None


def test_what_nvidia_smi_does_not_know(fake_smi):
    smi = fake_smi("""
VALUES |= {"power.limit": "[N/A]", "memory.used": "[N/A]", "name": "GPU, with a comma"}
print(row())
""")
    found = ask(nvidia_smi=smi)
    assert found["gpus"][0]["power_limit_w"] is None
    assert found["gpus"][0]["name"] == "GPU, with a comma"
    assert gpu_memory_used(smi) is None


def test_a_process_is_named_without_its_secrets(fake_smi):
    words = ["--api-key", "MARK1", "--admin-api-key=MARK2", "--hf-token", "MARK3", "--tp", "8", "--token-limit", "7"]
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", *words], stdin=subprocess.PIPE) as job:
        try:
            smi = fake_smi(f"""
if "pid" in fields:
    VALUES |= {{"gpu_uuid": "GPU-faca445d", "pid": "{job.pid}", "process_name": "python, the program"}}
print(row())
""")
            (process,) = gpu_processes(smi)
        finally:
            job.kill()
    assert process["gpu"] == 0
    assert process["user"] == getpass.getuser()
    assert process["command"].startswith(sys.executable)
    assert "MARK" not in process["command"]
    assert process["command"].endswith("--api-key *** --admin-api-key=*** --hf-token *** --tp 8 --token-limit 7")


def script(tmp_path, name, body):
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_interpreters(tmp_path, monkeypatch):
    monkeypatch.setattr(facts_module, "_PYTHON_S", 4.0)
    site = tmp_path / "site"
    (site / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (site / "sglang-0.5.23.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    checkout = tmp_path / "checkout" / "sglang"
    checkout.mkdir(parents=True)
    (checkout / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    (checkout / "_version.py").write_text('__version__ = version = "0.5.24.dev3+g1234"\n')
    wrapped = script(tmp_path, "wrapped", f'PYTHONPATH={site} exec {sys.executable} "$@"')
    source = script(tmp_path, "source", f'PYTHONPATH={checkout.parent} exec {sys.executable} "$@"')
    noisy = script(tmp_path, "noisy", f'echo welcome; echo hint >&2; exec {sys.executable} "$@"')
    silent = script(tmp_path, "silent", "sleep 600")
    liar = script(tmp_path, "liar", "echo hello")
    broken = script(tmp_path, "broken", "echo 'libpython3.so: cannot open' >&2; exit 127")
    missing = str(tmp_path / "missing")
    began = time.monotonic()
    found = ask([wrapped, source, noisy, silent, liar, broken, missing, sys.executable, wrapped])["pythons"]
    assert time.monotonic() - began < 20
    here = ".".join(map(str, sys.version_info[:3]))
    assert found[wrapped] == {"version": here, "sglang": "0.5.23", "error": None}
    assert found[source] == {"version": here, "sglang": "0.5.24.dev3+g1234", "error": None}
    assert found[noisy] == {"version": here, "sglang": None, "error": None}
    assert found[sys.executable] == {"version": here, "sglang": None, "error": None}
    assert "did not answer in time" in found[silent]["error"]
    assert "is no Python: it answered 'hello'" in found[liar]["error"]
    assert found[broken]["error"] == "libpython3.so: cannot open"
    assert "no such program" in found[missing]["error"]
    assert all(found[path]["version"] is None for path in (silent, liar, broken, missing))
