"""A program that behaves like ``python -m sglang.launch_server`` on a simulated machine.

SGLANG_SIM_PROFILE=tiny python -m pytest_sglang_perf.sim.server --model-path m --port 31000
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from . import crashes
from .api import Api
from .boot import PHASES, Boot, BootCrash
from .clock import SimClock
from .faults import parse_faults
from .flags import ServerArgs, parse_flags
from .gpus import GpuFile, PowerMeter
from .http import Connection
from .log import Log
from .noise import SpeedNoise, boot_seed
from .performance import resolve
from .processes import Child, Children
from .profiles import load_profile
from .scheduler import Limits, Scheduler
from .sequence import TokenPool
from .settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .faults import Faults
    from .profiles import Profile
    from .settings import Settings

__all__ = ["main"]

# Simulated seconds, as observed on sglang: its watchdog's period, the pause before crash diagnostics
# (0.5.23), how long a dead detokenizer goes unnoticed, and how long a stop drains.
_WATCHDOG_S = 1.0
_DIAGNOSTICS_S = 5.0
_DETOKENIZER_S = 60.0
_DRAIN_S = 5.0
_WARMUP_POLLS = 120
_READING_S = 1.0
_NEVER_REAL_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; returns its exit status, unless it kills itself as sglang does."""
    words = sys.argv[1:] if argv is None else list(argv)
    settings = read_settings()
    profile = load_profile(settings.profile)
    faults = parse_faults(settings.fail, PHASES)
    version = settings.version or profile.version
    clock = SimClock(settings.time_scale or profile.time_scale)
    _entry_warning()
    if faults.hang == "imports":
        time.sleep(_NEVER_REAL_S)
    # sglang's imports take seconds, before it even looks at its flags.
    time.sleep(clock.real(profile.boot.imports_s))
    args = _resolve_args(parse_flags(words, version), profile)
    server = _Server(settings, profile, faults, args, clock)
    try:
        return _run(server)
    except KeyboardInterrupt:
        server.log.raw("Traceback (most recent call last):\nKeyboardInterrupt\n")
        server.cleanup()
        return 1


def _entry_warning() -> None:
    sys.stderr.write(
        "/usr/lib/python3/dist-packages/sglang/launch_server.py:51: UserWarning: "
        "'python -m sglang.launch_server' is still supported, "
        "but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]\n"
        "  warnings.warn(\n"
    )
    sys.stderr.flush()


def _resolve_args(args: ServerArgs, profile: Profile) -> ServerArgs:
    """Fill in what sglang decides itself when it was not told."""
    fields = args.fields
    if fields.get("chunked_prefill_size") is None:
        fields["chunked_prefill_size"] = profile.chunked_prefill_size
    if fields.get("max_prefill_tokens") in {None, 16384}:
        fields["max_prefill_tokens"] = profile.max_prefill_tokens
    if fields.get("random_seed") is None:
        fields["random_seed"] = int.from_bytes(os.urandom(4), "big") >> 2
    return args


def _run(server: _Server) -> int:
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    with contextlib.closing(loop):
        return loop.run_until_complete(server.run(loop))


