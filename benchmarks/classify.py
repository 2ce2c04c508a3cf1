"""Classify a 1 GB log: time and memory.

Builds logs on the fly (nothing is committed): ``serving`` repeats what a busy server writes (statistics and access
lines), ``noisy`` is the worst case, tracebacks and warnings that have to be looked at one by one. Run with
``scripts/bench classify [--mb 1024]``. A plain ``grep -c`` for a few words over the same file, in the same run,
gives the scale.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The kernel's ru_maxrss of a child begins with that of the process it was forked from; VmHWM is its own.
_RUN = """
import sys
from pytest_sglang_perf.cli import main
main()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak.split()[1], file=sys.stderr)
"""
DATA = Path(__file__).parents[1] / "tests" / "data" / "logs"


def serving() -> tuple[bytes, bytes]:
    """Head (a boot) and body (what is repeated) of a log under load."""
    text = gzip.decompress((DATA / "cuda_0.5.16_healthy_under_load.log.gz").read_bytes())
    lines = text.splitlines(keepends=True)
    body = [line for line in lines if b"batch, #" in line or b"POST /generate" in line]
    ready = next(i for i, line in enumerate(lines) if b"fired up" in line)
    return b"".join(lines[: ready + 1]), b"".join(body)


def noisy() -> tuple[bytes, bytes]:
    """A body of tracebacks that were survived and of warnings, no two alike."""
    head, _ = serving()
    lines = (DATA / "cuda_0.5.16_kv_budget_too_small.log").read_bytes().splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if b"Scheduler hit" in line)
    stop = next(i for i, line in enumerate(lines) if b"Received sigquit" in line)
    random.seed(6)
    body = bytearray()
    for number in range(20_000):
        body += (
            b"[2026-11-29 14:18:23] Error in detect_and_parse of request %d: Traceback (most recent call last):\n"
            % number
        )
        body += b"".join(lines[start + 1 : stop])
        word = bytes(random.choices(string.ascii_lowercase.encode(), k=9))  # differs in more than numbers
        body += b"[2026-11-29 14:18:23] Failed to load tool %s: not found, error ignored\n" % word
        body += b"request %d failed: RuntimeError: unable to parse argument at time %d\n" % (number, number * 7)
        body += b"W1129 14:18:23.%06d warning: cannot reuse cache entry, missing memory\n" % number
    return head, bytes(body)


def build(kind: str, megabytes: int, folder: Path) -> Path:
    head, body = {"serving": serving, "noisy": noisy}[kind]()
    path = folder / f"{kind}.log"
    block = body * max(1, (4 << 20) // len(body))
    with path.open("wb") as file:
        file.write(head)
        while file.tell() < megabytes << 20:
            file.write(block)
        file.write(
            b"[2026-11-29 15:00:00] Subprocess scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT\n"
        )
    return path


def measure(path: Path) -> dict[str, object]:
    """Run the command line tool on ``path`` in a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, "classify", "--json", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    output = process.stdout.read()
    peak_kib = int(process.stderr.read())
    _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    found = json.loads(output)
    return {
        "log": path.name,
        "mb": path.stat().st_size >> 20,
        "seconds": round(seconds, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(peak_kib / 1024, 1),
        "class": found["class"],
    }


def grep(path: Path) -> float:
    start = time.perf_counter()
    subprocess.run(
        ["grep", "-c", "-E", "Traceback|FAILED|sigquit|out of memory", str(path)], check=False, stdout=subprocess.PIPE
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("serving", "noisy"):
            path = build(kind, options.mb, folder)
            plain = grep(path)
            row = measure(path)
            print(json.dumps({**row, "grep_s": round(plain, 2)}))
            path.unlink()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
