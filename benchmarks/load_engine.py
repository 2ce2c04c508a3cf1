"""The load engine beside other clients, on the same streams, in one run.

A stamped server written in C has one core, each client in turn the other. It says in every event when it sent it, so
lateness is known and not estimated. ``scripts/bench load_engine --help`` lists what can be left out; the table goes to
standard output, everything else to ``--json``. Each row says what share of the two cores *other* programs used
meanwhile: figures taken beside more than a few percent are noise, and ``--repeat`` keeps the quietest of several runs.

Peers: the reading loops of sglang's, vLLM's and aiperf's Python clients (``_peers.py``), and the tools themselves where
their Python is given: ``--sglang-python`` (Python and Rust client), ``--aiperf`` (its program).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks._plot import bars

HERE = Path(__file__).parent
PERIOD_MS, TTFT_MS, PAD = 50.0, 75.0, 330
STYLES = ("sglang-style aiohttp, asyncio", "vllm-style aiohttp, asyncio", "aiperf-style aiohttp, uvloop")  # of _peers
SERVER = {"pid": 0}
PRIORITY: list[str] = []
ONCE = {"kind": "burst", "period_s": 1000}
COLUMNS = {
    "lag_p50_ms": "lag p50 ms",
    "lag_p99_ms": "lag p99 ms",
    "ttft_p50_ms": "TTFT p50 ms",
    "itl_p99_ms": "ITL p99 ms",
    "cpu_us_per_event": "us/event",
    "max_rss_mib": "MiB",
    "others": "others",
}


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
    """Run pinned to the client's core; its output, processor seconds, and peak memory of it and its children."""
    before, began, wall = busy_s(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        pinned(0, argv), input=stdin, capture_output=True, text=True, check=False, env=env, cwd=cwd, timeout=300
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - wall
    cpu = after.ru_utime + after.ru_stime - began.ru_utime - began.ru_stime
    return done, cpu, (busy_s() - before - cpu) / wall


def ours(url, streams, tokens, loop, *, rounds=0, keep=None, workers=1, limits=None):
    """One round without warm-up, as the peers run it; or ``rounds`` steady ones."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        order = {
            "url": url,
            "arrival": {"kind": "closed", "concurrency": streams} if rounds else ONCE | {"size": streams},
            "input": 128,
            "output": tokens,
            "requests": streams * max(1, rounds),
            "warmup": None if rounds else 0,
            "event_loop": loop,
            "stamped": True,
            "workers": workers,
            "flush_cache": False,
            "probe_server": False,
            "records_path": str(records),
            "limits": limits or {},
        }
        argv = [sys.executable, "-m", "pytest_sglang_perf.agent", "load"]
        done, cpu, used = timed(argv, stdin=json.dumps(order) + "\n", cwd=HERE.parent)
        result = json.loads(done.stdout.splitlines()[-1])["result"]
        ok = [
            r
            for r in map(json.loads, records.read_text().splitlines())
            if r["status"] == "ok" and (rounds or r["index"] < streams)
        ]
        if keep is not None:
            keep.append(result)
    audit = result["audit"]
    gaps = [(b[0] - a[0]) / 1e6 for record in ok for a, b in zip(record["chunks"], record["chunks"][1:], strict=False)]
    window_s = (result["window"]["end_ns"] - result["window"]["start_ns"]) / 1e9
    return {
        "lag_p50_ms": audit["stamp_lag_p50_ms"],
        "lag_p99_ms": audit["stamp_lag_p99_ms"],
        "ttft_p50_ms": quantile([(r["chunks"][0][0] - r["sent_ns"]) / 1e6 for r in ok], 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "cpu_us_per_event": audit["cpu_share"] * window_s / audit["stamp_events"] * 1e6,
        "max_rss_mib": audit["max_rss_mib"],
        "loop_lag_p99_ms": audit["lag_p99_ms"],
        "cpu_share": audit["cpu_share"],
        "valid": result["valid"],
        "invalid": [item["check"] for item in result["invalid"]],
        "process_cpu_s": cpu,
    }, used


def peer(url, streams, tokens, style):
    done, _, used = timed([sys.executable, "-m", "benchmarks._peers", style, url, streams, tokens], cwd=HERE.parent)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return json.loads(done.stdout), used


def sglang_tool(url, streams, tokens, python, model, *, rust):
    """The tool itself; it does not see stamps, so lag is not known, only what it makes of TTFT and ITL."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        module = "sglang.benchmark.rust_client" if rust else "sglang.benchmark.serving"
        argv = [python, "-m", module, "--backend", "sglang", "--base-url", url, "--dataset-name", "random-ids"]
        argv += ["--tokenize-prompt", "--random-input-len", 128, "--random-output-len", tokens]
        argv += ["--random-range-ratio", "1.0", "--num-prompts", streams, "--max-concurrency", streams]
        argv += ["--output-file", out, "--output-details", "--disable-tqdm", "--model", model, "--warmup-requests", 0]
        done, cpu, used = timed(argv)
        if not out.exists():
            raise RuntimeError(done.stdout[-300:] + done.stderr[-500:])
        line = json.loads(out.read_text().splitlines()[-1])
    # cpu is the whole process, imports and tokenizer included
    return {
        "lag_p50_ms": None,
        "lag_p99_ms": None,
        "ttft_p50_ms": line["median_ttft_ms"],
        "itl_p99_ms": line["p99_itl_ms"],
        "cpu_us_per_event": cpu / max(1, line["total_output_tokens"]) * 1e6,
        "max_rss_mib": None,
        "completed": line["completed"],
    }, used


def aiperf_tool(url, streams, tokens, program, model):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.relpath(model)  # an absolute path is taken for a repository's name
        argv = [program, "profile", "--model", "stamped", "--tokenizer", model, "--url", url, "--endpoint-type", "chat"]
        argv += ["--streaming", "--concurrency", streams, "--request-count", streams, "--isl", 128, "--osl", tokens]
        argv += ["--extra-inputs", "ignore_eos:true", "--artifact-dir", folder, "--ui", "none"]
        done, cpu, used = timed(argv)
        found = sorted(Path(folder).rglob("*.json"))
        report = next((json.loads(f.read_text()) for f in found if "profile_export_aiperf" in f.name), None)
        if report is None:
            raise RuntimeError((done.stdout + done.stderr)[-800:])
    return {
        "lag_p50_ms": None,
        "lag_p99_ms": None,
        "ttft_p50_ms": report["time_to_first_token"]["p50"],
        "itl_p99_ms": report["inter_token_latency"]["p99"],
        "cpu_us_per_event": cpu / (streams * tokens) * 1e6,
        "max_rss_mib": None,
    }, used


def guidellm_tool(url, streams, tokens, program, model):
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        argv = [program, "run", "--backend", f"kind=openai_http,target={url},model=stamped"]
        argv += ["--profile", f"kind=concurrent,streams={streams}"]
        argv += ["--constraint", f"kind=max_requests,count={streams}"]
        argv += ["--tokenizer", f"kind=huggingface_auto,model={model}"]
        argv += ["--data", f"kind=synthetic_text,prompt_tokens=128,output_tokens={tokens}"]
        argv += ["--output", f"kind=json,path={report}", "--disable-console"]
        done, cpu, used = timed(argv)
        if not report.exists():
            raise RuntimeError((done.stdout + done.stderr)[-800:])
        metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    return {
        "lag_p50_ms": None,
        "lag_p99_ms": None,
        "ttft_p50_ms": metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p50"],
        "itl_p99_ms": metrics["inter_token_latency_ms"]["successful"]["percentiles"]["p99"],
        "cpu_us_per_event": cpu / (streams * tokens) * 1e6,
        "max_rss_mib": None,
    }, used


def best(run, repeat, quiet):
    """The run beside which other programs used least; ends as soon as one was quiet."""
    kept = None
    for _ in range(repeat):
        figures, used = run()
        if kept is None or used < kept[1]:
            kept = figures, used
        if kept[1] <= quiet:
            break
    return kept


def clients(options):
    found = {
        "ours, uvloop": lambda url: ours(url, options.streams, options.tokens, "uvloop"),
        "ours, standard library": lambda url: ours(url, options.streams, options.tokens, "asyncio"),
    }
    for style in STYLES:
        found[style] = partial(peer, streams=options.streams, tokens=options.tokens, style=style)
    if options.sglang_python:
        size = (options.streams, options.tokens, options.sglang_python, options.model)
        found["sglang's own Python client"] = lambda url: sglang_tool(url, *size, rust=False)
        found["sglang's own Rust client"] = lambda url: sglang_tool(url, *size, rust=True)
    if options.guidellm:
        size = (options.streams, options.tokens, options.guidellm, options.model)
        found["guidellm"] = lambda url: guidellm_tool(url, *size)
    if options.aiperf:
        found["aiperf"] = lambda url: aiperf_tool(url, options.streams, options.tokens, options.aiperf, options.model)
    return found


def compare(program, options, outcome):
    for burst in (False, True):
        pattern = "burst" if burst else "spread"
        truth = f"true TTFT {TTFT_MS:.0f} ms (median), true ITL {PERIOD_MS:.0f} ms"
        print(f"\n{options.streams} streams x {1000 / PERIOD_MS:.0f} tok/s, {pattern}; {truth}")
        print(f"{'client':34}" + "".join(f"{title:>13}" for title in COLUMNS.values()))
        for name, run in clients(options).items():
            if burst and name not in STYLES and not name.startswith("ours"):
                continue

            def once(run=run, burst=burst):
                if PRIORITY:
                    time.sleep(3)  # whoever shares this machine has waited for us
                with server(program, burst=burst) as url:
                    return run(url)

            try:
                figures, used = best(once, options.repeat, options.quiet)
            except (RuntimeError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
                print(f"{name:34}  did not run: {str(error).strip().splitlines()[-1][:90]}")
                outcome[f"{pattern}/{name}"] = {"error": str(error)[-500:]}
                continue
            figures["others"] = used
            outcome[f"{pattern}/{name}"] = figures
            cells = (figures.get(column) for column in COLUMNS)
            print(f"{name:34}" + "".join(f"{'-':>13}" if c is None else f"{c:>13.2f}" for c in cells), flush=True)


def ceiling(program, options, outcome):
    """How many streams each loop carries before the engine calls its own trial invalid."""
    print("\nhighest level before the engine says invalid (one process, one core):")
    for loop in ("uvloop", "asyncio"):
        valid = 0
        for streams in options.levels:
            with server(program, burst=False) as url:
                figures, used = ours(url, streams, options.tokens, loop, rounds=1)
            outcome[f"ceiling/{loop}/{streams}"] = figures | {"others": used}
            verdict = "valid" if figures["valid"] else "INVALID " + ", ".join(figures["invalid"])
            lag = f"stamped lag p99 {figures['lag_p99_ms']:.1f} ms, own estimate {figures['loop_lag_p99_ms']:.1f} ms"
            share = f"{100 * figures['cpu_share']:.0f} % of the core, others {used:.2f}"
            print(f"  {loop:8} {streams:6} streams: {verdict} ({lag}, {share})", flush=True)
            if not figures["valid"]:
                break
            valid = streams
        outcome[f"ceiling/{loop}"] = valid


def verdicts(program, options, outcome):
    """The audit's answers: a saturated client must be called invalid each time, a healthy one never."""
    for label, streams, loop, expected in (
        ("saturated", options.saturated, "asyncio", False),
        ("healthy", 256, "uvloop", True),
    ):
        if options.only and options.only != label:
            continue
        right = 0
        for _ in range(options.trials):
            with server(program, burst=False) as url:
                figures, _ = ours(url, streams, 40, loop, rounds=1)
            right += figures["valid"] is expected
        outcome[f"verdicts/{label}"] = [right, options.trials]
        print(f"{label} client ({streams} streams, {loop}): {right} of {options.trials} judged right", flush=True)


def memory(program, options, outcome):
    """Peak memory of a long trial against a short one, records written to disk."""
    peaks = {}
    for requests in (10_000, options.long):
        kept: list[dict] = []
        with server(program, burst=False, ttft_ms=2, spread_ms=1, period_ms=1) as url:
            ours(url, 64, 8, "uvloop", rounds=requests // 64, keep=kept, limits={"lag_p99_ms": 1e6, "lag_p50_ms": 1e6})
        peaks[requests] = kept[0]["audit"]["max_rss_mib"]
    low, high = peaks[10_000], peaks[options.long]
    each = (high - low) * 1024 / (options.long - 10_000)
    outcome["memory"] = {"peaks_mib": peaks, "kib_per_request": each}
    print(
        f"\nmemory: {low} MiB at 10,000 requests, {high} MiB at {options.long:,}: {each:.2f} KiB a request", flush=True
    )


PARTS = {"compare": compare, "ceiling": ceiling, "verdicts": verdicts, "memory": memory}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="scripts/bench load_engine", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--streams", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=1, help="at most so many runs each, the quietest counts")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of a core others may use in a quiet run")
    parser.add_argument("--realtime", action="store_true", help="SCHED_FIFO for both, where the machine is not quiet")
    parser.add_argument("--levels", type=int, nargs="*", default=[1024, 2048, 3072, 4096, 6144, 8192])
    parser.add_argument("--saturated", type=int, default=8192)
    parser.add_argument("--only", choices=("saturated", "healthy"), help="of the verdicts")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--sglang-python", help="a Python with sglang 0.5.23, for its own clients")
    parser.add_argument("--model", help="folder with a tokenizer, for tools that want one")
    parser.add_argument("--aiperf", help="the aiperf program")
    parser.add_argument("--guidellm", help="the guidellm program")
    parser.add_argument("--svg", help="draw the lag of the comparison into this file")
    parser.add_argument("--json", help="write all figures to this file")
    options = parser.parse_args(argv)
    PRIORITY.extend(["chrt", "-f", "20"] if options.realtime else [])
    outcome = {
        "realtime": options.realtime,
        "loadavg": os.getloadavg(),
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        program = build_server(Path(folder))
        for part in options.parts:
            PARTS[part](program, options, outcome)
    if options.svg and "compare" in options.parts:
        title = f"Lag p99 in ms (log scale), {options.streams} streams x 20 tok/s on one core"
        Path(options.svg).write_text(bars(outcome, "lag_p99_ms", title))
    if options.json:
        Path(options.json).write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