class _Server:
    """One simulated server, from its arguments to its end."""

    def __init__(self, settings: Settings, profile: Profile, faults: Faults, args: ServerArgs, clock: SimClock) -> None:
        self._settings = settings
        self._profile = profile
        self._faults = faults
        self._args = args
        self._clock = clock
        self._old = args.version == "0.5.10"
        self.log = Log(args)
        self._performance = resolve(profile, args, os.environ)
        if faults.oom_under_load is not None:
            self._performance = _with_oom(self._performance, faults.oom_under_load)
        self._limits = Limits(
            running=min(int(args["max_running_requests"] or profile.max_running_requests), 4096),
            tokens=int(args["max_total_tokens"] or profile.model.max_total_tokens),
            chunk=int(args["chunked_prefill_size"]),
            prefill=int(args["max_prefill_tokens"]),
            prefill_requests=int(args["prefill_max_requests"] or profile.prefill_max_requests),
            decode_log=int(args["decode_log_interval"]),
        )
        config = {"argv": [word for word in args.argv if word != str(args["port"])], "profile": profile.name}
        self._seed = boot_seed(settings.seed, settings.state, config)
        self._meter = PowerMeter(clock, self._performance)
        first = int(args["base_gpu_id"] or 0)
        ranks = int(args["tp_size"] or 1)
        if first + ranks > profile.gpu.count:
            raise SystemExit(f"RuntimeError: {ranks} GPUs from {first} on, but the node has {profile.gpu.count}")
        self._gpus = list(range(first, first + ranks))
        self._gpu_file = GpuFile(settings.state, self._gpus)
        self._children = Children(settings.state)
        self._connections: set[Connection] = set()
        self._serving = False
        self._ending = False
        self._ended: asyncio.Future[int]
        self._loop: asyncio.AbstractEventLoop
        self._api: Api
        self._scheduler: Scheduler
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, loop: asyncio.AbstractEventLoop) -> int:
        self._loop = loop
        self._ended = loop.create_future()
        self._dump_args()
        self._start_children()
        loop.add_signal_handler(signal.SIGQUIT, self._sigquit)
        self._spawn(self._publish_readings())
        self._spawn(self._serve())
        status = await self._ended
        self.cleanup()
        return status

    def cleanup(self) -> None:
        """Leave nothing behind. Idempotent."""
        self._children.kill()
        self._gpu_file.remove()
        self.log.flush()

    # -- start

    def _dump_args(self) -> None:
        self.log.shout("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        fields = self._args.fields | {"custom_sigquit_handler": None, "crash_dump_folder": None}
        if self._old:
            self.log.say(f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in fields.items())})")
        else:
            self.log.say(f"server_args={fields!r}")
        self.log.raw(
            f"SIMULATED sglang {self._args.version}: profile {self._profile.name}, "
            f"time scale {self._clock.scale:g}, seed {self._seed}\n"
        )
        self.log.say("No HuggingFace chat template found")

    def _start_children(self) -> None:
        for rank in self.log.ranks:
            tag = self.log.rank(rank).strip().replace(" ", "_")
            self._children.start(f"sglang::scheduler{'_' if tag else ''}{tag}", f"scheduler_{rank}")
        self._children.start("sglang::detokenizer", "detokenizer")
        schedulers = [c for c in self._children.alive.values() if c.name != "detokenizer"]
        self._gpu_file.pids = [child.pid for child in schedulers]
        self._gpu_file.titles = [child.title for child in schedulers]
        self._children.watch(self._loop, self._child_died)

    async def _serve(self) -> None:
        args = self._args
        boot = Boot(
            args,
            self._performance,
            self._limits,
            self.log,
            self._clock,
            self._meter,
            self._faults,
            cold=self._settings.cold,
        )
        try:
            await boot.run()
            pool = TokenPool(self._profile.model.vocab_size, constant=self._faults.garbage)
            self._make_api(boot, pool)
            await boot.phase("http", self._bind)
            await boot.phase("warmup", self._warm_up)
        except BootCrash as crash:
            self._die_in_boot(crash.text)

    def _make_api(self, boot: Boot, pool: TokenPool) -> None:
        took = boot.took
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
        api = Api(self._args, self._profile, self._limits, self._clock, self.log, self._faults, pool, facts)
        api.scheduler = self._scheduler = Scheduler(
            self._loop,
            self._clock,
            self._performance,
            SpeedNoise(self._profile.noise, self._seed, strength=self._settings.noise),
            self._limits,
            pool,
            self._meter,
            self.log,
            radix=not self._args["disable_radix_cache"],
            stream_interval=int(self._args["stream_interval"] or 1),
            doom=self._die_under_load,
        )
        api.on_request = self._request_came
        self._api = api

    async def _bind(self) -> None:
        log, host, port = self.log, str(self._args["host"]), int(self._args["port"])
        log.uvicorn(f"Started server process [{os.getpid()}]")
        log.uvicorn("Waiting for application startup.")
        await asyncio.sleep(self._clock.real(self._profile.boot.http_s))
        log.say("Using fallback token IDs for yes/no (9693/2152)")
        log.uvicorn("Application startup complete.")
        if trouble := await self._listen(host, port):
            log.uvicorn(trouble, "ERROR")
            log.uvicorn("Waiting for application shutdown.")
            await self._false_ready(host, port)
            return
        log.uvicorn(f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        self._serving = True
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

    async def _warm_up(self) -> None:
        if not self._serving:
            return
        host, port = str(self._args["host"]), int(self._args["port"])
        if not self._args["skip_server_warmup"]:
            await asyncio.sleep(self._clock.real(1.0))
            await _ask(host, port, "GET", "/model_info", self._args["api_key"])
            await asyncio.sleep(self._clock.real(max(self._profile.boot.warmup_s - 1.5, 0.0)))
            await _ask(host, port, "POST", "/generate", self._args["api_key"], _WARMUP_BODY)
            if not self._old:
                await _ask(host, port, "POST", "/freeze_gc", self._args["api_key"])
        self._api.status = "up"
        self.log.flush()
        self.log.say("The server is fired up and ready to roll!")
        if self._faults.frozen == 0:
            self._scheduler.freeze()

    async def _false_ready(self, host: str, port: int) -> None:
        """On a taken port sglang warms up against its holder, and calls itself ready when that works."""
        for _ in range(1 if self._faults.port_false_ready else _WARMUP_POLLS):
            await asyncio.sleep(self._clock.real(1.0))
            status = await _ask(host, port, "GET", "/model_info", self._args["api_key"])
            if status == 200 or self._faults.port_false_ready:
                await _ask(host, port, "POST", "/generate", self._args["api_key"], _WARMUP_BODY)
                self.log.say("The server is fired up and ready to roll!")
                self.log.uvicorn("Application shutdown complete.")
                self._kill_tree(include_parent=False)
                self._end(3)
                return
        self.log.shout("Initialization failed. warmup error: the port's holder is no sglang server\n")
        self._kill_tree(include_parent=True)

    # -- while it runs

    async def _publish_readings(self) -> None:
        period = max(self._clock.real(_READING_S), 0.02)
        while True:
            self._gpu_file.write(self._meter.read())
            self.log.flush()
            await asyncio.sleep(period)

    def _request_came(self, number: int) -> None:
        faults = self._faults
        if faults.frozen and number > faults.frozen:
            self._scheduler.freeze()
        if faults.die_under_load is not None and number == faults.die_under_load:
            os.kill(self._gpu_file.pids[0], signal.SIGKILL)

    # -- ends

    def _sigterm(self) -> None:
        self.log.shout("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        if not self._faults.slow_exit:
            self._api.status = "draining"
            self._spawn(self._drain())

    async def _drain(self) -> None:
        # sglang looks every five seconds whether requests are left.
        for _ in itertools.count():
            await asyncio.sleep(self._clock.real(_DRAIN_S))
            if self._scheduler.idle or self._scheduler.frozen:
                break
        self.log.say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        if self._old:  # that version ends a clean stop by killing itself too
            self._kill_tree(include_parent=True)
        self._kill_tree(include_parent=False)
        self.log.uvicorn("Shutting down")
        self.log.uvicorn("Waiting for application shutdown.")
        self.log.uvicorn("Application shutdown complete.")
        self.log.uvicorn(f"Finished server process [{os.getpid()}]")
        self._end(0)

    def _sigquit(self) -> None:
        if self._serving:
            self._spawn(self._crash())
        else:
            self.log.shout("Received sigquit from a child process. It usually means the child failed.")
            self._kill_tree(include_parent=True)

    def _die_in_boot(self, text: str) -> None:
        self.log.shout(f"Scheduler hit an exception: {text}", rank=0)
        self._sigquit()

    def _die_under_load(self) -> None:
        """A rank hits an exception in the middle of a batch; its peers follow."""
        kind = self._performance.dies or "cuda_oom"
        rank = min(3, self.log.ranks[-1])
        total = self._profile.gpu.memory_mib / 1024
        text = crashes.describe(kind, rank=rank, free_gb=self._performance.free_gb, total_gb=total)
        self.log.shout(f"Scheduler hit an exception: {text}", rank=rank)
        if len(self.log.ranks) > 1:
            text = crashes.describe("illegal_memory")
            self.log.shout(f"Scheduler hit an exception: {text}", rank=0)
        self.log.flush()
        self._spawn(self._crash())

    def _child_died(self, child: Child, code: int) -> None:
        if not self._ending:
            self._spawn(self._after_death(child, code))

    async def _after_death(self, child: Child, code: int) -> None:
        if not self._serving:
            self.log.raw(
                f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
                "Run `dmesg -T | grep -i oom` to check.\n"
            )
            self._kill_tree(include_parent=True)
        self._scheduler.freeze()
        if child.name == "detokenizer":  # the front end's loop is stuck in a send to it
            await asyncio.sleep(self._clock.real(_DETOKENIZER_S))
        await asyncio.sleep(self._clock.real(_WATCHDOG_S))
        self.log.shout(
            f"Subprocess {child.name} (pid={child.pid}) crashed with exit code {code}. "
            "Triggering SIGQUIT for cleanup..."
        )
        await self._crash()

    async def _crash(self) -> None:
        if self._ending:
            return
        self._ending = True
        self.log.shout("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        if not self._old:
            self.log.say(f"Sleeping {_DIAGNOSTICS_S:.0f} seconds before crash diagnostics to let GPU activity settle.")
            await asyncio.sleep(self._clock.real(_DIAGNOSTICS_S))
            self.log.say("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self._kill_tree(include_parent=True)

    def _kill_tree(self, *, include_parent: bool) -> None:
        self._ending = True
        pid = os.getpid()
        if not self._old:
            self.log.say(f"kill_process_tree called: parent_pid={pid}, include_parent={include_parent}, pid={pid}")
        self._children.kill()
        if include_parent:
            self._kill_self()

    def _kill_self(self) -> NoReturn:
        """Sglang's own way out: SIGKILL to itself."""
        self.cleanup()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def _end(self, status: int) -> None:
        self._ending = True
        if not self._ended.done():
            self._ended.set_result(status)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(error)  # a fault of this program: fail loudly


_WARMUP_BODY = b'{"text":"The capital city of France is","sampling_params":{"temperature":0,"max_new_tokens":8}}'


def _with_oom(performance: Any, running: int) -> Any:
    from dataclasses import replace

    return replace(performance, dies="cuda_oom", dies_at=running)


async def _ask(host: str, port: int, method: str, path: str, api_key: str | None, body: bytes = b"") -> int | None:
    """One HTTP request, as the warm-up makes it; the status, or None where nobody speaks HTTP."""
    where = "127.0.0.1" if host in {"0.0.0.0", ""} else "::1" if host == "::" else host  # noqa: S104
    try:
        async with asyncio.timeout(5.0):
            reader, writer = await asyncio.open_connection(where, port)
            try:
                key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
                head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{key}Connection: close\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                first = (await reader.readline()).split()
                await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return int(first[1]) if len(first) > 1 and first[1].isdigit() else None


if __name__ == "__main__":
    sys.exit(main())
