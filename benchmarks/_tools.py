"""Load generators themselves, as their users run them, against the stamped server.

They do not see the stamps, so how late they are is not known; what they make of a known time to first token and a known
gap between events is. Their processor time is that of whole programs, imports and tokenizers included, so none is given
for an event. Where a tool reports gaps by request only (guidellm), its p99 is over requests.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from benchmarks._stage import timed

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}  # a tokenizer is at hand; aiperf alone would not find it then


def _run(argv, report, env=None):
    """Run a tool that writes a report; what it says last is the error where there is none."""
    done, used = timed(argv, env=env)
    found = sorted(report.parent.rglob(report.name))
    if not found:
        raise RuntimeError(f"exit status {done.returncode}: {(done.stdout[-300:] + done.stderr[-500:]).strip()}")
    return found[0].read_text(), used


def _figures(ttft_p50_ms, itl_p99_ms, completed, used):
    return {"ttft_p50_ms": ttft_p50_ms, "itl_p99_ms": itl_p99_ms, "completed": completed, "process_cpu_s": used.total_s}


def sglang(url, streams, tokens, python, model, *, rust):
    """sglang's benchmark: its Python client, or the Rust one that newer versions have."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        module = "sglang.benchmark.rust_client" if rust else "sglang.benchmark.serving"
        argv = [python, "-m", module, "--backend", "sglang", "--base-url", url, "--dataset-name", "random-ids"]
        argv += ["--tokenize-prompt", "--random-input-len", 128, "--random-output-len", tokens]
        argv += ["--random-range-ratio", "1.0", "--num-prompts", streams, "--max-concurrency", streams]
        argv += ["--output-file", out, "--output-details", "--disable-tqdm", "--warmup-requests", 0]
        argv += ["--model", "stamped", "--tokenizer", model]
        text, used = _run(argv, out, OFFLINE)
    line = json.loads(text.splitlines()[-1])
    return _figures(line["median_ttft_ms"], line["p99_itl_ms"], line["completed"], used), used.others


def aiperf(url, streams, tokens, program, model):
    """NVIDIA's aiperf."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.relpath(model)  # an absolute path is taken for a repository's name
        argv = [program, "profile", "--model", "stamped", "--tokenizer", model, "--url", url, "--endpoint-type", "chat"]
        argv += ["--streaming", "--concurrency", streams, "--request-count", streams, "--isl", 128, "--osl", tokens]
        argv += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--artifact-dir", folder]
        text, used = _run([*argv, "--ui", "none"], Path(folder) / "profile_export_aiperf.json")
    report = json.loads(text)
    completed = report["request_count"]["avg"]
    itl = report["inter_chunk_latency"]["p99"]
    return _figures(report["time_to_first_token"]["p50"], itl, completed, used), used.others


def guidellm(url, streams, tokens, program, model):
    """guidellm of the vLLM project."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        argv = [program, "run", "--backend", f"kind=openai_http,target={url},model=stamped"]
        argv += ["--profile", f"kind=concurrent,streams={streams}"]
        argv += ["--constraint", f"kind=max_requests,count={streams}"]
        argv += ["--tokenizer", f"kind=huggingface_auto,model={model}"]
        argv += ["--data", f"kind=synthetic_text,prompt_tokens=128,output_tokens={tokens}"]
        argv += ["--output", f"kind=json,path={report}", "--disable-console"]
        text, used = _run(argv, report, OFFLINE)
    metrics = json.loads(text)["benchmarks"][0]["metrics"]
    ttft, itl = metrics["time_to_first_token_ms"]["successful"], metrics["inter_token_latency_ms"]["successful"]
    return _figures(ttft["percentiles"]["p50"], itl["percentiles"]["p99"], ttft["count"], used), used.others
