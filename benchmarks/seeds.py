"""How often does a session on the simulated node end with an unexpected outcome, and how often does a file change?

    scripts/bench seeds --sessions 100 --jobs 3

Runs a shortened campaign (two levels, some of the tests) in sessions with different seeds: five that record a boot,
then ones with --update-baselines against those five. Such a session judges first and updates then, so each counts
twice: (a) whether any test ended otherwise than expected, (b) whether any baseline file changed a byte. A changed file
is put back, so that every session meets the same five boots. Each of the jobs records five boots of its own, while the
others record theirs, and judges its share of the sessions by them. Sessions in parallel share the cores that the
simulation's clock runs on: as many as leave the trials valid, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: The levels that are measured, with their requests; and the one at which EP8 dies.
LEVELS = {10: 30, 64: 192}
FATAL = 256


def shortened(folder: Path, time_scale: float | None) -> None:
    """The shipped campaign with two levels instead of four, and at another pace if one is given."""
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "perf_tests", folder / "perf_tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    suite = folder / "perf_tests" / "sglang-perf.yaml"
    text = suite.read_text()
    levels = ", ".join(map(str, LEVELS))
    requests = ", ".join(f"{level}: {n}" for level, n in LEVELS.items())
    text = re.sub(r"concurrency: \[[^\]]*\]", f"concurrency: [{levels}, {FATAL}], requests: {{{requests}}}", text)
    if time_scale is not None:
        text = text.replace("profile: rtx-pro-6000-x8}", f"profile: rtx-pro-6000-x8, time_scale: {time_scale:g}}}")
    suite.write_text(text)
    for test in (folder / "perf_tests").glob("test_*.py"):
        source = test.read_text()
        source = re.sub(r"\[1, 10, 256, 1024\]", f"[{levels}]", source)
        source = re.sub(r"\[256, 1024\]", "[64]", source)
        source = re.sub(r"\[1, 10\]", "[10]", source)
        source = source.replace("concurrency=1024", "concurrency=64")
        test.write_text(source)


@dataclass(frozen=True)
class Session:
    """What one pytest session came to."""

    seed: int
    status: int
    unexpected: tuple[str, ...]
    changed: tuple[str, ...]
    wall_s: float


def session(folder: Path, seed: int, select: str, *, keep: bool = False) -> Session:
    """Run the shortened suite in a folder of its own around the baselines of ``folder``; with ``keep`` store them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"seed-{seed}-", dir=folder) as name:
        place = Path(name)
        shutil.copytree(folder / "suite", place, dirs_exist_ok=True)
        if (folder / "baselines").exists():
            shutil.copytree(folder / "baselines", place / "baselines")
        before = files(place)
        env = {**os.environ, "SGLANG_PERF_SIM_SEED": str(seed), "SGLANG_PERF_LEASE_DIR": str(place / "lease")}
        env.pop("CI", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "perf_tests", "-k", select]
        done = subprocess.run(
            [*command, "--sglang-report", "out", "--update-baselines"],
            cwd=place,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        after = files(place)
        changed = tuple(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))
        if keep:
            shutil.copytree(place / "baselines", folder / "baselines", dirs_exist_ok=True)
        try:
            tests = json.loads((place / "out" / "run.json").read_text())["tests"]
        except FileNotFoundError:
            unexpected = ["no report: " + done.stdout[-2000:] + done.stderr[-2000:]]
        else:
            unexpected = [_told(test) for test in tests if test["failed"]]
    return Session(seed, done.returncode, tuple(unexpected), changed, time.monotonic() - began)


def _told(test: dict) -> str:
    claims = "; ".join(c["text"] for c in test["claims"] if c["status"] != "holds")
    return f"{test['nodeid'].rpartition('::')[2]}: {test['outcome']} ({claims})"


def files(folder: Path) -> dict[str, bytes]:
    root = folder / "baselines"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.json")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="sessions at a time")
    parser.add_argument("-k", dest="select", default="sbo or piecewise or ep8")
    parser.add_argument("--time-scale", type=float, help="simulated seconds in a real one (default: the profile's)")
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="sglang-perf-seeds-") as name,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        jobs = [Path(name) / str(number) for number in range(options.jobs)]

        def record(job: int) -> None:
            shortened(jobs[job] / "suite", options.time_scale)
            for number in range(5):
                session(jobs[job], options.first_seed - 5 * (job + 1) + number, options.select, keep=True)

        def judge(job: int) -> list[Session]:
            seeds = range(options.first_seed + job, options.first_seed + options.sessions, options.jobs)
            return [_tell(session(jobs[job], seed, options.select)) for seed in seeds]

        list(pool.map(record, range(options.jobs)))
        told = " + ".join(str(len(files(job))) for job in jobs)
        print(f"recorded 5 boots in {time.monotonic() - began:.0f} s: {told} files", flush=True)
        done = [one for part in pool.map(judge, range(options.jobs)) for one in part]
    unexpected = sum(bool(one.unexpected or one.status) for one in done)
    print(f"sessions with an unexpected outcome: {unexpected} of {len(done)}")
    print(f"sessions that changed a file: {sum(bool(one.changed) for one in done)} of {len(done)}")
    print(f"{time.monotonic() - began:.0f} s in all, load {os.getloadavg()[0]:.1f} at the end")
    for text, count in Counter(text for one in done for text in one.unexpected).most_common():
        print(f"  {count:4d}  {text}")


def _tell(done: Session) -> Session:
    told = "; ".join(done.unexpected) or ("" if not done.status else f"exit status {done.status}")
    files_told = f"changed {', '.join(done.changed)}" if done.changed else ""
    print(f"seed {done.seed}: {done.wall_s:.0f} s {told} {files_told}".rstrip(), flush=True)
    return done


if __name__ == "__main__":
    main()
