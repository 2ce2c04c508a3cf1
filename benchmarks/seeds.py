"""How often does a session on the simulated node end with an unexpected outcome, and how often does a file change?

    scripts/bench seeds --sessions 100

Runs a shortened campaign (two levels, fewer requests) in sessions with different seeds, first recording five boots,
then counting (a) sessions in which any test ended otherwise than expected and (b) sessions under --update-baselines
in which any baseline file changed a byte. Sequential, since two sessions at once would share the cores that the
simulation's clock runs on.
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
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEVELS = {10: 30, 256: 512}


def shortened(folder: Path) -> None:
    """The shipped campaign with two levels instead of four."""
    shutil.copytree(ROOT / "perf_tests", folder / "perf_tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    suite = folder / "perf_tests" / "sglang-perf.yaml"
    text = suite.read_text()
    levels = ", ".join(map(str, LEVELS))
    requests = ", ".join(f"{level}: {n}" for level, n in LEVELS.items())
    text = re.sub(r"concurrency: \[[^\]]*\]", f"concurrency: [{levels}], requests: {{{requests}}}", text)
    suite.write_text(text)
    for test in (folder / "perf_tests").glob("test_*.py"):
        source = test.read_text()
        source = re.sub(r"\[1, 10, 256, 1024\]", f"[{levels}]", source)
        source = re.sub(r"\[256, 1024\]", "[256]", source)
        source = re.sub(r"\[1, 10\]", "[10]", source)
        source = source.replace("concurrency=1024", "concurrency=256")
        test.write_text(source)


def session(folder: Path, seed: int, select: str, *args: str) -> dict:
    env = {**os.environ, "SGLANG_PERF_SIM_SEED": str(seed), "SGLANG_PERF_LEASE_DIR": str(folder / "lease")}
    env.pop("CI", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "perf_tests", "-k", select]
    done = subprocess.run(
        [*command, "--sglang-report", "out", *args], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    try:
        report = json.loads((folder / "out" / "run.json").read_text())
    except FileNotFoundError:
        return {
            "ret": done.returncode,
            "unexpected": ["no report"],
            "output": done.stdout[-3000:] + done.stderr[-2000:],
        }
    unexpected = [_told(t) for t in report["tests"] if t["failed"]]
    shutil.rmtree(folder / "out")
    return {"ret": done.returncode, "unexpected": unexpected, "output": done.stdout[-3000:], "report": report}


def _told(test: dict) -> str:
    claims = "; ".join(c["text"] for c in test["claims"] if c["status"] != "holds")
    return f"{test['nodeid'].rpartition('::')[2]}: {test['outcome']} ({claims})"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (folder / "baselines").rglob("*.json")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument(
        "--updates", type=int, default=None, help="sessions with --update-baselines (default: the same)"
    )
    parser.add_argument("-k", dest="select", default="sbo or mscclpp or piecewise or ep8 or base_keeps")
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sglang-perf-seeds-") as name:
        folder = Path(name)
        shortened(folder)
        began = time.monotonic()
        for seed in range(5):
            session(folder, options.first_seed - 10 + seed, options.select, "--update-baselines")
        print(f"recorded 5 boots in {time.monotonic() - began:.0f} s: {len(files(folder))} files", flush=True)
        bad = Counter[str]()
        sessions_bad = 0
        for number in range(options.sessions):
            found = session(folder, options.first_seed + number, options.select)
            if found["unexpected"] or found["ret"] != 0:
                sessions_bad += 1
                bad.update(found["unexpected"])
                print(f"seed {options.first_seed + number}: {found['unexpected'] or found['output']}", flush=True)
        print(f"unexpected: {sessions_bad} of {options.sessions} sessions (load {os.getloadavg()[0]:.1f})", flush=True)
        for text, count in bad.most_common():
            print(f"  {count:4d}  {text}")
        changed = 0
        updates = options.sessions if options.updates is None else options.updates
        for number in range(updates):
            before = files(folder)
            session(folder, options.first_seed + 100_000 + number, options.select, "--update-baselines")
            after = files(folder)
            if before != after:
                changed += 1
                print(f"seed {options.first_seed + 100_000 + number}: files changed", flush=True)
        print(f"changed: {changed} of {updates} sessions; {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
