"""The sampler against the simulated nvidia-smi and against stand-ins that go wrong."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_sglang_perf.agent.gpu import COLUMNS, Sampler

from .conftest import running, wait_for

SIM = [sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi"]
LOOP = """
while True:
    print(row(), flush=True)
    time.sleep(period)
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "gpu.csv")


def patient(argv, period_ms, path, first_reading_s=30.0):
    """A sampler for a machine that is busy with other tests."""
    return Sampler(argv, period_ms, path, first_reading_s=first_reading_s)


def read(path):
    with Path(path).open(encoding="ascii") as file:
        return [dict(zip(COLUMNS, cells, strict=True)) for cells in csv.reader(file)]


def test_the_window_is_bracketed(path):
    """Every GPU has a reading before start() returns and one after stop() was called."""
    sampler = patient(SIM, 50, path)
    assert sampler.start() is None
    began_ns = time.monotonic_ns()
    assert {row["index"] for row in read(path)} == {str(index) for index in range(8)}
    assert wait_for(lambda: len(read(path)) >= 24)
    ended_ns = time.monotonic_ns()
    assert sampler.stop(30.0) is None
    rows = read(path)
    for index in range(8):
        stamps = [int(row["mono_ns"]) for row in rows if row["index"] == str(index)]
        assert stamps == sorted(stamps)
        assert stamps[0] < began_ns < ended_ns <= stamps[-1]
    assert all(all(row.values()) for row in rows), rows[0]
    assert float(rows[0]["memory_total_mib"]) == 97887


def test_one_of_several_gpus(path):
    """With -i the node still counts eight; a reading is complete when the first GPU comes again."""
    sampler = patient([*SIM, "-i", "2,5"], 20, path)
    assert sampler.start() is None
    assert sampler.stop(30.0) is None
    assert {row["index"] for row in read(path)} == {"2", "5"}


def test_gpus_that_answer_one_after_the_other(path, fake_smi):
    """The first GPU's reading is not enough: the last one's has to come before start() returns."""
    body = """
VALUES["count"] = "3"
while True:
    for index in "012":
        print(row(index=index), flush=True)
        time.sleep(0.1)
"""
    sampler = patient(fake_smi(body), 20, path)
    assert sampler.start() is None
    assert {row["index"] for row in read(path)} == set("012")
    stopped_ns = time.monotonic_ns()
    assert sampler.stop(30.0) is None
    assert {row["index"] for row in read(path) if int(row["mono_ns"]) > stopped_ns} == set("012")


def test_an_old_driver(path, fake_smi):
    smi = fake_smi(
        """
for field in ("power.draw.instant", "clocks_event_reasons.active", "count"):
    if field in fields:
        reject(field)
VALUES["clocks_throttle_reasons.active"] = "0x0000000000000020"
"""
        + LOOP
    )
    sampler = patient(smi, 20, path)
    assert sampler.start() is None
    assert sampler.stop(30.0) is None
    row = read(path)[0]
    assert row["power_instant_w"] == ""
    assert row["throttle_hex"] == "0x0000000000000020"
    assert row["power_w"] == "497.20"


