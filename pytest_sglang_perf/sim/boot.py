"""The phases of a boot, with sglang's lines and about its times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import crashes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .clock import SimClock
    from .faults import Faults
    from .flags import ServerArgs
    from .gpus import PowerMeter
    from .log import Log
    from .performance import Performance
    from .seams import Limits

__all__ = ["PHASES", "Boot", "BootCrash"]

PHASES = ("imports", "distributed", "weights", "kv", "autotune", "graphs", "capacity", "http", "warmup")
_FAULT_AFTER_S = 0.2
_GRAPH_SIZES = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512]


class BootCrash(Exception):
    """A rank hit an exception during the boot: ``text`` is its traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Boot:
    """Everything between the parsed arguments and a server that can bind its port."""

    def __init__(
        self,
        args: ServerArgs,
        performance: Performance,
        limits: Limits,
        log: Log,
        clock: SimClock,
        meter: PowerMeter,
        faults: Faults,
        *,
        cold: bool,
    ) -> None:
        self._args = args
        self._performance = performance
        self._profile = performance.profile
        self._limits = limits
        self._log = log
        self._clock = clock
        self._meter = meter
        self._faults = faults
        self._cold = cold
        self._old = args.version == "0.5.10"
        #: When, in simulated time, everything up to now is to have happened.
        self.due = self._profile.boot.imports_s
        #: Simulated seconds of each phase that is over, for ``startup_time``.
        self.took: dict[str, float] = {}

    async def run(self) -> None:
        """Go through the phases up to the capacity line.

        Raises:
            BootCrash: a fault, or a flag that this machine cannot bear.
        """
        # A model with fewer GPUs than the profile's has its shards read by fewer processes; times stay the
        # same.
        await self.phase("distributed", self._distributed)
        await self.phase("weights", self._weights)
        await self.phase("kv", self._kv)
        await self.phase("autotune", self._autotune)
        await self.phase("graphs", self._graphs)
        await self.phase("capacity", self._capacity)

    async def phase(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one phase, or the fault that was ordered for it."""
        began = self._clock.now()
        if name in {self._faults.hang, self._faults.crash}:
            await self._begin_only(work)
            if self._faults.hang == name:
                await asyncio.get_running_loop().create_future()
            raise BootCrash(crashes.describe("ordered"))
        await work()
        if (kind := self._performance.crash) and crashes.PHASE_OF[kind] == name:
            raise BootCrash(crashes.describe(kind))
        self.took[name] = self._clock.now() - began

    async def _begin_only(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a phase write its first lines, and no more."""
        self.due = max(self.due, self._clock.now())  # a boot that is late must not hurry through it
        task = asyncio.ensure_future(work())
        await asyncio.wait([task], timeout=self._clock.real(_FAULT_AFTER_S))
        task.cancel()

    async def sleep(self, seconds: float) -> None:
        """Let simulated time pass. Deadlines add up, so that what a phase really costs does not lengthen it."""
        self.due += seconds
        await asyncio.sleep(self._clock.real_until(self.due))

    async def _distributed(self) -> None:
        log, seconds = self._log, self._profile.boot.distributed_s
        log.every_rank("Init torch distributed begin." if self._old else "Init parallel begin.")
        await self.sleep(seconds * 0.7)
        if int(self._args["tp_size"]) > 1:
            log.say("sglang is using nccl==2.28.3", rank=0)
        if self._old:
            log.every_rank(f"Init torch distributed ends. elapsed={seconds * 0.7:.2f} s, mem usage=0.61 GB")
        else:
            log.every_rank(f"Init parallel ends. elapsed={seconds * 0.7:.2f} s")
            log.every_rank("Memory baseline taken. mem usage=0.61 GB")
        await self.sleep(seconds * 0.3)
        log.say(
            "Ignore import error when loading sglang.srt.models.midashenglm: No module named 'torchaudio'",
            rank=0,
        )

    async def _weights(self) -> None:
        log, model, total = self._log, self._profile.model, self._profile.gpu.memory_mib / 1024
        self._meter.loading(self._profile.gpu.loaded_idle_w)
        log.every_rank(f"Load weight begin. avail mem={total - 1.2:.2f} GB")
        if self._args["quantization"] == "modelopt_fp4":
            log.say("Detected nvfp4 checkpoint. Please note that the format is experimental and subject to change.")
        seconds = self._profile.boot.weights_s
        name = "Loading safetensors checkpoint shards"
        began = self._clock.now()
        for done in range(model.shards + 1):
            spent = self._clock.now() - began
            rate = f"{done / spent:5.2f}it/s" if done and spent > 0 else "?it/s"
            left = _minutes(spent / done * (model.shards - done)) if done else "?"
            share = done / model.shards
            log.raw(f"\r{name}: {share:4.0%} Completed | {done}/{model.shards} [{_minutes(spent)}<{left}, {rate}]")
            self._meter.memory_mib = 620 + share * model.weights_gb * 1024
            await self.sleep(seconds / (model.shards + 1))
        left_gb = total - 1.2 - model.weights_gb
        log.raw("\n")
        log.every_rank(
            f"Load weight end. elapsed={seconds:.2f} s, type={model.architecture}, "
            f"avail mem={left_gb:.2f} GB, mem usage={model.weights_gb:.2f} GB."
        )

    async def _kv(self) -> None:
        model, log = self._profile.model, self._log
        log.say(f"Using KV cache dtype: {'torch.bfloat16' if self._old else 'bfloat16'}", rank=0)
        await self.sleep(self._profile.boot.kv_s)
        share = self._limits.tokens / model.max_total_tokens
        dtype = "" if self._old else "dtype: torch.bfloat16, "
        log.every_rank(
            f"KV Cache is allocated. {dtype}#tokens: {self._limits.tokens}, KV size: {model.kv_gb * share:.2f} GB"
        )
        free = self._performance.free_gb + 1.7
        log.every_rank(f"Memory pool end. avail mem={free:.2f} GB")
        self._meter.memory_mib = self._profile.gpu.memory_mib - free * 1024

    async def _autotune(self) -> None:
        if self._args["disable_flashinfer_autotune"]:
            return
        self._log.say("Running FlashInfer autotune...", rank=0)
        # With cold caches nvcc builds the kernels now; FlashInfer says nothing meanwhile.
        await self.sleep(self._profile.boot.autotune_s + (self._profile.boot.cold_s if self._cold else 0.0))
        if (self._performance.crash or "") != "trtllm_sm120":
            self._log.say("FlashInfer autotune completed.", rank=0)

    async def _graphs(self) -> None:
        log, free = self._log, self._performance.free_gb
        if self._args["enforce_piecewise_cuda_graph"]:
            log.say(f"Capture piecewise CUDA graph begin. avail mem={free + 1.7:.2f} GB", rank=0)
            await self.sleep(self._profile.boot.graphs_s * 0.4)
        if self._args["disable_cuda_graph"] or self._performance.crash == "piecewise_fullgraph":
            return
        seconds, sizes = self._profile.boot.graphs_s, _GRAPH_SIZES[::-1]
        if self._old:
            log.every_rank(
                f"Capture cuda graph begin. This can take up to several minutes. avail mem={free + 1.7:.2f} GB"
            )
            log.say(f"Capture cuda graph bs {_GRAPH_SIZES}", rank=0)
        else:
            log.every_rank(
                "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
                f"bs={_GRAPH_SIZES}, "
                f"avail mem={free + 1.7:.2f} GB"
            )
        for done, size in enumerate(sizes):
            mem = free + 1.7 - done * 0.01
            log.raw(
                f"\rCapturing batches (bs={size} avail_mem={mem:.2f} GB): {done / len(sizes):4.0%}| | "
                f"{done}/{len(sizes)} [{_minutes(seconds * done / len(sizes))}<?, ?it/s]"
            )
            await self.sleep(seconds / len(sizes))
        log.raw(f"\rCapturing batches (bs=1 avail_mem={free:.2f} GB): 100%| | {len(sizes)}/{len(sizes)}\n")
        if self._old:
            log.every_rank(
                f"Capture cuda graph end. Time elapsed: {seconds:.2f} s. mem usage=1.52 GB. avail mem={free:.2f} GB."
            )
        else:
            log.every_rank(
                f"Capture target decode CUDA graph end. bs={_GRAPH_SIZES}, elapsed={seconds:.2f} s, "
                f"mem usage=1.52 GB, avail mem={free:.2f} GB."
            )

    async def _capacity(self) -> None:
        limits, args, model = self._limits, self._args, self._profile.model
        self._meter.memory_mib = self._profile.gpu.memory_mib - self._performance.free_gb * 1024
        self._log.say(
            f"max_total_num_tokens={limits.tokens}, chunked_prefill_size={args['chunked_prefill_size']}, "
            f"max_prefill_tokens={limits.prefill}, max_running_requests={limits.running}, "
            f"context_len={args['context_length'] or model.context_len}, "
            f"available_gpu_mem={self._performance.free_gb:.2f} GB",
            rank=0,
        )
        if not self._old:
            radix = "ChunkCache" if args["disable_radix_cache"] else "UnifiedRadixCache"
            self._log.say(f"Tree cache initialized: source=default impl={radix} hybrid_swa=False", rank=0)
            self._log.say(
                f"Engine startup timings (s): load_weight={self.took['weights']:.2f}, "
                f"kv_cache_allocation={self.took['kv']:.2f}, scheduler_e2e={sum(self.took.values()):.2f}, "
                f"cuda_graph={{prefill=0.00, decode={self.took['graphs']:.2f}}}, "
                f"tokenizer_e2e={self._clock.now():.2f}"
            )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
