"""The one table of lines that tell a boot phase, over the dialects 0.5.6 to 0.5.23.

A row is (phase, edge, releases, pattern). Patterns match at the beginning of the message. Edges: ``start`` and
``end`` of a phase, ``sign`` a line that belongs to a phase and may be its first sign.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["MARKS", "PHASES", "PROGRESS", "Mark", "find_mark"]

PHASES = (
    "spawn",  # our process exists and has said nothing
    "imports",  # Python imports, of the parent and again of every rank
    "arguments",  # flags resolved and printed
    "distributed",  # process groups
    "weights",
    "kv_cache",
    "jit",  # kernels compiled or tuned: silent for minutes
    "cuda_graphs",
    "capacity",  # tokens and requests that fit were printed
    "http",
    "warmup",
    "ready",
    "running",
    "stopping",
)


class Mark(NamedTuple):
    phase: str
    edge: str
    releases: str
    pattern: str


MARKS = (
    Mark("arguments", "start", "0.5.6-", r"usage: \S"),
    Mark("arguments", "end", "0.5.6-", r"server_args=(?:ServerArgs\(|\{)"),
    Mark("distributed", "start", "0.5.6-0.5.16", r"Init torch distributed begin\."),
    Mark("distributed", "end", "0.5.6-0.5.16", r"Init torch distributed ends\."),
    Mark("distributed", "start", "0.5.23", r"Init parallel begin\."),
    Mark("distributed", "end", "0.5.23", r"Init parallel ends\.|Memory baseline taken\."),
    Mark("weights", "start", "0.5.6-", r"Load weight begin\."),
    Mark("weights", "end", "0.5.6-", r"Load weight end\."),
    Mark(
        "kv_cache",
        "sign",
        "0.5.6-",
        r"KV Cache is allocated\.|Mamba Cache is allocated\.|Using KV cache dtype",
    ),
    Mark("kv_cache", "end", "0.5.6-", r"Memory pool end\."),
    Mark("jit", "start", "0.5.6-", r"Entering DeepGEMM JIT Pre-Compile session|Try DeepGEMM JIT Compiling"),
    Mark("jit", "start", "0.5.10-", r"Running FlashInfer autotune|\[Autotuner\]: Autotuning process starts"),
    Mark("jit", "end", "0.5.10-", r"FlashInfer autotune completed|\[Autotuner\]: Autotuning process ends"),
    Mark("cuda_graphs", "start", "0.5.6-0.5.10", r"Capture (?:\w+ )*cuda graph begin\."),
    Mark("cuda_graphs", "end", "0.5.6-0.5.10", r"Capture (?:\w+ )*cuda graph end\."),
    Mark("cuda_graphs", "start", "0.5.10-", r"Capture (?:\w+ )*CUDA graph begin\."),
    Mark("cuda_graphs", "end", "0.5.10-", r"Capture (?:\w+ )*CUDA graph end\."),
    Mark("cuda_graphs", "sign", "0.5.6-", r"Capture cuda graph (?:bs|num tokens) \["),
    Mark("capacity", "start", "0.5.6-", r"max_total_num_tokens=\d+, "),
    Mark("http", "start", "0.5.6-", r"Started server process \[|Starting granian|Engine startup timings"),
    Mark("warmup", "start", "0.5.6-", r"Uvicorn running on |Listening at: "),
    Mark("ready", "start", "0.5.6-", r"The server is fired up and ready to roll!"),
    Mark("stopping", "start", "0.5.6-", r"SIGTERM received|Gracefully exiting|Shutting down$"),
)

PROGRESS = (
    (
        "weights",
        re.compile(r"(Loading (?:\w+ )*checkpoint shards|Multi-thread loading shards|Loading .*?shards):"),
    ),
    (
        "cuda_graphs",
        re.compile(r"(Captur\w+ (?:\w+ )*?(?:batches|num tokens|\w+)) \(|(Compiling num tokens)"),
    ),
    ("jit", re.compile(r"(DeepGEMM warmup|\[?Autotun\w+|DeepGEMM JIT\w*)")),
)

_ANY = re.compile("|".join(f"(?P<m{index}>{mark.pattern})" for index, mark in enumerate(MARKS)))


def find_mark(message: str) -> Mark | None:
    """The row that this message fits, if any."""
    found = _ANY.match(message)
    if found is None or found.lastgroup is None:
        return None
    return MARKS[int(found.lastgroup[1:])]
