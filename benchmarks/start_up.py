"""What the plugin adds to a pytest run without perf tests, next to plugins that people consider light.

    scripts/bench start_up

Whole processes of `pytest --collect-only` on one empty test, plugins loaded one at a time, interleaved. Prints the
median of each and the difference to no plugin, in milliseconds, and the ratio to pytest-xdist's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGINS = {
    "none": [],
    "pytest-sglang-perf": ["-p", "pytest_sglang_perf.plugin"],
    "pytest-xdist": ["-p", "xdist.plugin"],
    "pytest-rerunfailures": ["-p", "pytest_rerunfailures"],
    "hypothesis": ["-p", "_hypothesis_pytestplugin"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in PLUGINS}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text("def test_it(): pass\n")
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for _ in range(options.rounds):
            for name, arguments in PLUGINS.items():
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments],
                    cwd=folder,
                    env=env,
                    check=True,
                    capture_output=True,
                )
                times[name].append((time.perf_counter() - began) * 1e3)
    base = statistics.median(times["none"])
    peer = statistics.median(times["pytest-xdist"]) - base
    print(f"{'plugin':<24}{'median ms':>10}{'added ms':>10}{'x xdist':>9}   (load {os.getloadavg()[0]:.1f})")
    for name, values in times.items():
        added = statistics.median(values) - base
        ratio = f"{added / peer:9.2f}" if peer > 0 else ""
        print(f"{name:<24}{statistics.median(values):>10.1f}{added:>10.1f}{ratio}")


if __name__ == "__main__":
    main()