def test_what_is_not_available_is_empty(path, fake_smi):
    smi = fake_smi(
        """
VALUES |= {"power.draw": "[N/A]", "utilization.gpu": "[Unknown Error]", "memory.used": "[Not Supported]",
           "temperature.gpu": "[GPU requires reset]", "clocks_event_reasons.active": "[N/A]", "clocks.sm": "nan"}
"""
        + LOOP
    )
    sampler = patient(smi, 20, path)
    assert sampler.start() is None
    assert sampler.stop(30.0) is None
    row = read(path)[0]
    empty = {column for column, value in row.items() if not value}
    assert empty == {
        "power_w", "utilization_pct", "memory_used_mib", "temperature_c", "throttle_hex", "clock_sm_mhz",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('NVIDIA-SMI has failed because it couldn\\'t communicate'); sys.exit(9)", "status 9.*has failed"),
        ("reject('index')", "status 2.*index"),
        ("sys.exit(0)", "status 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "status -11"),
    ],
)
def test_one_that_fails_at_once(path, fake_smi, gone, body, said):
    sampler = patient(fake_smi(body), 20, path)
    error = sampler.start()
    assert error is not None
    assert re.search(said, error), error
    assert sampler.stop() == error
    assert gone()


def test_one_that_is_not_there(path):
    sampler = patient(["/no/such/nvidia-smi"], 20, path)
    assert sampler.start() == "/no/such/nvidia-smi: no such program on this node"
    assert sampler.stop() == "/no/such/nvidia-smi: no such program on this node"


@pytest.mark.parametrize("body", ["time.sleep(600)", "signal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"])
def test_one_that_hangs_from_the_start(path, fake_smi, gone, body):
    sampler = patient(fake_smi(body), 20, path, first_reading_s=2.0)
    began = time.monotonic()
    assert sampler.start() == "nvidia-smi gave no reading within 2 s"
    assert time.monotonic() - began < 10
    assert gone()


def test_one_that_hangs_later(path, fake_smi, gone):
    sampler = patient(fake_smi("print(row(), flush=True)\ntime.sleep(600)"), 20, path)
    assert sampler.start() is None
    began = time.monotonic()
    assert sampler.stop() == "no reading of GPU 0 after the end of the trial"
    assert time.monotonic() - began < 10
    assert gone()


def test_one_that_dies_later(path, fake_smi, tmp_path, gone):
    go = tmp_path / "go"
    body = f"print(row(), flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nsys.exit(15)"
    sampler = patient(fake_smi(body), 20, path)
    assert sampler.start() is None
    go.touch()
    assert gone()
    assert sampler.stop() == "nvidia-smi ended with status 15 during the trial"
    assert len(read(path)) == 1


def test_a_lost_gpu_is_told(path, monkeypatch):
    monkeypatch.setenv("SGLANG_SIM_SMI_FAIL", "lost:3")
    sampler = patient(SIM, 20, path)
    assert sampler.start() is None
    error = sampler.stop(2.0)
    assert error is not None
    assert "Unable to determine the device handle for GPU3" in error
    assert {row["index"] for row in read(path)} == set("0124567")


def test_lines_in_pieces_and_floods(path, fake_smi):
    """A reading in two pieces is one, stamped when its first piece came; endless chatter is bounded."""
    smi = fake_smi("""
while True:
    text = row() + "\\n"
    cut = text.index("1980")
    sys.stdout.write(text[:cut]); sys.stdout.flush(); time.sleep(0.05)
    sys.stdout.write(text[cut:].replace("1980", str(time.monotonic_ns())))
    sys.stdout.write("x" * 200000 + "\\n"); sys.stdout.flush()
""")
    sampler = patient(smi, 20, path)
    assert sampler.start() is None
    assert wait_for(lambda: len(read(path)) > 3)
    error = sampler.stop(2.0)
    assert error is not None
    assert len(error) < 1500
    rows = read(path)
    assert {row["memory_total_mib"] for row in rows} == {"143771"}
    # The clock column tells when the second piece was written.
    earlier = [int(row["mono_ns"]) < int(row["clock_sm_mhz"]) for row in rows]
    assert sum(earlier) > len(rows) / 2, "one may come in one piece, when the reader was late"


def test_a_path_that_cannot_be_written(tmp_path, fake_smi):
    sampler = patient(fake_smi(LOOP), 20, str(tmp_path / "no" / "such" / "folder.csv"))
    error = sampler.start()
    assert error is not None
    assert "No such file" in error


def test_a_full_disk(fake_smi, gone):
    sampler = patient(fake_smi(LOOP), 20, "/dev/full")
    error = sampler.start() or sampler.stop()
    assert error is not None
    assert "No space left" in error
    assert gone()


def test_started_from_a_thread_that_ends(path, fake_smi):
    """nvidia-smi is bound to the sampler's thread, not to the one that happened to call start()."""
    sampler = patient(fake_smi(LOOP), 20, path)
    starter = threading.Thread(target=sampler.start)
    starter.start()
    starter.join()
    rows = len(read(path))
    assert wait_for(lambda: len(read(path)) > rows + 3)
    assert sampler.stop(30.0) is None


def test_nothing_outlives_a_killed_agent(path, fake_smi, tmp_path):
    """Killed with -9: nvidia-smi goes too, although it says nothing and so never notices a broken pipe."""
    smi = fake_smi("print(row(), flush=True)\ntime.sleep(600)")
    program = f"""
import time
from pathlib import Path
from pytest_sglang_perf.agent.gpu import Sampler
assert Sampler({smi!r}, 20, {path!r}, first_reading_s=30.0).start() is None
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        try:
            assert agent.stdout.readline() == b"started\n"
            pid = int((tmp_path / "smi.pid").read_text())
            assert running(pid)
        finally:
            os.kill(agent.pid, signal.SIGKILL)
    assert wait_for(lambda: not running(pid))
