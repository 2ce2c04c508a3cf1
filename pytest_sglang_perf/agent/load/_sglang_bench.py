"""Another engine for the same order: sglang's own benchmark, run beside the server that it belongs to.

For those who want to check us against the tool they know. Its habits are dealt with here: lengths are fixed by
``--random-range-ratio 1.0`` (its default draws from 1 to N), the seed changes with the salt (its default sends the same
prompts every time, which the server then has cached), its exit status says nothing about failed requests, and its
output holds the server's arguments with their keys, which are dropped at once. Two habits cannot be changed: its
duration spans ramp, drain and a question to the server, and it has no clock that is common to all requests.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional

from ._spec import SpecError

if TYPE_CHECKING:
    from ._lengths import Lengths
    from ._spec import Spec

MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
BACKENDS = {"generate": "sglang", "completions": "sglang-oai", "chat": "sglang-oai-chat"}
_FIND = """
import importlib.util, sys
for module in sys.argv[1:]:
    try:
        if importlib.util.find_spec(module):
            print(module)
            break
    except ImportError:
        pass
"""
_KEPT_OUTPUT = 4000
_BLIND_SHARE = 0.01


def arguments(spec: Spec, module: str, output: str) -> List[str]:
    """What follows the tool's Python.

    Raises:
        SpecError: the tool cannot do what is ordered.
    """
    arrival = spec.arrival
    if arrival.kind not in ("closed", "poisson"):
        raise SpecError(f"arrival.kind: sglang's benchmark has closed and poisson, not {arrival.kind}")
    if arrival.kind == "closed":
        load = ["--max-concurrency", str(arrival.concurrency)]
    else:
        load = ["--request-rate", str(arrival.rate)]
        if arrival.max_concurrency is not None:
            load += ["--max-concurrency", str(arrival.max_concurrency)]
    ratio = _ratio(spec.input)
    if _ratio(spec.output) != ratio:
        raise SpecError("input, output: sglang's benchmark has one range ratio for both")
    seed = zlib.crc32(f"{spec.seed}/{spec.salt}".encode())
    words = ["-m", module, "--backend", BACKENDS[spec.api], "--base-url", spec.url, "--dataset-name", "random-ids"]
    words += ["--tokenize-prompt", "--random-input-len", str(spec.input.high)]
    words += ["--random-output-len", str(spec.output.high), "--random-range-ratio", f"{ratio:g}"]
    words += ["--num-prompts", str(spec.requests), "--warmup-requests", str(spec.warmup_requests), *load]
    words += ["--seed", str(seed), "--output-file", output, "--output-details", "--disable-tqdm"]
    words += ["--flush-cache"] if spec.flush_cache else []
    words += ["--model", spec.model] if spec.model else []
    return words


def _ratio(lengths: Lengths) -> float:
    if lengths.kind not in ("fixed", "uniform"):
        raise SpecError(f"sglang's benchmark has fixed and uniform lengths, not {lengths.kind}")
    return lengths.low / lengths.high


def run(spec: Spec, *, attach: Optional[Callable[[Callable[[str], None]], None]] = None) -> Dict[str, Any]:
    """Run the tool and return a result like that of our own engine, with the tool's line under ``tool``.

    Raises:
        SpecError: no such Python, no sglang in it, or an order that the tool cannot carry out.
    """
    python = spec.tool_python or ""
    module = _module(python)
    with tempfile.TemporaryDirectory(prefix="sglang-perf-") as folder:
        output = Path(folder) / "bench.jsonl"
        argv = [python, *arguments(spec, module, str(output))]
        ended_by = "done"
        with (Path(folder) / "log").open("w+", encoding="utf-8", errors="replace") as log:
            with subprocess.Popen(argv, stdout=log, stderr=log) as process:
                if attach is not None:
                    attach(lambda _: process.terminate())
                try:
                    status = process.wait(spec.limits.deadline_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    status, ended_by = process.wait(), "deadline"
            log.seek(0)
            said = log.read()[-_KEPT_OUTPUT:]
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    line = json.loads(lines[-1]) if lines else None
    if line is not None:
        line.pop("server_info", None)  # holds the server's keys
        line.pop("generated_texts", None)
        if spec.records_path:
            with Path(spec.records_path).open("w", encoding="utf-8") as records:
                write_records(line, records)
    return _result(spec, module, line, status, said, ended_by)


def _module(python: str) -> str:
    try:
        done = subprocess.run([python, "-c", _FIND, *MODULES], capture_output=True, text=True, timeout=120, check=False)
    except OSError as error:
        raise SpecError(f"tool_python: {python!r} does not run: {error.strerror}") from None
    found = done.stdout.split()
    if not found:
        raise SpecError(f"tool_python: {python} has no sglang with a benchmark ({' or '.join(MODULES)})")
    return found[-1]


def records(line: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """The tool's details as records whose clock starts anew with each request (``sent_ns`` is 0).

    Its gaps are given once a token and already divided by the tokens of their event; what is missing of them in
    number came with the first event. Events of several tokens therefore appear as that many evenly spaced ones. A
    request whose time to first token it gives as 0 has no times at all.
    """
    details = zip(line["ttfts"], line["itls"], line["output_lens"], line["input_lens"], line["errors"])
    for index, (ttft, itls, output_len, input_len, error) in enumerate(details):
        at = round(ttft * 1e9)
        timed = bool(output_len and ttft)
        chunks = [[at, max(1, output_len - len(itls))]] if timed else []
        for gap in itls if timed else ():
            at += round(gap * 1e9)
            chunks.append([at, chunks[-1][1] + 1])
        yield {
            "index": index,
            "scheduled_ns": 0,
            "sent_ns": 0,
            "status": "failed" if error else "ok" if output_len else "empty",
            "chunks": chunks,
            "prompt_tokens": input_len,
            "cached_tokens": None,
            "output_tokens": output_len,
            "finish": None,
            "error": error or None,
            "server": {},
            "end_ns": at,
        }


def write_records(line: Dict[str, Any], file: IO[str]) -> None:
    """Write :func:`records` as JSON lines."""
    for record in records(line):
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _result(
    spec: Spec, module: str, line: Optional[Dict[str, Any]], status: int, said: str, ended_by: str
) -> Dict[str, Any]:
    invalid: List[Dict[str, Any]] = []
    if line is None:
        ended_by = ended_by if ended_by != "done" else "all_failed"
        invalid.append(
            {"check": "tool", "value": status, "bound": 0, "message": f"{module} gave no result: {said[-800:]}"}
        )
    else:
        completed = line["completed"]
        if completed < spec.requests:  # the tool itself exits with 0
            message = f"only {completed} of {spec.requests} requests completed"
            invalid.append({"check": "completed", "value": completed, "bound": spec.requests, "message": message})
        blind = sum(1 for ttft, output_len in zip(line["ttfts"], line["output_lens"]) if output_len and not ttft)
        if blind > _BLIND_SHARE * spec.requests:
            message = (
                f"{blind} of {spec.requests} requests have no time to first token: the tool waits for text, and there "
                "was none in their first events; its own TTFT and TPOT take it for 0"
            )
            invalid.append(
                {"check": "blind", "value": blind, "bound": _BLIND_SHARE * spec.requests, "message": message}
            )
    statuses = [record["status"] for record in records(line)] if line is not None else []
    errors: Dict[str, int] = {}
    for error in line["errors"] if line is not None else ():
        if error:
            text = str(error).strip().splitlines()[-1][:300]
            errors[text] = errors.get(text, 0) + 1
    return {
        "valid": not invalid,
        "invalid": invalid,
        "window": None,
        "counts": {name: statuses.count(name) for name in ("ok", "failed", "empty", "short", "errored", "aborted")},
        "errors": errors,
        "ended_by": ended_by,
        "audit": {"loop": module, "exit_status": status},
        "cached_share": None,
        "requests": spec.requests,
        "clock": "each request's own",
        "tool": line,
    }
