"""The load engine beside other clients, on the same streams, in one run.

A stamped server written in C has one core, each client in turn the other. It says in every event when it sent it, so
lateness is known and not estimated. ``scripts/bench load_engine --help`` lists what can be left out; the table goes to
standard output, everything else to ``--json``. Each row says what share of the two cores *other* programs used
meanwhile: figures taken beside more than a few percent are noise, and ``--repeat`` keeps the quietest of several runs.

Peers: the reading loops of sglang's, vLLM's and aiperf's Python clients (``_peers.py``, dependency group ``bench``),
and the tools themselves where they are given (``_tools.py``): ``--sglang-python`` (Python and Rust client),
``--aiperf``, ``--guidellm`` (programs). Our processor time of an event is that of a second run which reads no stamps,
since only this benchmark has any. ``cost`` puts the engine beside a loop that does nothing but take a stamp of each
read: no client can cost less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import _tools
from benchmarks._plot import bars
from benchmarks._stage import HERE, PERIOD_MS, PRIORITY, TTFT_MS, build_server, quantile, server, timed

if TYPE_CHECKING:
    from collections.abc import Callable

STYLES = ("sglang-style aiohttp, asyncio", "vllm-style aiohttp, asyncio", "aiperf-style aiohttp, uvloop")  # of _peers
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


def ours(url, streams, tokens, loop, *, rounds=0, keep=None, workers=1, limits=None, stamped=True):
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
            "stamped": stamped,
            "workers": workers,
            "flush_cache": False,
            "probe_server": False,
            "records_path": str(records),
            "limits": limits or {},
        }
        argv = [sys.executable, "-m", "pytest_sglang_perf.agent", "load"]
        done, used = timed(argv, stdin=json.dumps(order) + "\n", cwd=HERE.parent)
        result = json.loads(done.stdout.splitlines()[-1])["result"]
        every = [json.loads(line) for line in records.read_text().splitlines()]
        if keep is not None:
            keep.append(result)
    ok = [r for r in every if r["status"] == "ok" and (rounds or r["index"] < streams)]
    audit, window = result["audit"], result["window"]
    gaps = [(b[0] - a[0]) / 1e6 for record in ok for a, b in zip(record["chunks"], record["chunks"][1:], strict=False)]
    events = sum(window["start_ns"] < at <= window["end_ns"] for record in every for at, _ in record["chunks"])
    return {
        "lag_p50_ms": audit.get("stamp_lag_p50_ms"),
        "lag_p99_ms": audit.get("stamp_lag_p99_ms"),
        "ttft_p50_ms": quantile([(r["chunks"][0][0] - r["sent_ns"]) / 1e6 for r in ok], 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "cpu_us_per_event": audit["cpu_share"] * (window["end_ns"] - window["start_ns"]) / 1e3 / events,
        "max_rss_mib": audit["max_rss_mib"],
        "loop_lag_p99_ms": audit["lag_p99_ms"],
        "cpu_share": audit["cpu_share"],
        "valid": result["valid"],
        "invalid": [item["check"] for item in result["invalid"]],
        "events": events,
        "process_cpu_s": used.total_s,
        "process_system_share": used.system_s / used.total_s,
    }, used.others


def ours_twice(url, streams, tokens, loop):
    """With the stamps read, for the lag; and without, as in every real trial, for the processor time of an event."""
    figures, used = ours(url, streams, tokens, loop)
    plain, others = ours(url, streams, tokens, loop, stamped=False)
    figures["cpu_us_per_event_with_stamps"] = figures["cpu_us_per_event"]
    figures["cpu_us_per_event"] = plain["cpu_us_per_event"]
    return figures, max(used, others)


def peer(url, streams, tokens, style):
    done, used = timed([sys.executable, "-m", "benchmarks._peers", style, url, streams, tokens], cwd=HERE.parent)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return json.loads(done.stdout), used.others


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
    size = (options.streams, options.tokens)
    found: dict[str, Callable] = {
        "ours, uvloop": partial(ours_twice, streams=size[0], tokens=size[1], loop="uvloop"),
        "ours, standard library": partial(ours_twice, streams=size[0], tokens=size[1], loop="asyncio"),
    }
    found |= {style: partial(peer, streams=size[0], tokens=size[1], style=style) for style in STYLES}
    tools = {
        "sglang.benchmark.serving itself": (partial(_tools.sglang, rust=False), options.sglang_python),
        "sglang's Rust client itself": (partial(_tools.sglang, rust=True), options.sglang_python),
        "aiperf itself": (_tools.aiperf, options.aiperf),
        "guidellm itself": (_tools.guidellm, options.guidellm),
    }
    for name, (tool, program) in tools.items():
        if program and options.model:
            found[name] = lambda url, tool=tool, program=program: tool(url, *size, program, options.model)
    return {name: run for name, run in found.items() if not options.clients or options.clients in name}


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
            figures["ttft_error_ms"] = abs(figures["ttft_p50_ms"] - TTFT_MS)
            outcome[f"{pattern}/{name}"] = figures
            cells = (figures.get(column) for column in COLUMNS)
            print(f"{name:34}" + "".join(f"{'-':>13}" if c is None else f"{c:>13.2f}" for c in cells), flush=True)


def cost(program, options, outcome):
    """Processor time of an event in a steady window, all that the process does included, beside a bare loop's.

    Stamps of the server are not read here, as no real trial reads any.
    """
    print("\nprocessor time an event, steady, beside a loop that only takes stamps:")
    for loop in ("uvloop", "asyncio"):
        for pattern in ("spread", "burst"):
            with server(program, burst=pattern == "burst") as url:
                bare, _ = peer(url, options.streams, options.tokens, f"bare {loop}")
            with server(program, burst=pattern == "burst") as url:
                full, others = ours(url, options.streams, options.tokens, loop, rounds=2, stamped=False)
            floor, mine = bare["cpu_us_per_event"], full["cpu_us_per_event"]
            shares = bare["system_share"], full["process_system_share"]
            outcome[f"cost/{loop}/{pattern}"] = {"bare": bare, "ours": full, "ratio": mine / floor, "others": others}
            print(
                f"  {loop:8} {pattern:7} ours {mine:5.2f} us ({100 * shares[1]:.0f} % of it in the kernel), bare loop "
                f"{floor:5.2f} us ({100 * shares[0]:.0f} %): {mine / floor:.2f} times, others {others:.2f}",
                flush=True,
            )


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
        right, reasons = 0, Counter[str]()
        for _ in range(options.trials):
            with server(program, burst=False) as url:
                figures, _ = ours(url, streams, options.verdict_tokens, loop, rounds=1)
            right += figures["valid"] is expected
            reasons.update(figures["invalid"])
        outcome[f"verdicts/{label}"] = {"right": right, "trials": options.trials, "checks": dict(reasons)}
        why = ", ".join(f"{check} {times} x" for check, times in reasons.most_common()) or "no check failed"
        print(f"{label} client ({streams} streams, {loop}): {right} of {options.trials} right ({why})", flush=True)


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


PARTS = {"compare": compare, "cost": cost, "ceiling": ceiling, "verdicts": verdicts, "memory": memory}


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
    parser.add_argument("--verdict-tokens", type=int, default=20, help="tokens of each answer in the verdicts")
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--sglang-python", help="a Python with sglang 0.5.23, for its own clients")
    parser.add_argument("--model", help="folder with a tokenizer, for tools that want one")
    parser.add_argument("--aiperf", help="the aiperf program")
    parser.add_argument("--guidellm", help="the guidellm program")
    parser.add_argument("--clients", help="only those clients of the comparison whose name contains this")
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
