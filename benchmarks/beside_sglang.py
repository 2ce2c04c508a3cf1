"""The load engine's figures beside a real sglang's own and beside ``sglang.benchmark.serving``, in turns on one server.

    scripts/bench beside_sglang [--sglang-python PYTHON] [--url URL --model FOLDER]

A tiny model with random weights on the CPU (``scripts/real-sglang`` installs sglang), every token of which is a word:
sglang's benchmark waits for text, and so its time to first token can be compared. The server has one core, the client
of the moment the other; both clients take turns, so that the machine's moods fall on both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._stage import pinned
from pytest_sglang_perf.metrics import from_records, from_sglang_bench

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-perf/sglang-0.5.23/bin/python"
HISTOGRAMS = {"ttft": "time_to_first_token_seconds", "e2e": "e2e_request_latency_seconds"}
SERVER = "--device cpu --model-impl transformers --load-format dummy --attention-backend torch_native --dtype float32"
SERVER += " --sampling-backend pytorch --mem-fraction-static 0.3 --max-total-tokens 16384 --enable-metrics"


def words_model(python, folder):
    program = ROOT / "tests" / "real_sglang" / "tiny_model.py"
    subprocess.run([python, str(program), str(folder), "words"], check=True, timeout=120)
    return folder


def answers(url):
    try:
        with urllib.request.urlopen(url + "/ready", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@contextmanager
def server(python, model, port, log):
    argv = [python, "-m", "sglang.launch_server", "--model-path", model, *SERVER.split(), "--port", port]
    with log.open("w") as file:
        process = subprocess.Popen(pinned(1, argv), stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"})
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while not answers(url):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(log.read_text()[-2000:])
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def server_says(url):
    """Sums and counts of the server's histograms, and its token counter."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()

    def total(name):
        found = re.findall(rf"^sglang:{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    said = {"tokens": total("generation_tokens_total")}
    for key, name in HISTOGRAMS.items():
        said |= {f"{key}_sum": total(name + "_sum"), f"{key}_count": total(name + "_count")}
    return said


def run(url, model, options, folder, *, tool):
    """One trial: figures by the client, by the server's answers to the same requests, and by its histograms."""
    records = folder / "records.jsonl"
    order = {
        "url": url,
        "arrival": {"kind": "closed", "concurrency": options.concurrency},
        "input": options.tokens,
        "output": options.tokens,
        "requests": options.rounds * options.concurrency,
        "records_path": str(records),
        "limits": {"max_constant_share": 1, "lag_p50_ms": 1e4, "lag_p99_ms": 1e4, "cpu_share": 9},
        "model": str(model),
    }
    if tool:
        order |= {"tool": "sglang-bench", "tool_python": str(options.sglang_python)}
    before = server_says(url)
    argv = pinned(0, [sys.executable, "-m", "pytest_sglang_perf.agent", "load"])
    done = subprocess.run(argv, input=json.dumps(order) + "\n", capture_output=True, text=True, check=True, cwd=ROOT)
    after = server_says(url)
    result = json.loads(done.stdout.splitlines()[-1])["result"]
    said = {key: after[key] - before[key] for key in after}
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    figures = {f"server_{key}_ms": 1e3 * said[f"{key}_sum"] / said[f"{key}_count"] for key in HISTOGRAMS}
    figures["tokens_by_records"] = sum(row["output_tokens"] or 0 for row in rows)
    figures["tokens_by_server"] = said["tokens"]
    values: Any = from_sglang_bench(result["tool"]) if tool else from_records(rows, result["window"])
    for name in ("ttft_mean", "ttft_p50", "tpot_mean", "e2e_mean"):
        figures[name + "_ms"] = 1e3 * values[name]
    figures["output_throughput"] = values["output_throughput"]
    if not tool:
        window = result["window"]
        ok = [r for r in rows if r["status"] == "ok" and window["start_ns"] < r["end_ns"] <= window["end_ns"]]
        e2e, ttft = ([r["server"][key] for r in ok] for key in ("e2e_s", "ttft_s"))
        figures["meta_ttft_ms"], figures["meta_e2e_ms"] = 1e3 * statistics.fmean(ttft), 1e3 * statistics.fmean(e2e)
        gaps = [(whole - first) / (r["output_tokens"] - 1) for whole, first, r in zip(e2e, ttft, ok, strict=True)]
        figures["meta_tpot_ms"] = 1e3 * statistics.fmean(gaps)
    return figures


def main(argv=None):
    parser = argparse.ArgumentParser(prog="scripts/bench beside_sglang", description=__doc__.splitlines()[0])
    parser.add_argument("--sglang-python", default=PYTHON, type=Path)
    parser.add_argument("--url", help="a server that runs already, instead of a boot")
    parser.add_argument("--model", help="folder of the model that it serves")
    parser.add_argument("--port", type=int, default=31873)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="in and out")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.url:
            seen = measure(options.url, options.model, options, folder)
        else:
            model = words_model(options.sglang_python, folder / "words")
            with server(options.sglang_python, model, options.port, folder / "server.log") as url:
                seen = measure(url, model, options, folder)
    if options.json:
        Path(options.json).write_text(json.dumps(seen, indent=1) + "\n")


def measure(url, model, options, folder):
    seen: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for _ in range(options.turns):
        for name, turns in seen.items():
            turns.append(run(url, model, options, folder, tool=name == "theirs"))
            print(name, {key: round(value, 1) for key, value in turns[-1].items()}, flush=True)
    print(f"\nconcurrency {options.concurrency}, {options.tokens} tokens in and out, median of {options.turns} turns")
    for name in sorted(seen["ours"][0].keys() | seen["theirs"][0].keys()):
        cells = [
            f"{statistics.median(t[name] for t in seen[who]):12.1f}" if name in seen[who][0] else " " * 12
            for who in seen
        ]
        print(f"{name:22}" + "".join(cells))
    return seen


if __name__ == "__main__":
    main()
