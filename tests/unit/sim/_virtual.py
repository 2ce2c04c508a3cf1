"""The scheduler in virtual time: no process, no clock, no noise of this machine. A closed loop is exact."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from types import SimpleNamespace

from pytest_sglang_perf.sim.flags import parse_flags
from pytest_sglang_perf.sim.noise import SpeedNoise
from pytest_sglang_perf.sim.performance import resolve
from pytest_sglang_perf.sim.profiles import load_profile
from pytest_sglang_perf.sim.scheduler import Scheduler
from pytest_sglang_perf.sim.seams import Limits
from pytest_sglang_perf.sim.sequence import Sequence, TokenPool


class World:
    """A clock that only moves when told, and a scheduler on it."""

    def __init__(self, *flags, profile="rtx-pro-6000-x8", env=None, noise=0.0, seed=1, scale=None, **limits):
        self.profile = load_profile(profile)
        self.args = parse_flags(["--model-path", "m", *flags], self.profile.version)
        self.performance = resolve(self.profile, self.args, env or {})
        self.scale = scale or self.profile.time_scale
        self.time = 0.0
        self.joules = 0.0
        self.watts = 0.0
        self.since = 0.0
        self.batches = []
        self.doomed_at = None
        self._timer = None
        self._calls = []
        self._order = itertools.count()
        self._callback = lambda: None
        chosen = {
            "running": self.args["max_running_requests"] or self.profile.max_running_requests,
            "tokens": self.profile.model.max_total_tokens,
            "chunk": self.profile.chunked_prefill_size,
            "prefill": self.profile.max_prefill_tokens,
            "prefill_requests": self.profile.prefill_max_requests,
            "decode_log": 40,
        } | limits
        self.pool = TokenPool(self.profile.model.vocab_size)
        self.scheduler = Scheduler(
            self,
            self._make_timer,
            self.performance,
            SpeedNoise(self.profile.noise, seed, strength=noise),
            Limits(**chosen),
            self.pool,
            self,
            self,
            radix=not self.args["disable_radix_cache"],
            stream_interval=1,
            doom=self._doom,
        )

    # clock and timer

    def now(self):
        return self.time

    def real(self, seconds):
        return seconds / self.scale

    def _make_timer(self, callback):
        self._callback = callback
        return SimpleNamespace(start=self._start, close=lambda: None)

    def _start(self, delay):
        self._timer = self.time + delay * self.scale

    def at(self, when, call):
        heapq.heappush(self._calls, (when, next(self._order), call))

    def run(self, until=float("inf"), stop=lambda: False):
        """Let time pass until nothing is left to happen, or ``until``, or ``stop()``."""
        while not stop():
            call_at = self._calls[0][0] if self._calls else float("inf")
            timer = self._timer if self._timer is not None else float("inf")
            when = min(call_at, timer)
            if when == float("inf") or when > until:
                if until != float("inf"):
                    self.time = max(self.time, until)
                return
            self.time = max(self.time, when)
            if timer <= call_at:
                self._timer = None
                self._callback()
            else:
                heapq.heappop(self._calls)[2]()

    def energy(self):
        """Joules of one GPU so far."""
        self.joules += max(self.time - self.since, 0.0) * self.watts
        self.since = max(self.time, self.since)
        return self.joules

    # meter and observer

    def work(self, now, requests, factor):
        del now
        self.energy()
        self.watts = self.performance.watts(requests, factor)

    def prefill_batch(self, **facts):
        self.batches.append(("prefill", self.time, facts))

    def decode_batch(self, **facts):
        self.batches.append(("decode", self.time, facts))

    def retracted(self, **facts):
        self.batches.append(("retracted", self.time, facts))

    def _doom(self):
        self.doomed_at = self.time


class Client:
    """Keeps ``concurrency`` requests in flight. As their reply it notes when tokens came, as (time, tokens)."""

    def __init__(self, world, concurrency, *, prompt=128, output=128, lag_s=0.0, honest=False, seed=0):
        self.world = world
        self.prompt, self.output = prompt, output
        self.lag_s, self.honest = lag_s, honest
        self.random = random.Random(seed)
        self.chunks, self.done, self.first = [], [], []
        for _ in range(concurrency):
            world.at(world.time, lambda: self.send(0.0))

    def send(self, lag_s):
        prompt = tuple(self.random.randrange(1000, 30000) for _ in range(self.prompt))
        sequence = Sequence("r", prompt, self.output, {"type": "length", "length": self.output}, self)
        sequence.turnaround_s = lag_s if self.honest else 0.0
        self.world.scheduler.submit(sequence)

    def tokens(self, sequence, *, finished):
        now = self.world.scheduler.now
        if sequence.emitted == 0:
            self.first.append((now, now - sequence.arrived))
        self.chunks.append((now, sequence.generated - sequence.emitted))
        if finished:
            self.done.append(now)
            self.world.at(now + self.lag_s, lambda: self.send(self.lag_s))

    def failed(self, sequence, message, code):
        raise AssertionError((sequence, message, code))


def closed_loop(world, concurrency, *, waves=2, **options):
    """Throughput (tokens per second), watts and median TTFT over whole waves after the first."""
    client = Client(world, concurrency, **options)

    def finished(count):
        return lambda: len(client.done) >= count or world.doomed_at is not None

    world.run(stop=finished(concurrency))
    begin, joules = world.time, world.energy()
    world.run(stop=finished((1 + waves) * concurrency))
    span = max(world.time - begin, 1e-9)  # a world that was doomed in its first wave measured nothing
    ttft = [value for when, value in client.first if begin < when <= world.time]
    return SimpleNamespace(
        tokens_per_s=sum(n for when, n in client.chunks if begin < when <= world.time) / span,
        watts=(world.energy() - joules) / span,
        ttft=statistics.median(ttft) if ttft else None,
        chunks_per_s=sum(1 for when, _ in client.chunks if begin < when <= world.time) / span * world.scale,
        client=client,
    )
