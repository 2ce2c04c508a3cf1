"""Who of the processes below a server went first."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from pytest_sglang_perf.agent import procfs
from pytest_sglang_perf.agent.watch import Watch

# A process that calls itself as sglang's do, ends its first thread when told to, and ends wholly when told again.
_SLOW_TO_END = """
import ctypes, platform, sys, threading, os
def last():
    sys.stdin.readline()
    os._exit(0)
print("up", flush=True)
sys.stdin.readline()
threading.Thread(target=last).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


def spawn(title: str) -> subprocess.Popen[bytes]:
    # The title is the program's name: argv[0].
    process = subprocess.Popen(
        [title, "-c", _SLOW_TO_END], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def tell(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def below(*processes: subprocess.Popen[bytes]) -> list[procfs.Process]:
    return [one for process in processes if (one := procfs.process(process.pid)) is not None]


async def until(deaths: list[str], number: int) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while len(deaths) < number:
        assert asyncio.get_running_loop().time() < deadline, f"{number} deaths were not told in 20 s: {deaths}"
        await asyncio.sleep(0.01)


async def first_to_end() -> list[str]:
    rank, detokenizer = spawn("sglang::scheduler_TP1"), spawn("sglang::detokenizer")
    deaths: list[str] = []
    watch = Watch(asyncio.get_running_loop(), lambda watched, _code: deaths.append(watched.title.split(" ")[0]))
    try:
        watch.update(below(detokenizer, rank))
        tell(rank)  # its end begins, but it cannot be waited for
        start = below(rank)[0].start
        deadline = asyncio.get_running_loop().time() + 20
        while not procfs.exiting(rank.pid, start):
            assert asyncio.get_running_loop().time() < deadline, "the rank's end did not begin"
            await asyncio.sleep(0.01)
        watch.check()
        detokenizer.kill()
        await until(deaths, 2)
    finally:
        watch.close()
        for process in (rank, detokenizer):
            process.kill()
            process.communicate()
    return deaths


def test_the_rank_whose_end_began_first_is_named_first_though_another_was_dead_sooner():
    assert asyncio.run(first_to_end()) == ["sglang::scheduler_TP1", "sglang::detokenizer"]


async def never_quite_dead() -> list[str]:
    rank = spawn("sglang::scheduler_TP0")
    deaths: list[str] = []
    watch = Watch(asyncio.get_running_loop(), lambda watched, _code: deaths.append(watched.title.split(" ")[0]))
    try:
        watch.update(below(rank))
        tell(rank)
        await until(deaths, 1)
        assert rank.poll() is None
    finally:
        watch.close()
        rank.kill()
        rank.communicate()
    return deaths


def test_a_rank_that_takes_long_to_end_is_told_without_its_exit_status():
    assert asyncio.run(never_quite_dead()) == ["sglang::scheduler_TP0"]
