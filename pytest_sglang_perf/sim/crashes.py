"""What a dying sglang prints: the exception of one rank, in the words that its classifier-to-be must know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "PHASE_OF", "describe"]

_SITE = "/usr/lib/python3/dist-packages"

#: In which phase of the boot a crash that an effect names happens.
PHASE_OF = {"piecewise_fullgraph": "graphs", "trtllm_sm120": "autotune"}


def describe(kind: str, *, rank: int = 0, free_gb: float = 0.5, total_gb: float = 94.97) -> str:
    """The text after ``Scheduler hit an exception:``, traceback included.

    Raises:
        KeyError: there is no crash of that kind.
    """
    frames, error = KINDS[kind](rank, free_gb, total_gb)
    trace = "".join(f'  File "{_SITE}/{path}", line {line}, in {name}\n' for path, line, name in frames)
    return f"Traceback (most recent call last):\n{trace}{error}\n"


_Frames = list[tuple[str, int, str]]
_BOOT: _Frames = [
    ("sglang/srt/managers/scheduler.py", 3126, "run_scheduler_process"),
    ("sglang/srt/managers/scheduler.py", 368, "__init__"),
    ("sglang/srt/managers/tp_worker.py", 247, "__init__"),
    ("sglang/srt/model_executor/model_runner.py", 412, "__init__"),
]
_RUN: _Frames = [
    ("sglang/srt/managers/scheduler.py", 3171, "run_scheduler_process"),
    ("sglang/srt/managers/scheduler.py", 1204, "event_loop_overlap"),
    ("sglang/srt/managers/scheduler.py", 2298, "run_batch"),
    ("sglang/srt/model_executor/model_runner.py", 2711, "forward"),
]


def _piecewise(rank: int, free_gb: float, total_gb: float) -> tuple[_Frames, str]:
    del rank, free_gb, total_gb
    frames = [
        *_BOOT,
        ("sglang/srt/model_executor/piecewise_cuda_graph_runner.py", 322, "warmup_torch_compile"),
        ("torch/_dynamo/eval_frame.py", 841, "compile_wrapper"),
        ("sglang/srt/layers/quantization/modelopt_quant.py", 1466, "apply"),
        ("flashinfer/fp4_quantization.py", 707, "fp4_quantize"),
    ]
    return frames, (
        "torch._dynamo.exc.Unsupported: Attempted to trace fp4_quantize under torch.compile(fullgraph=True)\n"
        "  Explanation: the function is built just in time and is no registered custom operator; "
        "it has no fake tensor implementation, and fullgraph=True forbids a graph break.\n"
        "  Hint: register fp4_quantize with torch.library.custom_op and a fake implementation."
    )


def _trtllm(rank: int, free_gb: float, total_gb: float) -> tuple[_Frames, str]:
    del rank, free_gb, total_gb
    frames = [
        *_BOOT,
        ("sglang/srt/model_executor/model_runner.py", 2101, "_flashinfer_autotune"),
        ("sglang/srt/layers/quantization/modelopt_quant.py", 1733, "apply"),
        ("flashinfer/fused_moe/core.py", 2052, "trtllm_fp4_block_scale_moe"),
    ]
    return frames, (
        "RuntimeError: trtllm_fp4_block_scale_moe: Unsupported architecture SM120; "
        "flashinfer_trtllm MoE kernels are built for SM100 and SM103"
    )


def _oom(rank: int, free_gb: float, total_gb: float) -> tuple[_Frames, str]:
    frames = [
        *_RUN,
        ("sglang/srt/models/deepseek_v2.py", 803, "forward_normal"),
        ("sglang/srt/layers/moe/fused_moe_triton/layer.py", 1014, "forward"),
        ("sglang/srt/layers/quantization/modelopt_quant.py", 1733, "apply"),
    ]
    return frames, (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. GPU {rank} has a total "
        f"capacity of {total_gb:.2f} GiB of which {free_gb * 1024 * 0.4:.2f} MiB is free. Including "
        f"non-PyTorch memory, this process has {total_gb - free_gb * 0.4:.2f} GiB memory in use."
    )


def _illegal(rank: int, free_gb: float, total_gb: float) -> tuple[_Frames, str]:
    del rank, free_gb, total_gb
    return _RUN, (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
        "might be incorrect."
    )


def _ordered(rank: int, free_gb: float, total_gb: float) -> tuple[_Frames, str]:
    del rank, free_gb, total_gb
    return _BOOT, "RuntimeError: a fault was ordered for this phase (SGLANG_SIM_FAIL)"


KINDS: dict[str, Callable[[int, float, float], tuple[_Frames, str]]] = {
    "piecewise_fullgraph": _piecewise,
    "trtllm_sm120": _trtllm,
    "cuda_oom": _oom,
    "illegal_memory": _illegal,
    "ordered": _ordered,
}
