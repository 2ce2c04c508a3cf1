"""``sglang-perf load``: one trial against a URL, or this machine's self-test.

Exit status: 0 a valid trial, 3 an invalid one (its figures are shown, and why they cannot be believed), 1 no figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pytest_sglang_perf.errors import MeasureError, SglangPerfError
from pytest_sglang_perf.metrics import REGISTRY, Absent, Value, from_records, from_sglang_bench, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["main"]

VALID, FAILED, INVALID = 0, 1, 3
# What a user looks at first; --json has everything.
_SHOWN = (
    "output_throughput", "request_throughput", "input_throughput", "concurrency", "ttft_mean", "ttft_p50", "ttft_p90",
    "ttft_p99", "ttft_scheduled_p50", "tpot_mean", "tpot_p50", "tpot_p99", "itl_mean", "itl_p99", "e2e_mean", "e2e_p50",
    "e2e_p99", "failed_requests", "cache_hit_rate",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Carry the command out; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    options = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        return _selftest(options, console) if options.selftest else _measure(options, console)
    except SglangPerfError as error:
        console.print(f"sglang-perf load: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return FAILED


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="of the server, for instance http://127.0.0.1:30000")
    parser.add_argument("--selftest", action="store_true", help="measure this machine with the bundled server")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="everything as JSON (no file: print)")

    load = parser.add_argument_group("load")
    load.add_argument("--concurrency", type=int, metavar="N", help="requests in flight; with --rate, at most that many")
    load.add_argument("--requests", type=int, metavar="M", help="to finish in the steady window (default: 4 rounds)")
    load.add_argument("--rate", type=float, metavar="R", help="requests a second, whatever the server does")
    load.add_argument("--arrival", choices=("constant", "poisson", "gamma"), help="pattern of --rate (poisson)")
    load.add_argument(
        "--burstiness", type=float, default=1.0, metavar="B", help="gamma shape: 1 Poisson, less is burstier"
    )
    load.add_argument("--burst", metavar="SIZE/SECONDS", help="SIZE requests together, every so many seconds")
    load.add_argument("--trace", metavar="FILE", help="replay arrival times and lengths (--requests: at most so many)")
    load.add_argument("--ramp", type=float, default=0.0, metavar="S", help="seconds to reach the level, linear")
    load.add_argument("--warmup", type=int, metavar="K", help="requests before the window (default: one round)")
    load.add_argument("--workers", type=int, metavar="W", help="processes (default: by level and cores)")

    work = parser.add_argument_group("work")
    work.add_argument(
        "--input-len",
        default="128",
        metavar="I",
        help="tokens: 128, 64:256 (uniform), normal:128,32 (mean, std; then bounds) or @FILE",
    )
    work.add_argument("--output-len", default="128", metavar="O", help="as --input-len")
    work.add_argument("--api", choices=("generate", "completions", "chat"), default="generate")
    work.add_argument("--model", help="name in OpenAI requests (default: the first that the server lists)")
    work.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the server's key")
    work.add_argument("--vocab", metavar="LOW:HIGH", help="token ids that prompts are made of (default: 100:20000)")
    work.add_argument("--shared-prefix", type=int, default=0, metavar="P", help="tokens that all prompts begin with")
    work.add_argument("--no-flush-cache", action="store_true", help="leave the server's prefix cache as it is")
    work.add_argument("--temperature", type=float, default=0.0)
    work.add_argument("--stop-at-eos", action="store_true", help="let the model end an answer early")
    work.add_argument("--seed", type=int, default=0)
    work.add_argument("--salt", default="", help="the same salt gives the same prompts (default: a new one each time)")

    limits = parser.add_argument_group("limits and output")
    limits.add_argument("--deadline", type=float, metavar="S", help="end the trial after so many seconds")
    limits.add_argument("--stall", type=float, metavar="S", help="give up a stream that is silent for so long")
    limits.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another bound of a valid trial (load-spec.md)",
    )
    limits.add_argument("--records", metavar="FILE", help="keep the raw records, JSON lines, one a request")
    limits.add_argument("--keep-bodies", action="store_true", help="records with the raw event of each chunk")
    limits.add_argument("--tool", choices=("sglang-bench",), help="let sglang's own benchmark make the load")
    limits.add_argument("--tool-python", metavar="PATH", help="the Python that sglang is installed in")
    limits.add_argument("--event-loop", choices=("auto", "asyncio", "uvloop"), default="auto")


def lengths(text: str) -> dict[str, Any]:
    """A length as written on the command line.

    Raises:
        MeasureError: it is not one.
    """
    try:
        if text.startswith("@"):
            return {"kind": "file", "path": text[1:]}
        if text.startswith("normal:"):
            mean, std, *bounds = text.removeprefix("normal:").split(",")
            edges = dict(zip(("low", "high"), map(int, bounds), strict=bool(bounds)))
            return {"kind": "normal", "mean": float(mean), "std": float(std)} | edges
        if ":" in text:
            low, high = text.split(":")
            return {"kind": "uniform", "low": int(low), "high": int(high)}
        return {"kind": "fixed", "value": int(text)}
    except ValueError:
        raise MeasureError(f"not a length: {text!r} (128, 64:256, normal:128,32 or @FILE)") from None


def _arrival(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [name for name in ("rate", "burst", "trace") if getattr(options, name)]
    if len(chosen) > 1:
        raise MeasureError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
    cap = {"max_concurrency": options.concurrency}
    if options.rate:
        return {"kind": options.arrival or "poisson", "rate": options.rate, "burstiness": options.burstiness} | cap
    if options.burst:
        size, _, period = options.burst.partition("/")
        try:
            return {"kind": "burst", "size": int(size), "period_s": float(period)} | cap
        except ValueError:
            raise MeasureError(f"not a burst: {options.burst!r} (for instance 64/2.5)") from None
    if options.trace:
        return {"kind": "trace", "path": options.trace} | cap
    if not options.concurrency:
        raise MeasureError("say --concurrency N, or --rate R, --burst SIZE/SECONDS or --trace FILE")
    return {"kind": "closed", "concurrency": options.concurrency}


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise MeasureError(f"not a limit: {text!r} (for instance lag_p99_ms=10)") from None


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def order(options: argparse.Namespace, records: str) -> dict[str, Any]:
    """The load process's order for these options.

    Raises:
        MeasureError: they do not make one.
    """
    if not options.url:
        raise MeasureError("say --url URL (or --selftest)")
    arrival = _arrival(options)
    limits = dict(map(_limit, options.limit)) | _given(deadline_s=options.deadline, stall_s=options.stall)
    spec = {
        "url": options.url,
        "api": options.api,
        "model": options.model,
        "api_key_env": options.api_key_env,
        "arrival": arrival,
        "ramp_s": options.ramp,
        "input": lengths(options.input_len),
        "output": lengths(options.output_len),
        "requests": options.requests or 4 * (arrival.get("concurrency") or arrival.get("size") or 50),
        "warmup": options.warmup,
        "shared_prefix": options.shared_prefix,
        "seed": options.seed,
        "salt": options.salt,
        "flush_cache": not options.no_flush_cache,
        "limits": limits,
        "workers": options.workers,
        "sampling": {"temperature": options.temperature, "ignore_eos": not options.stop_at_eos},
        "keep_bodies": options.keep_bodies,
        "records_path": records,
        "event_loop": options.event_loop,
        "tool": options.tool,
        "tool_python": options.tool_python,
    }
    if options.vocab:
        try:
            spec["vocab"] = [int(part) for part in options.vocab.split(":")]
        except ValueError:
            raise MeasureError(f"not a vocabulary: {options.vocab!r} (for instance 100:20000)") from None
    return spec


def _measure(options: argparse.Namespace, console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix="sglang-perf-") as folder:
        records = options.records or str(Path(folder) / "records.jsonl")
        spec = order(options, records)
        with _bar(console, int(spec["requests"])) as show:
            result = _talk(spec, lambda message: show(message["progress"]) if "progress" in message else None)["result"]
        values: dict[str, Value] = {}
        if result.get("tool"):
            values = from_sglang_bench(result.pop("tool"))
        elif result["window"]:
            values = from_records(read_records(records), result["window"])
    _report(console, result, values)
    if options.json:
        document = {"spec": spec, "result": result, "metrics": {name: _plain(value) for name, value in values.items()}}
        _write(options.json, document)
    if not values:
        return FAILED
    return VALID if result["valid"] else INVALID


def _talk(order: dict[str, Any], hear: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the load process; returns its last message.

    Raises:
        MeasureError: the order was refused, or the process died.
    """
    argv = [sys.executable, "-m", "pytest_sglang_perf.agent", "load"]
    last: dict[str, Any] = {}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                last = json.loads(line)
                hear(last)
        except KeyboardInterrupt:  # the process got it too, and still has a result
            for line in process.stdout:
                last = json.loads(line)
    if "error" in last:
        raise MeasureError(last["error"]["message"])
    if "result" not in last and "selftest" not in last:
        raise MeasureError(f"the load process ended with status {process.returncode} and without a result")
    return last


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[[dict[str, int]], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("requests", total=total, rest="")

        def show(now: dict[str, int]) -> None:
            failed = f", [red]{now['failed']} failed[/red]" if now["failed"] else ""
            rest = f"{now['running']} running{failed}, {now['tokens']} tokens"
            done = now["ok"] + now["failed"]
            progress.update(task, completed=done, total=max(total, done), rest=rest)

        yield show


def _report(console: Console, result: dict[str, Any], values: dict[str, Value]) -> None:
    if values:
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("metric")
        table.add_column("value", justify="right")
        table.add_column("unit")
        for name in _SHOWN:
            value, metric = values[name], REGISTRY[name]
            if isinstance(value, Absent):
                table.add_row(name, "-", f"[dim]{value.reason}[/dim]")
            else:
                table.add_row(name, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", metric.unit)
        console.print(table)
    counts = ", ".join(f"{number} {status}" for status, number in result["counts"].items() if number)
    console.print(f"requests in the steady window: {counts or 'none'}" if values else f"requests: {counts or 'none'}")
    for message, times in list(result["errors"].items())[:5]:
        console.print(f"[red]{times} x[/red] {message}", markup=True, highlight=False, soft_wrap=True)
    audit = result["audit"]
    if "lag_p99_ms" in audit and values:
        console.print(
            f"client: {audit['loop']}, {audit['workers']} process(es), lag p99 {audit['lag_p99_ms'] or 0:.1f} ms, "
            f"{100 * (audit['cpu_share'] or 0):.0f} % of a core, {audit['delivered_concurrency']:.1f} in flight",
            highlight=False,
            soft_wrap=True,
        )
    for item in result["invalid"]:
        label = f"[bold red]invalid[/bold red] ({item['check']})"
        console.print(f"{label}: {item['message']}", highlight=False, soft_wrap=True)


def _plain(value: Value) -> Any:
    return {"absent": value.reason} if isinstance(value, Absent) else value


def _write(target: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def _selftest(options: argparse.Namespace, console: Console) -> int:
    def hear(message: dict[str, Any]) -> None:
        level = message.get("level")
        if level:
            lag = level["lag_p99_ms"]
            console.print(
                f"{level['streams']:>6} streams: lag p99 {'-' if lag is None else format(lag, '.2f')} ms, "
                f"TTFT off by {level['ttft_p50_error_ms'] or 0:.1f} ms, {100 * (level['cpu_share'] or 0):.0f} % CPU, "
                + ("valid" if level["valid"] else "[red]invalid[/red]: " + "; ".join(level["invalid"])),
                highlight=False,
                soft_wrap=True,
            )

    levels = [options.concurrency] if options.concurrency else None
    outcome = _talk({"selftest": {"levels": levels, "event_loop": options.event_loop}}, hear)["selftest"]
    if options.json:
        _write(options.json, outcome)
    if "max_streams" not in outcome:
        return FAILED
    console.print(f"this machine can be trusted up to {outcome['max_streams']} streams ({outcome['loop']})")
    return VALID if outcome["max_streams"] else INVALID
