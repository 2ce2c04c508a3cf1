"""Our figures beside those of sglang's own tool, on the same server, at every level, one after the other.

Run with ``--sglang-suite examples/h200/sglang-perf.yaml -s``, on the node itself. It prints a table; it asserts only
that both measured something, because the two define their figures differently (docs/reference/metrics.md).
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = {1: 12, 16: 64, 64: 256, 256: 1024}


@pytest.mark.sglang(server="default", trials=1)
def test_our_figures_beside_sglangs(sglang_server, sglang_perf, tmp_path: Path) -> None:
    info = sglang_server.server_info()
    rows = []
    for level, requests in LEVELS.items():
        theirs = _bench_serving(sglang_perf, info["port"], info["model_path"], level, requests, tmp_path)
        now = sglang_perf.measure(level)
        rows.append((level, theirs, now))
    print(f"\n{'level':>5} {'':12} {'output tok/s':>12} {'TTFT p50 ms':>12} {'TPOT p50 ms':>12} {'E2E p50 ms':>11}")
    for level, theirs, now in rows:
        ours = (now.output_throughput, now.ttft_p50, now.tpot_p50, now.e2e_p50)
        figures = [float(ours[0]), *(float(value) * 1e3 for value in ours[1:])]
        print(f"{level:>5} {'ours':12} {figures[0]:12.1f} {figures[1]:12.2f} {figures[2]:12.3f} {figures[3]:11.1f}")
        print(
            f"{'':>5} {'sglang':12} {theirs['output_throughput']:12.1f} {theirs['median_ttft_ms']:12.2f} "
            f"{theirs['median_tpot_ms']:12.3f} {theirs['median_e2e_latency_ms']:11.1f}"
        )
        assert theirs["completed"] == LEVELS[level]


def _bench_serving(sglang_perf, port: int, model: str, level: int, requests: int, folder: Path) -> dict:
    python = sglang_perf.session.suite.server("default").python
    result = folder / f"bench-{level}.jsonl"
    command = [python, "-m", "sglang.bench_serving", "--backend", "sglang", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dataset-name", "random-ids", "--tokenize-prompt", "--random-input-len", "128"]
    command += ["--random-output-len", "128", "--random-range-ratio", "1.0", "--num-prompts", str(requests)]
    command += ["--max-concurrency", str(level), "--flush-cache", "--seed", str(level), "--model", model]
    command += ["--tokenizer", model, "--output-file", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict = json.loads(result.read_text().splitlines()[-1])
    return found
