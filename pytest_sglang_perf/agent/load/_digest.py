"""What happens to arrived bytes later: decoding, records, tallies. None of it between two reads of a burst.

Work is done in slices well below a millisecond whenever the event loop comes round, so that decoding 2,048 answers
that end together does not delay the first tokens of the next 2,048.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, deque
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional

if TYPE_CHECKING:
    import asyncio

    from ._requests import Exchange
    from ._spec import Spec

STATUSES = ("ok", "failed", "empty", "short", "errored", "aborted")
_SLICE_S = 0.0002
_PAUSE_S = 0.001
_PIECES = 32
_HURRY_BYTES = 64 << 20
_LEAST_PATIENCE = 256
_SAMPLE_EVERY = 8
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def status_of(exchange: Exchange, finish: Optional[str], *, ignore_eos: bool) -> str:
    """Count a request as what it was.

    ``failed``: no usable HTTP answer (refused, closed early, another status than 200, stalled). ``errored``: a 200
    whose stream then reported an error, an abort or NaN. ``empty``: a 200 without any token. ``short``: fewer
    tokens than were ordered although the end token was to be ignored. ``aborted``: stopped by us at the end of
    the trial, through no fault of the server.
    """
    decoder = exchange.decoder
    if decoder.error is not None:
        return "errored"
    if exchange.aborted:
        return "aborted"
    if exchange.error is not None:
        return "failed"
    if finish is not None and (finish.startswith("abort") or "NaN" in finish):
        return "errored"
    if not decoder.chunks and not decoder.tokens:
        return "empty"
    if finish is None and not decoder.done:
        return "failed"
    if ignore_eos and decoder.tokens is not None and decoder.tokens < exchange.output_len:
        return "short"
    return "ok"


class Tally:
    """The few figures of every request that outlive it: about 60 bytes each."""

    def __init__(self, time_scale: float = 1.0) -> None:
        self._time_scale = time_scale  # a simulated server's own times are simulated ones
        self.sent = array("q")
        self.scheduled = array("q")
        self.first = array("q")
        self.end = array("q")
        self.status = array("b")
        self.prompt = array("l")
        self.cached = array("l")
        self.index = array("q")
        self.errors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.tokens = 0
        self.server_gap_s = array("d")
        self.server_first_gap_s = array("d")
        self.lags = array("q")
        self.chunks = 0
        self.sampled = 0
        self.constant: Counter[Any] = Counter()

    def add(self, exchange: Exchange, status: str, first_ns: int, summary: Dict[str, Any]) -> None:
        """Count one finished request."""
        self.index.append(exchange.index)
        self.sent.append(exchange.sent_ns or 0)
        self.scheduled.append(exchange.scheduled_ns)
        self.first.append(first_ns)
        self.end.append(exchange.end_ns or 0)
        self.status.append(STATUSES.index(status))
        self.prompt.append(_whole(summary["prompt_tokens"]))
        self.cached.append(_whole(summary["cached_tokens"]))
        self.counts[status] += 1
        self.chunks += len(exchange.decoder.chunks) // 2
        if exchange.decoder.lags:
            self.lags.extend(exchange.decoder.lags)
        if status in ("failed", "errored"):
            message = exchange.decoder.error or exchange.error or str(summary["finish"] or "no finish reason")
            if message in self.errors or len(self.errors) < 50:
                self.errors[message] += 1
            else:
                self.errors["(other errors)"] += 1
        elif status == "ok":
            e2e = summary["server"].get("e2e_s")
            if e2e is not None and exchange.sent_ns and exchange.end_ns:
                self.server_gap_s.append((exchange.end_ns - exchange.sent_ns) / 1e9 - e2e / self._time_scale)
            ttft = summary["server"].get("ttft_s")
            if ttft is not None and exchange.sent_ns and first_ns:
                self.server_first_gap_s.append((first_ns - exchange.sent_ns) / 1e9 - ttft / self._time_scale)
            if exchange.index % _SAMPLE_EVERY == 0:
                self._sample(summary)

    def merge(self, other: Tally) -> None:
        """Add another worker's requests."""
        for name in (
            "sent",
            "scheduled",
            "first",
            "end",
            "status",
            "prompt",
            "cached",
            "index",
            "server_gap_s",
            "server_first_gap_s",
            "lags",
        ):
            getattr(self, name).extend(getattr(other, name))
        for name in ("errors", "counts", "constant"):
            getattr(self, name).update(getattr(other, name))
        self.tokens += other.tokens
        self.chunks += other.chunks
        self.sampled += other.sampled

    def _sample(self, summary: Dict[str, Any]) -> None:
        """Keep what an answer consisted of, if it was one thing over and over."""
        content = summary["ids"] or summary["text"]
        if not content or len(content) < 8:
            return
        self.sampled += 1
        if len(set(content)) == 1:
            self.constant[content[0]] += 1


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


