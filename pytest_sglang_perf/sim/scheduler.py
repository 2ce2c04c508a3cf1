"""Continuous batching, in simulated time.

The loop is sglang's: admit waiting requests first (a prefill pass of up to ``chunked_prefill_size`` tokens,
in which nobody decodes), then decode one token for everybody who runs, step after step. Levels, waves and
queueing follow from that; nothing is looked up per concurrency but the length of a step.

Nothing happens per token: between two events (a chunk to send, a request to finish, an arrival to admit)
steps are only counted. Deadlines are absolute, so a process that wakes late sends late but never slows down.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

from .radix import RadixCache
from .sequence import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from .noise import SpeedNoise
    from .performance import Performance
    from .seams import Clock, Limits, Meter, Observer, Timer
    from .sequence import TokenPool

__all__ = ["Scheduler"]

# sglang keeps room for this share of the tokens that running requests may still generate.
_NEW_TOKEN_RATIO = 0.7
_RESERVE_AT_MOST = 4096
# At most this share of an answer is given at once for a client's real turn-around (see ``SimClock.turnaround``).
_CREDIT_SHARE = 1 / 8


class Scheduler:
    """Serves sequences at the pace of a :class:`Performance`."""

    def __init__(
        self,
        clock: Clock,
        timer: Callable[[Callable[[], None]], Timer],
        performance: Performance,
        noise: SpeedNoise,
        limits: Limits,
        pool: TokenPool,
        meter: Meter,
        observer: Observer,
        *,
        radix: bool,
        stream_interval: int,
        doom: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._performance = performance
        self._noise = noise
        self._limits = limits
        self._pool = pool
        self._meter = meter
        self._observer = observer
        self._radix = RadixCache() if radix else None
        self._stream_interval = max(stream_interval, 1)
        self._doom = doom
        self._timer = timer(self._tick)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        self.slow_down_s = 0.0
        self.frozen = False
        self.throughput = 0.0
        self.retracted_total = 0
        # Of the running requests: tokens they hold, those of their prompts, and tokens they will have made.
        self._kv = self._prompts = self._promised = 0
        self._now = 0.0  # simulated time up to which everything has happened
        self._step = 0  # decode steps done
        self._due: dict[int, list[Sequence]] = {}
        self._due_steps: list[int] = []
        # The pass or the row of steps that is under way.
        self._prefill: list[tuple[Sequence, int]] = []
        self._until = 0.0
        self._step_s = 0.0
        self._stop_step = 0
        self._empty_until = 0.0  # when somebody last began to wait
        # When the last passes and rows of steps began, at which step, and how long a step was (0: a pass).
        self._rows: deque[tuple[float, int, float]] = deque(maxlen=128)
        self._mode: str | None = None
        self._log_step = self._log_tokens = 0
        self._log_time = self._prefill_time = 0.0

    # -- what the server calls

    @property
    def used_tokens(self) -> int:
        """Tokens in the KV cache, those that only the prefix cache holds included."""
        return self._kv + (self._radix.size if self._radix else 0)

    @property
    def now(self) -> float:
        """The simulated time at which what is being sent was ready: never later than the clock's."""
        return self._now

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting and not self._prefill

    def submit(self, sequence: Sequence) -> None:
        """Take a request; it arrives now."""
        self._advance()
        sequence.arrived = self._clock.now()
        sequence.ready = sequence.arrived + self._performance.entry_s
        if not self.waiting:
            self._empty_until = sequence.arrived
        self.waiting.append(sequence)
        if self._mode is None:
            self._now = sequence.arrived
            self._next()
        elif self._mode == "decode" and self._may_admit():
            self._interrupt(self.waiting[0].ready)
        self._arm()

    def abort(self, sequence: Sequence) -> None:
        """Forget a request whose client is gone."""
        self._advance()
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._catch_up(sequence)
            self._leave(sequence)
            if self._mode == "decode":
                self._interrupt(self._clock.now())
        sequence.state = State.DONE
        self._arm()

    def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while requests run or wait."""
        self._advance()
        if not self.idle:
            return False
        if self._radix:
            self._radix.reset()
        return True

    def freeze(self) -> None:
        """Never send another token, as if the processes were stopped."""
        self.frozen = True

    def close(self) -> None:
        """Stop for good."""
        self.frozen = True
        self._timer.close()

    # -- time

    def _tick(self) -> None:
        self._advance()
        self._arm()

    def _arm(self) -> None:
        if not self.frozen and self._mode is not None:
            self._timer.start(max(self._clock.real(self._ends() - self._clock.now()), 0.0))

    def _ends(self) -> float:
        """When what is under way ends."""
        return self._decode_ends() if self._mode == "decode" else self._until

    def _decode_ends(self) -> float:
        return self._now + (self._stop_step - self._step) * self._step_s

    def _advance(self) -> None:
        """Let everything happen that was due by now."""
        now = self._clock.now()
        while not self.frozen and self._mode is not None and (ends := self._ends()) <= now:
            self._now = ends
            if self._mode == "prefill":
                self._end_prefill()
            elif self._mode == "decode":
                self._end_decode()
            self._next()

    def _interrupt(self, at: float) -> None:
        """End the row of decode steps with the first step that ends at ``at`` or later."""
        steps = max(math.ceil((at - self._now) / self._step_s), 1)
        self._stop_step = min(self._stop_step, self._step + steps)

    def _next(self) -> None:
        """Begin what comes next at ``self._now``."""
        doomed = self._performance.dies_at
        if doomed is not None and len(self.running) >= doomed:
            self.frozen = True
            self._doom()
            return
        # One decode step between two passes. sglang has them back to back (before 0.5.23's
        # --prefill-decode-interval), which makes a closed loop of 1,024 one wave, and every turn of it a burst of
        # 1,024 answers and requests: at a time scale of 40 that would measure how fast the client reads.
        if not (self._mode == "prefill" and self.running) and self._begin_prefill():
            self._mode = "prefill"
            self._rows.append((self._now, self._step, 0.0))
        elif self.running:
            self._mode = "decode"
            self._begin_decode()
            self._rows.append((self._now, self._step, self._step_s))
        elif self.waiting:
            self._mode = "wait"
            self._until = self.waiting[0].ready
            self._meter.work(self._now, 0, 1.0)
        else:
            self._mode = None
            self._meter.work(self._now, 0, 1.0)

    # -- prefill

    def _may_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self._limits.running and self._fits(self.waiting[0], 0)

    def _fits(self, sequence: Sequence, taken: int) -> bool:
        """Whether the KV cache has room, with what running requests may still need kept free."""
        to_come = self._promised - (self._kv - self._prompts)
        reserve = min(to_come, _RESERVE_AT_MOST * len(self.running)) * _NEW_TOKEN_RATIO
        need = sequence.length + min(sequence.will_make - sequence.generated, _RESERVE_AT_MOST) * _NEW_TOKEN_RATIO
        return self._kv + taken + reserve + need <= self._limits.tokens or not (self.running or taken)

    def _begin_prefill(self) -> bool:
        room, taken = self._limits.chunk, 0
        batch: list[tuple[Sequence, int]] = []
        cached = 0
        most = min(self._limits.prefill_requests, self._limits.running - len(self.running))
        while self.waiting and room > 0 and len(batch) < most:
            sequence = self.waiting[0]
            if sequence.ready > self._now or not self._fits(sequence, taken):
                break
            self.waiting.popleft()
            if sequence.prefilled == 0:
                sequence.cached = self._radix.match(sequence.prompt) if self._radix else 0
                sequence.prefilled = sequence.cached
                cached += sequence.cached
                sequence.credit = self._turnaround(sequence)
                sequence.turnaround_s = 0.0  # counts once, also for a request that is retracted later
            todo = sequence.length - sequence.prefilled
            part = min(todo, room)
            batch.append((sequence, part))
            sequence.state = State.PREFILL
            room -= part
            taken += sequence.length
            if part < todo:
                break
        if not batch:
            return False
        tokens = sum(part for _, part in batch)
        factor = self._factor(len(self.running) + len(batch))
        self._prefill = batch
        self._until = self._now + self._performance.prefill_s(tokens) / factor + self.slow_down_s
        self._meter.work(self._now, len(self.running) + len(batch), factor)
        self._observer.prefill_batch(
            sequences=len(batch),
            tokens=tokens,
            cached=cached,
            usage=self._usage(taken),
            running=len(self.running),
            queued=len(self.waiting),
            pending=sum(len(s.prompt) for s in self.waiting) + sum(s.length - s.prefilled - p for s, p in batch),
            throughput=tokens / (self._now - self._prefill_time) if self._now > self._prefill_time else 0.0,
        )
        self._prefill_time = self._now
        return True

    def _end_prefill(self) -> None:
        batch, self._prefill = self._prefill, []
        for sequence, part in batch:
            if sequence.state is State.DONE:  # its client left meanwhile
                continue
            sequence.prefilled += part
            if sequence.prefilled < sequence.length:
                sequence.state = State.WAITING
                self.waiting.appendleft(sequence)
                continue
            sequence.state = State.RUNNING
            sequence.generated += 1 + sequence.credit
            self._kv += sequence.length
            self._prompts += len(sequence.prompt)
            self._promised += sequence.will_make
            sequence.base, sequence.join_step = sequence.generated, self._step
            self.running[sequence] = None
            if self._radix:
                self._radix.insert(sequence.prompt)
            self._emit(sequence)
        self._make_room()

    def _turnaround(self, sequence: Sequence) -> int:
        """Tokens that a request, admitted now, would have had its client turned around in simulated time.

        None if others waited all the while: then it was not the client that left a place empty. Where it had to
        wait behind others that came late too, only whole steps within its own lateness.
        """
        if not sequence.turnaround_s or self._empty_until < sequence.arrived - sequence.turnaround_s:
            return 0
        waited = bool(self._rows) and sequence.ready < self._rows[-1][0]
        at = self._now - sequence.turnaround_s if waited else sequence.ready - sequence.turnaround_s
        step = self._step
        for began, first_step, step_s in reversed(self._rows):
            if began <= at:
                step = min(first_step + (math.ceil((at - began) / step_s) if step_s else 0), step)
                break
            step = first_step
        return min(self._step - step, int((sequence.will_make - 1) * _CREDIT_SHARE))

    # -- decode

    def _begin_decode(self) -> None:
        running = len(self.running)
        factor = self._factor(running)
        self._step_s = self._performance.decode_s(running) / factor + self.slow_down_s
        while self._due_steps and self._due_steps[0] <= self._step:
            heapq.heappop(self._due_steps)
        stop = self._log_step + self._limits.decode_log
        if self._due_steps:
            stop = min(stop, self._due_steps[0])
        free = self._limits.tokens - self.used_tokens
        stop = min(stop, self._step + max(free // running, 1))
        self._stop_step = max(stop, self._step + 1)
        if self._may_admit():
            self._interrupt(max(self.waiting[0].ready, self._now))
        self._meter.work(self._now, running, factor)

    def _end_decode(self) -> None:
        steps = self._stop_step - self._step
        self._kv += steps * len(self.running)
        self._log_tokens += steps * len(self.running)
        self._step = self._stop_step
        for sequence in self._due.pop(self._step, ()):
            if sequence.state is State.RUNNING and sequence.due == self._step:
                self._catch_up(sequence)
                self._emit(sequence)
        if self._step >= self._log_step + self._limits.decode_log:
            self._log_decode()
        self._make_room()

    def _catch_up(self, sequence: Sequence) -> None:
        sequence.generated = min(sequence.base + self._step - sequence.join_step, sequence.will_make)

    def _emit(self, sequence: Sequence) -> None:
        """Hand tokens to the client, and finish the request or say when the next are due."""
        finished = sequence.generated >= sequence.will_make
        if finished:
            self._leave(sequence)
            if self._radix:
                self._radix.insert(sequence.prompt + self._pool.numbers(sequence, 0, sequence.generated))
        else:
            left = sequence.will_make - sequence.generated
            interval = self._interval()
            # Each request on its own phase: else a wave that began together would also send together.
            ahead = interval - (sequence.generated + sequence.offset) % interval
            step = sequence.due = self._step + min(ahead, left)
            due = self._due.get(step)
            if due is None:
                self._due[step] = [sequence]
                heapq.heappush(self._due_steps, step)
            else:
                due.append(sequence)
        sequence.reply.tokens(sequence, finished=finished)
        sequence.emitted = sequence.generated

    def _leave(self, sequence: Sequence) -> None:
        self._kv -= sequence.length
        self._prompts -= len(sequence.prompt)
        self._promised -= sequence.will_make
        sequence.state = State.DONE
        del self.running[sequence]

    def _interval(self) -> int:
        """Tokens a chunk: 1, 2, 4 ... so that all streams together stay near the profile's rate of chunks."""
        running = max(len(self.running), 1)
        rate = running / self._performance.decode_s(running) * self._clock.scale
        interval = self._stream_interval
        while rate / interval > self._performance.profile.chunks_per_s:
            interval *= 2
        return interval

    def _make_room(self) -> None:
        """Give up cached prefixes, then whole requests, when the KV cache overflows."""
        over = self.used_tokens + len(self.running) - self._limits.tokens
        if over <= 0:
            return
        if self._radix:
            over -= self._radix.evict(over)
        retracted = gained = 0
        for sequence in sorted(self.running, key=lambda s: self._step - s.join_step) if over > 0 else ():
            if over <= 0 or len(self.running) == 1:
                break
            self._catch_up(sequence)
            over -= sequence.length
            gained += sequence.length
            retracted += 1
            self._leave(sequence)
            sequence.state = State.WAITING
            sequence.prefilled = 0
            sequence.retractions += 1
            self.waiting.appendleft(sequence)
        if retracted:
            self.retracted_total += retracted
            self._observer.retracted(requests=retracted, tokens=gained)

    # -- figures

    def _factor(self, running: int) -> float:
        return self._noise.factor(self._now, running)

    def _usage(self, extra: int = 0) -> float:
        return min((self._kv + extra) / self._limits.tokens, 1.0)

    def _log_decode(self) -> None:
        elapsed = self._now - self._log_time
        self.throughput = self._log_tokens / elapsed if elapsed > 0 else 0.0
        self._log_step, self._log_time, self._log_tokens = self._step, self._now, 0
        self._observer.decode_batch(
            running=len(self.running),
            tokens=self._kv,
            usage=self._usage(),
            graph=self._performance.graphs,
            throughput=self.throughput,
            queued=len(self.waiting),
        )
