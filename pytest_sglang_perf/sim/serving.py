"""One simulated server, from its checked arguments to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from . import crashes
from .api import Api
from .boot import Boot, BootCrash
from .clock import Timer
from .ending import Ending
from .gpus import GpuFile, PowerMeter
from .http import Connection
from .log import Log
from .noise import Slowing, SpeedNoise, boot_seed, node_age
from .performance import resolve
from .processes import Child, Children
from .scheduler import Scheduler
from .seams import Limits
from .sequence import TokenPool
from .warmup import WarmUp

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import SimClock
    from .faults import Faults
    from .flags import ServerArgs
    from .profiles import Profile
    from .settings import Settings

__all__ = ["Server"]

# Readings cover one simulated second, but are not published more often than this (real seconds).
_READING_S = 1.0
_PUBLISH_AT_MOST_REAL_S = 0.02
_MAX_RUNNING = 4096
_WARMUP_TOKENS = 8


class Server:
    """The process behind ``python -m pytest_sglang_perf.sim.server``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        profile: Profile,
        faults: Faults,
        args: ServerArgs,
        clock: SimClock,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._profile = profile
        self._faults = faults
        self._args = args
        self._clock = clock
        self._old = args.version == "0.5.10"
        self._log = Log(args)
        self._performance = resolve(profile, args, os.environ)
        if faults.oom_under_load is not None:
            self._performance = replace(self._performance, dies="cuda_oom", dies_at=faults.oom_under_load)
        self._limits = Limits(
            running=min(int(args["max_running_requests"] or profile.max_running_requests), _MAX_RUNNING),
            tokens=int(args["max_total_tokens"] or profile.model.max_total_tokens),
            chunk=int(args["chunked_prefill_size"]),
            prefill=int(args["max_prefill_tokens"]),
            prefill_requests=int(args["prefill_max_requests"] or profile.prefill_max_requests),
            decode_log=int(args["decode_log_interval"]),
        )
        # The port differs from boot to boot and must not change what a boot draws.
        config = {"argv": [word for word in args.argv if word != str(args["port"])], "profile": profile.name}
        self._seed = boot_seed(settings.seed, settings.state, config)
        age_s = node_age(settings.state) * clock.scale - clock.now() if settings.slowing else 0.0
        self._slowing = Slowing(settings.slowing, age_s)
        self._meter = PowerMeter(clock, self._performance)
        self._gpu_file = GpuFile(settings.state, _gpus(args, profile))
        self._children = Children(settings.state)
        self._ending = Ending(loop, self._log, clock, self._children, self._gpu_file, old=self._old)
        self._connections: set[Connection] = set()
        self._up = False
        self._api: Api
        self._scheduler: Scheduler

    async def run(self) -> int:
        """Boot and serve; returns the exit status, unless the process kills itself."""
        self._dump_args()
        self._start_children()
        self._loop.add_signal_handler(signal.SIGQUIT, self._sigquit)
        self._ending.spawn(self._publish_readings())
        self._ending.spawn(self._boot())
        try:
            return await self._ending.status
        finally:
            self._ending.cleanup()

    # -- boot

    def _dump_args(self) -> None:
        log = self._log
        log.shout("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # Words that make a naive search for failures find one in every healthy boot.
        fields = self._args.fields | {"custom_sigquit_handler": None, "crash_dump_folder": None}
        if self._old:
            log.say(f"server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in fields.items())})")
        else:
            log.say(f"server_args={fields!r}")
        log.raw(
            f"SIMULATED sglang {self._args.version}: profile {self._profile.name}, "
            f"time scale {self._clock.scale:g}, seed {self._seed}\n"
        )
        log.say("No HuggingFace chat template found")

    def _start_children(self) -> None:
        for rank in self._log.ranks:
            tag = self._log.rank(rank).strip().replace(" ", "_")
            self._children.start(f"sglang::scheduler{'_' if tag else ''}{tag}", f"scheduler_{rank}")
        schedulers = list(self._children.alive.values())
        self._gpu_file.pids = [child.pid for child in schedulers]
        self._gpu_file.titles = [child.title for child in schedulers]
        self._children.start("sglang::detokenizer", "detokenizer")
        self._children.watch(self._loop, self._child_died)

    async def _boot(self) -> None:
        boot = Boot(
            self._args,
            self._performance,
            self._limits,
            self._log,
            self._clock,
            self._meter,
            self._faults,
            cold=self._settings.cold,
        )
        try:
            await boot.run()
            self._make_api(boot)
            await boot.phase("http", lambda: self._bind(boot))
            if self._up:
                await boot.phase("warmup", lambda: self._warm_up(boot.due))
        except BootCrash as crash:
            self._log.shout(f"Scheduler hit an exception: {crash.text}", rank=0)
            self._sigquit()

    def _make_api(self, boot: Boot) -> None:
        took = boot.took
        pool = TokenPool(self._profile.model.vocab_size, constant=self._faults.garbage)
        facts = {
            "version": "0.5.10.post1" if self._old else self._args.version,
            "available_gpu_mem": self._performance.free_gb,
            "startup_time": {
                "load_weight": took["weights"],
                "kv_cache_allocation": took["kv"],
                "scheduler_e2e": sum(took.values()),
                "cuda_graph": {"prefill": 0.0, "decode": took["graphs"]},
                "tokenizer_e2e": self._clock.now(),
            },
            "simulated": {
                "profile": self._profile.name,
                "time_scale": self._clock.scale,
                "seed": self._seed,
                "effects": list(self._performance.applied),
            },
        }

        def timer(callback: Callable[[], None]) -> Timer:
            return Timer(self._loop, callback)

        self._scheduler = Scheduler(
            self._clock,
            timer,
            self._performance,
            SpeedNoise(self._profile.noise, self._seed, strength=self._settings.noise, slowing=self._slowing),
            self._limits,
            pool,
            self._meter,
            self._log,
            radix=not self._args["disable_radix_cache"],
            stream_interval=int(self._args["stream_interval"] or 1),
            doom=self._rank_fails,
        )
        self._api = Api(
            self._args,
            self._profile,
            self._limits,
            self._clock,
            self._log,
            self._faults,
            pool,
            self._scheduler,
            facts,
            on_request=self._request_came,
        )

    async def _bind(self, boot: Boot) -> None:
        log, host, port = self._log, str(self._args["host"]), int(self._args["port"])
        log.uvicorn(f"Started server process [{os.getpid()}]")
        log.uvicorn("Waiting for application startup.")
        await boot.sleep(self._profile.boot.http_s)
        log.say("Using fallback token IDs for yes/no (9693/2152)")
        log.uvicorn("Application startup complete.")
        if trouble := await self._listen(host, port):
            log.uvicorn(trouble, "ERROR")
            log.uvicorn("Waiting for application shutdown.")
            await self._warm_up_somebody()
            return
        log.uvicorn(f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        self._up = True
        self._loop.add_signal_handler(signal.SIGTERM, self._sigterm)

    async def _listen(self, host: str, port: int) -> str | None:
        """Bind; what uvicorn says when that fails."""
        if self._faults.port_false_ready:
            taken = f"error while attempting to bind on address ('{host}', {port}): address already in use"
            return f"[Errno 98] {taken}"
        try:
            await self._loop.create_server(lambda: Connection(self._api, self._connections), host, port, backlog=2048)
        except OSError as error:
            return str(error)
        return None

    async def _warm_up(self, began: float) -> None:
        if not self._args["skip_server_warmup"]:
            answer_s = self._performance.entry_s + _WARMUP_TOKENS * self._performance.decode_s(1)
            await WarmUp(self._args, self._clock).own(began + self._profile.boot.warmup_s - answer_s)
        self._api.status = "up"
        self._log.flush()
        self._log.say("The server is fired up and ready to roll!")
        if self._faults.frozen == 0:
            self._scheduler.freeze()

    async def _warm_up_somebody(self) -> None:
        """The port is taken: sglang warms up against its holder, and calls itself ready when that works."""
        if self._faults.port_false_ready or await WarmUp(self._args, self._clock).somebody():
            self._log.say("The server is fired up and ready to roll!")
            self._log.uvicorn("Application shutdown complete.")
            self._ending.kill_tree(include_parent=False)
            self._ending.end(3)
        else:
            self._log.shout("Initialization failed. warmup error: the port's holder is no sglang server\n")
            self._ending.kill_tree(include_parent=True)

    # -- while it runs

    async def _publish_readings(self) -> None:
        period = max(self._clock.real(_READING_S), _PUBLISH_AT_MOST_REAL_S)
        while True:
            self._gpu_file.write(self._meter.read())
            self._log.flush()
            await asyncio.sleep(period)

    def _request_came(self, number: int) -> None:
        faults = self._faults
        if faults.frozen and number > faults.frozen:
            self._scheduler.freeze()
        if faults.die_under_load is not None and number == faults.die_under_load:
            os.kill(self._gpu_file.pids[0], signal.SIGKILL)

    # -- what ends it

    def _sigterm(self) -> None:
        self._log.shout("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        if not self._faults.slow_exit:
            self._api.status = "draining"
            self._ending.spawn(self._ending.drain(self._scheduler))

    def _sigquit(self) -> None:
        if self._up:
            self._ending.spawn(self._ending.crash())
        else:
            self._ending.crash_in_boot()

    def _rank_fails(self) -> None:
        """A rank hits an exception in the middle of a batch, and another in its wake."""
        kind = self._performance.dies or "cuda_oom"
        rank = min(3, self._log.ranks[-1])
        total_gb = self._profile.gpu.memory_mib / 1024
        text = crashes.describe(kind, rank=rank, free_gb=self._performance.free_gb, total_gb=total_gb)
        self._log.shout(f"Scheduler hit an exception: {text}", rank=rank)
        if rank > 0:
            self._log.shout(f"Scheduler hit an exception: {crashes.describe('illegal_memory')}", rank=0)
        self._sigquit()

    def _child_died(self, child: Child, code: int) -> None:
        if self._ending.begun:
            return
        if self._up:
            self._scheduler.freeze()
            self._ending.spawn(self._ending.child_died(child, code))
        else:
            self._log.raw(
                f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
                "Run `dmesg -T | grep -i oom` to check.\n"
            )
            self._ending.crash_in_boot()


def _gpus(args: ServerArgs, profile: Profile) -> list[int]:
    """The GPUs that the server takes: one a rank, from ``--base-gpu-id`` on.

    Raises:
        SystemExit: the machine has not so many.
    """
    first, ranks = int(args["base_gpu_id"] or 0), int(args["tp_size"] or 1)
    if first + ranks > profile.gpu.count:
        raise SystemExit(
            f"RuntimeError: CUDA error: invalid device ordinal ({ranks} GPUs from {first} on; "
            f"the node has {profile.gpu.count})"
        )
    return list(range(first, first + ranks))