class Digester:
    """Takes finished and growing exchanges and works through them a slice at a time."""

    def __init__(self, spec: Spec, loop: asyncio.AbstractEventLoop, records: Optional[IO[str]]) -> None:
        self._loop = loop
        self._records = records
        self._ignore_eos = bool(spec.sampling.get("ignore_eos"))
        self._keep_bodies = spec.keep_bodies
        self._queue: Deque[Exchange] = deque()
        self._patience = max(_LEAST_PATIENCE, spec.arrival.most_streams)
        self._jobs: Deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._waiting_bytes = 0
        self.tally = Tally(spec.time_scale)

    def push(self, exchange: Exchange) -> None:
        """Decode what this exchange has; finish it when it has ended."""
        if not exchange.queued:
            exchange.queued = True
            self._waiting_bytes += sum(map(len, exchange.pending[1::2]))
            self._queue.append(exchange)
            self._wake()

    def later(self, job: Callable[[], None]) -> None:
        """Run a short job when there is time (before any decoding)."""
        self._jobs.append(job)
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(_PAUSE_S, self._slice)

    def _slice(self) -> None:
        self._scheduled = False
        began = perf_counter()
        # Behind by more than one answer of every stream: longer slices rather than unbounded memory. The audit sees
        # the lag that they cause.
        behind = max(len(self._queue) / self._patience, self._waiting_bytes / _HURRY_BYTES)
        until = began + _SLICE_S * max(1.0, behind)
        while (self._jobs or self._queue) and perf_counter() < until:
            if self._jobs:
                self._jobs.popleft()()
            else:
                self._step(self._queue[0], _PIECES)
        if self._jobs or self._queue:
            self._wake()

    def drain(self) -> None:
        """Finish everything now; the trial is over."""
        while self._queue:
            self._step(self._queue[0], 1 << 30)
        if self._records is not None:
            self._records.flush()

    def _step(self, exchange: Exchange, pieces: int) -> None:
        pending = exchange.pending
        count = min(len(pending), 2 * pieces)
        if exchange.response.status == 200:
            exchange.decoder.take(pending, count)
        elif exchange.error is None and count:
            # Not an answer but a refusal: keep the beginning of what it says.
            said = b"".join(pending[1:count:2])[:500]
            exchange.error = f"HTTP {exchange.response.status}: {_said(said)}"
        self._waiting_bytes = max(0, self._waiting_bytes - sum(map(len, pending[1:count:2])))
        del pending[:count]  # in place: the connection holds the same list
        if not pending:
            self._queue.popleft()
            exchange.queued = False
            if exchange.end_ns is not None:
                self._finish(exchange)

    def _finish(self, exchange: Exchange) -> None:
        decoder = exchange.decoder
        if exchange.response.done and not exchange.aborted:
            if exchange.response.status == 200:
                decoder.finish(exchange.end_ns or 0)
            elif exchange.error is None:
                exchange.error = f"HTTP {exchange.response.status}"
        summary = decoder.summary()
        status = status_of(exchange, summary["finish"], ignore_eos=self._ignore_eos)
        chunks = decoder.chunks
        self.tally.add(exchange, status, chunks[0] or 0 if chunks else 0, summary)
        if decoder.tokens:
            self.tally.tokens += decoder.tokens
        if self._records is not None:
            record = to_record(exchange, status, summary)
            if self._keep_bodies:
                record["bodies"] = decoder.bodies
            self._records.write(_line(record, chunks))


def _line(record: Dict[str, Any], chunks: List[Optional[int]]) -> str:
    """A record with its chunks, put in by one format: it is most of a record, and three times as fast as json."""
    pairs = ("[%s,%s]," * (len(chunks) // 2))[:-1] % tuple(chunks)
    if None in chunks:
        pairs = pairs.replace("None", "null")
    return f'{_encode(record)[:-1]},"chunks":[{pairs}]}}\n'


def to_record(exchange: Exchange, status: str, summary: Dict[str, Any]) -> Dict[str, Any]:
    """A line of the records file but for its chunks. Times are CLOCK_MONOTONIC nanoseconds of this machine."""
    decoder = exchange.decoder
    return {
        "index": exchange.index,
        "scheduled_ns": exchange.scheduled_ns,
        "sent_ns": exchange.sent_ns,
        "status": status,
        "prompt_tokens": summary["prompt_tokens"],
        "cached_tokens": summary["cached_tokens"],
        "output_tokens": decoder.tokens,
        "ordered_tokens": exchange.output_len,
        "idle_events": decoder.idle_events,
        "finish": summary["finish"],
        "error": decoder.error or exchange.error,
        "server": summary["server"],
        "end_ns": exchange.end_ns,
    }


def _said(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        data = json.loads(text)
    except ValueError:
        return text
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict):
            return str(error.get("message") or error)[:500]
        return str(error)[:500]
    return text
