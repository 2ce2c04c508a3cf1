"""What is promised whatever happens: a lease has one holder at a time, and a killed writer leaves a whole file.

    scripts/bench staying_in_control

The race: 100 rounds in which 8 processes want the whole node at the same moment, each holding it for a millisecond.
Each holder proves that it is alone with a file made by O_EXCL. Shown: how many got it twice at once (a clash), how
many did not get it before their deadline, and how long they waited.

The kills: 1,000 times a process that saves a baseline over and over is killed at a random moment, and the file is read
back. Shown: how many were missing, unreadable, or neither of the versions that were being written; and how often the
kill met a write (a leftover beside the file), without which the figure would mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from pytest_sglang_perf.baselines import BaselineFile, BaselineStore, NodeClass, StoredBoot
from pytest_sglang_perf.baselines.files import clean_leftovers
from pytest_sglang_perf.errors import BaselineError

REPOSITORY = Path(__file__).resolve().parent.parent
NODE = NodeClass("8x-bench", {"gpu": "none"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--wait", type=float, default=10.0, help="deadline of each session, in seconds")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20260219)
    options = parser.parse_args()
    race(options.rounds, options.sessions, options.wait)
    kills(options.kills, random.Random(options.seed))


def race(rounds: int, sessions: int, wait_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder, "witness")
        witness.mkdir()
        argv = [sys.executable, "-m", "tests.integration.agent2.racer", f"{folder}/leases", str(witness)]
        racers = [
            subprocess.Popen(
                [*argv, str(wait_s), "0.001"], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(sessions)
        ]
        waited: list[float] = []
        lost = clashes = 0
        for _ in range(rounds):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("null\n")
                racer.stdin.flush()
            for racer in racers:
                answer = _answer(racer.stdout)
                lost += "lost" in answer
                clashes += bool(answer.get("clash"))
                waited += [float(answer["waited_s"])] if "waited_s" in answer else []
        for racer in racers:
            racer.communicate(timeout=30)
    print(f"race: {rounds} rounds of {sessions} sessions, {len(waited)} leases")
    print(f"  two at once {clashes}, past the deadline of {wait_s:g} s {lost}")
    print(f"  waited: median {1000 * statistics.median(waited):.1f} ms, longest {1000 * max(waited):.1f} ms")


def _answer(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    for line in stream:
        if line != "held\n":
            return dict(json.loads(line))
    raise SystemExit("a racer died")


def kills(count: int, chance: random.Random) -> None:
    boots = tuple(
        StoredBoot("c", "w", f"s{n}", n, "2026-02-19", {"output_throughput": (100.0 + n, 101.0)}) for n in range(5)
    )
    one = BaselineFile("base", NODE.slug, dict(NODE.details), {"short": {str(level): boots for level in (1, 8, 64)}})
    other = replace(one, workloads={"short": {str(level): boots[:3] for level in (1, 8, 64)}})
    lost = torn = met = 0
    versions = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        store = BaselineStore(Path(folder))
        path = store.save(NODE, one)
        for _ in range(count):
            writer = os.fork()
            if writer == 0:
                while True:
                    store.save(NODE, other)
                    store.save(NODE, one)
            time.sleep(chance.uniform(0.001, 0.02))  # the moment of the kill is the point
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            try:
                found = store.load(NODE, "base")
            except BaselineError:
                torn += 1
            else:
                lost += found is None
                torn += found is not None and found not in (one, other)
                versions[found == other] += 1
            left = [item for item in path.parent.iterdir() if item != path]
            met += bool(left)
            for item in left:
                os.utime(item, (0, 0))
            clean_leftovers(path.parent)
        kept = [item.name for item in path.parent.iterdir()]
    print(f"kills: {count} while a baseline was being saved, {met} of them in the middle of a write")
    print(f"  missing {lost}, torn {torn}; found the one version {versions[0]} times, the other {versions[1]} times")
    print(f"  left in the folder at the end: {', '.join(kept)}")


if __name__ == "__main__":
    main()
