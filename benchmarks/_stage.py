"""Where the load engine's benchmark happens: a stamped server on one core, a client on the other, others watched."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PERIOD_MS, TTFT_MS, PAD = 50.0, 75.0, 330
SERVER = {"pid": 0}
PRIORITY: list[str] = []


class Used(NamedTuple):
    """Processor seconds of a client and its children, and the share of a core that other programs used meanwhile."""

    user_s: float
    system_s: float
    others: float

    @property
    def total_s(self):
        return self.user_s + self.system_s


def build_server(folder):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("benchmarks/load_engine needs a C compiler for its server")
    program = folder / "stamped"
    subprocess.run([compiler, "-O2", "-w", "-o", program, HERE / "_stamped.c"], check=True)
    return program


@contextmanager
def server(program, *, burst, spread_ms=50.0, ttft_ms=TTFT_MS, period_ms=PERIOD_MS):
    argv = [program, period_ms, ttft_ms, 0 if burst else spread_ms, int(burst), PAD]
    with subprocess.Popen(pinned(1, [*map(str, argv)]), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            SERVER["pid"] = process.pid
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def pinned(core, argv):
    cores = sorted(os.sched_getaffinity(0))
    return [*PRIORITY, "taskset", "-c", str(cores[core % len(cores)]), *map(str, argv)]


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else None


def busy_s():
    """Processor seconds of the whole machine so far, idle, waiting and the server left out."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    served = Path(f"/proc/{SERVER['pid']}/stat").read_text().rsplit(")", 1)[1].split()
    return (sum(fields) - fields[3] - fields[4] - int(served[11]) - int(served[12])) / os.sysconf("SC_CLK_TCK")


def timed(argv, *, stdin=None, env=None, cwd=None):
    """Run pinned to the client's core; the finished process and what it used."""
    before, began, wall = busy_s(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        pinned(0, argv), input=stdin, capture_output=True, text=True, check=False, env=env, cwd=cwd, timeout=300
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - wall
    user_s, system_s = after.ru_utime - began.ru_utime, after.ru_stime - began.ru_stime
    return done, Used(user_s, system_s, (busy_s() - before - user_s - system_s) / wall)
