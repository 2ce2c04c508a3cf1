"""Stand-ins for nvidia-smi that do one thing wrong each, and sessions that race."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

# What the stand-ins share: the fields asked for and the period, as the real one reads them.
SMI = """\
import sys, time, os, signal
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
fields = words.get("--query-gpu", words.get("--query-compute-apps", "")).split(",")
loop = "-lms" in sys.argv
period = int(sys.argv[sys.argv.index("-lms") + 1]) / 1000 if loop else 0
VALUES = {
    "index": "0", "uuid": "GPU-faca445d", "name": "NVIDIA H200", "driver_version": "580.159.04", "count": "1",
    "power.draw": "497.20", "power.draw.instant": "512.01", "utilization.gpu": "99", "memory.used": "121034",
    "memory.total": "143771", "power.limit": "700.00", "temperature.gpu": "58", "clocks.sm": "1980",
    "clocks_event_reasons.active": "0x0000000000000004",
}
def reject(field):
    print(f'Field "{field}" is not a valid field to query.\\n')
    sys.exit(2)
def row(**changes):
    values = {**VALUES, **{name.replace("__", "."): value for name, value in changes.items()}}
    return ", ".join(values[field] for field in fields)
"""


@pytest.fixture
def fake_smi(tmp_path):
    """Make an nvidia-smi command from the body of a program (see SMI); its pid is in ``tmp_path / "smi.pid"``."""

    def make(body: str) -> list[str]:
        script = tmp_path / "smi.py"
        pid = f"open({str(tmp_path / 'smi.pid')!r}, 'w').write(str(os.getpid()))\n"
        script.write_text(SMI + pid + body)
        return [sys.executable, "-I", "-S", str(script)]

    return make


@pytest.fixture
def gone(tmp_path):
    """Wait until the stand-in's process is no more, not even as a zombie of ours."""

    def wait(pid: int | None = None) -> bool:
        if pid is None:
            try:
                pid = int((tmp_path / "smi.pid").read_text())
            except FileNotFoundError:
                return True  # killed before it came to write it
        return wait_for(lambda: not running(pid))

    return wait


def running(pid: int) -> bool:
    """Whether a process lives; a zombie whose parent is not us (init may be slow) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, timeout: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def racers(tmp_path):
    """Start sessions that race for the leases in ``tmp_path / "leases"``."""
    witness = tmp_path / "witness"
    witness.mkdir()
    with ExitStack() as stack:

        def start(number: int, *, wait_s: float, hold_s: float) -> list[subprocess.Popen]:
            words = [str(tmp_path / "leases"), str(witness), str(wait_s), str(hold_s)]
            started = []
            for _ in range(number):
                process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("racer.py")), *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                started.append(process)
            return started

        yield start
