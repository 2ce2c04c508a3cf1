"""The recorded logs, and what happened in each."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

from pytest_sglang_perf.server.lines import LineSplitter

LOGS = Path(__file__).parents[2] / "data" / "logs"


class Recorded(NamedTuple):
    name: str
    verdict: str
    crash_class: str
    phase: str
    version: str | None
    exit_code: int | None = None
    by_us: bool = False


RECORDED = (
    # The first two were ended by SIGTERM to the whole group: all children "crashed with exit code -15".
    Recorded("cpu_0.5.10_healthy.log", "stopped", "", "stopping", "0.5.10", -9, by_us=True),
    Recorded("cpu_0.5.23_healthy.log", "stopped", "", "stopping", "0.5.23", -9, by_us=True),
    Recorded("cpu_0.5.23_sigterm_clean_exit.stderr.log", "stopped", "", "stopping", "0.5.23", 0, by_us=True),
    Recorded("cpu_0.5.23_first_on_port.stderr.log", "healthy", "", "running", "0.5.23"),
    # Standard output alone: access lines.
    Recorded("cpu_0.5.23_first_on_port.stdout.log", "healthy", "", "running", None),
    Recorded("cpu_0.5.23_scheduler_sigkill.stdout.log", "healthy", "", "running", None),
    Recorded("cpu_0.5.23_dp_rank_sigkill.stdout.log", "unknown", "", "running", None),
    Recorded("cuda_0.5.16_healthy_boot_small_model.log", "healthy", "", "ready", "0.5.16"),
    Recorded("cuda_0.5.16_healthy_under_load.log.gz", "stopped", "", "stopping", "0.5.16", -9, by_us=True),
    Recorded("cuda_0.5.16_no_cuda_graph.log.gz", "healthy", "", "running", "0.5.16"),
    Recorded("cpu_0.5.23_scheduler_sigkill.stderr.log", "crashed", "subprocess-died", "running", "0.5.23", -9),
    Recorded("cpu_0.5.23_dp_rank_sigkill.stderr.log", "crashed", "health-check-failed", "running", "0.5.23"),
    Recorded("cpu_0.5.23_port_held_by_other_program.stderr.log", "crashed", "port-in-use", "http", "0.5.23"),
    Recorded("cpu_0.5.23_second_on_port_false_ready.stderr.log", "crashed", "port-in-use", "http", "0.5.23", 3),
    Recorded("cpu_0.5.23_unknown_flag.stderr.log", "crashed", "bad-flag", "arguments", "0.5.23", 2),
    Recorded("cpu_0.5.23_no_kv_memory.stderr.log", "crashed", "kv-budget-too-small", "kv_cache", "0.5.23", -9),
    Recorded("cuda_0.5.16_kv_budget_too_small.log", "crashed", "kv-budget-too-small", "kv_cache", "0.5.16", 137),
    # Two ranks. Asked to stop; NCCL told to use a tree for an all-gather; other users on one GPU; no ninja on the PATH.
    Recorded("cuda_0.5.16_tp2_stopped.log.gz", "stopped", "", "stopping", "0.5.16", 0, by_us=True),
    Recorded("cuda_0.5.16_tp2_nccl_tree_refused.log.gz", "crashed", "nccl-failure", "cuda_graphs", "0.5.16", -9),
    Recorded("cuda_0.5.16_tp2_memory_unbalanced.log.gz", "crashed", "gpu-occupied", "distributed", "0.5.16", -9),
    Recorded("cuda_0.5.16_no_ninja.log.gz", "crashed", "jit-build-failed", "cuda_graphs", "0.5.16", -9),
    *(
        Recorded(f"cpu_0.5.23_{name}.log.gz", *rest)
        for name, *rest in (
            # Requests whose texts were "CUDA out of memory" and the like, logged in full; times in milliseconds;
            # a soft watchdog that complains.
            ("ms_and_echo", "stopped", "", "stopping", "0.5.23", 0, True),
            ("kv_full", "stopped", "", "stopping", "0.5.23"),
            ("bad_requests", "crashed", "token-id-out-of-range", "ready", "0.5.23", -9),
            ("group_sigint", "stopped", "", "stopping", "0.5.23", -9, True),
            ("sigint_while_loading", "stopped", "", "imports", "0.5.23", 1, True),
            ("missing_model_folder", "crashed", "model-not-found", "arguments", "0.5.20 or newer", 1),
            ("missing_model_repo", "crashed", "model-not-found", "arguments", "0.5.20 or newer", 1),
            ("broken_config", "crashed", "model-config-invalid", "arguments", "0.5.20 or newer", 1),
            ("context_too_long", "crashed", "context-too-long", "arguments", "0.5.20 or newer", 1),
            ("no_weights", "crashed", "model-not-found", "weights", "0.5.23", -9),
            ("no_package", "crashed", "package-missing", "weights", "0.5.23", -9),
            ("corrupt_weights", "crashed", "weights-corrupt", "weights", "0.5.23", -9),
            ("quant_unsupported", "crashed", "quantization-unsupported", "weights", "0.5.23", -9),
            ("detokenizer_sigkill", "crashed", "subprocess-died", "running", "0.5.23", -9),
            ("scheduler_sigabrt", "crashed", "native-crash", "running", "0.5.23", -9),
            ("scheduler_sigsegv", "crashed", "native-crash", "running", "0.5.23", -9),
            ("scheduler_sigstop", "crashed", "health-check-failed", "running", "0.5.23"),
            ("port_taken_by_listener", "crashed", "port-in-use", "http", "0.5.23"),
            ("scheduler_killed_while_loading", "crashed", "killed", "distributed", "0.5.23", 1),
        )
    ),
)
HEALTHY = tuple(case for case in RECORDED if case.verdict != "crashed")


def lines_of(name: str) -> list[tuple[int, str]]:
    path = LOGS / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    splitter = LineSplitter()
    return [*splitter.feed(data), *splitter.close()]
