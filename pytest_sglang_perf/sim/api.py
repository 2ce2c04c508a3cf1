"""sglang's endpoints over the scheduler."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from . import facts
from .inputs import BadInput, chat_text, json_body, read_prompts, read_wish
from .prometheus import Figures
from .replies import ChatReply, CompletionReply, NativeReply, NativeStream, Shapes
from .sequence import Reply, Sequence, TokenPool, tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .clock import SimClock
    from .faults import Faults
    from .flags import ServerArgs
    from .http import Connection, Request
    from .log import Log
    from .profiles import Profile
    from .scheduler import Scheduler
    from .seams import Limits

__all__ = ["Api"]

_SSE = "text/event-stream; charset=utf-8"
_HEALTH_LIMIT_S = 20.0  # simulated, as sglang's own
_OPEN = {"/health", "/health_generate", "/ready", "/ping", "/metrics"}  # no API key needed


class Api:
    """Answers requests. ``status`` is ``starting``, ``up``, ``unhealthy`` or ``draining``."""

    def __init__(
        self,
        args: ServerArgs,
        profile: Profile,
        limits: Limits,
        clock: SimClock,
        log: Log,
        faults: Faults,
        pool: TokenPool,
        scheduler: Scheduler,
        own: dict[str, Any],
        *,
        on_request: Callable[[int], None],
    ) -> None:
        self._args = args
        self._profile = profile
        self._limits = limits
        self._clock = clock
        self._log = log
        self._faults = faults
        self._facts = own
        self._old = args.version == "0.5.10"
        self._context = int(args["context_length"] or profile.model.context_len)
        self._shapes = Shapes(
            pool,
            clock,
            str(args["served_model_name"]),
            incremental=bool(args["incremental_streaming_output"]),
            retractions_key="total_retractions" if self._old else "num_retractions",
        )
        self.figures = Figures(str(args["served_model_name"]))
        self.status = "starting"
        self.scheduler = scheduler
        self.last_output = -1.0
        self._on_request = on_request
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_rid: dict[str, tuple[Sequence, Connection]] = {}
        any_method, get, post = {"GET", "POST"}, {"GET"}, {"POST"}
        self._routes: dict[str, tuple[set[str], Callable[[Request, Connection], None]]] = {
            "/generate": ({"POST", "PUT"}, self._generate),
            "/v1/completions": (post, self._completions),
            "/v1/chat/completions": (post, self._chat),
            "/health": (get, self._health),
            "/health_generate": (get, self._health),
            "/ping": (get, lambda _, c: c.respond(200, b"")),
            "/server_info": (get, self._server_info),
            "/get_server_info": (get, self._server_info),
            "/model_info": (get, self._model_info),
            "/get_model_info": (get, self._model_info),
            "/v1/models": (get, self._models),
            "/v1/loads": (get, self._loads),
            "/get_load": (get, self._loads),
            "/flush_cache": (any_method, self._flush_cache),
            "/freeze_gc": (
                any_method,
                lambda _, c: c.respond(200, b"Garbage collection frozen.\n", "text/plain"),
            ),
            "/abort_request": (post, self._abort_request),
            "/slow_down": (any_method, self._slow_down),
        }
        if not self._old:
            self._routes["/ready"] = (get, self._ready)
        if args["enable_metrics"]:
            self._routes["/metrics"] = (get, self._metrics)

    # -- Application

    def handle(self, request: Request, connection: Connection) -> None:
        """Route one request."""
        route = self._routes.get(request.path)
        if route is None:
            connection.respond(404, b'{"detail":"Not Found"}')
        elif request.method not in route[0]:
            connection.respond(405, b'{"detail":"Method Not Allowed"}')
        elif not self._authorised(request):
            connection.respond(401, b'{"error":"Unauthorized"}')
        else:
            try:
                route[1](request, connection)
            except (ValueError, TypeError, AttributeError) as error:  # BadInput, or of a type nobody expects
                self._log.shout(f"[http_server] Error: {error}")
                connection.respond(400, json.dumps({"error": {"message": str(error)}}).encode())

    def answered(self, request: Request, peer: str, status: int) -> None:
        """Write the access line."""
        self._log.access(request, peer, status)

    def _authorised(self, request: Request) -> bool:
        key = self._args["api_key"]
        if not key or request.path in _OPEN:
            return True
        return request.headers.get("authorization") == f"Bearer {key}"

    # -- generation

    def _generate(self, request: Request, connection: Connection) -> None:
        body = json_body(request)
        prompts, batch = read_prompts(body.get("text"), body.get("input_ids"), self._profile.model.vocab_size)
        params = body.get("sampling_params") or {}
        if not isinstance(params, dict):
            raise BadInput("sampling_params must be an object")
        rids = body.get("rid")
        names = rids if isinstance(rids, list) else [rids] * len(prompts)
        if len(names) != len(prompts):
            raise BadInput(f"{len(prompts)} prompts need as many rids, not {len(names)}")
        streaming = bool(body.get("stream"))
        left = itertools.count(len(prompts) - 1, -1)
        whole = NativeReply(self._shapes, connection, len(prompts), batch=batch)
        sequences = []
        for index, prompt in enumerate(prompts):
            reply: Reply = whole
            if streaming:
                place = index if batch else None
                reply = NativeStream(self._shapes, connection, place, lambda: next(left) == 0)
            sequence = self._sequence(names[index], prompt, params, "max_new_tokens", reply)
            whole.expect(sequence)
            sequences.append(sequence)
        self._serve(sequences, connection, streaming=streaming)

    def _completions(self, request: Request, connection: Connection) -> None:
        body = json_body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        prompts, batch = read_prompts(text, ids, self._profile.model.vocab_size)
        if batch:
            raise BadInput("this simulated server takes one prompt a request")
        reply = CompletionReply(self._shapes, connection, body)
        sequence = self._sequence(f"cmpl-{uuid.uuid4().hex}", prompts[0], body, "max_tokens", reply)
        self._serve([sequence], connection, streaming=bool(body.get("stream")))

    def _chat(self, request: Request, connection: Connection) -> None:
        body = json_body(request)
        text = chat_text(body.get("messages"))
        body = {"max_tokens": body.get("max_completion_tokens")} | body
        reply = ChatReply(self._shapes, connection, body)
        prompt = tokenize(text, self._profile.model.vocab_size)
        sequence = self._sequence(f"chatcmpl-{uuid.uuid4().hex}", prompt, body, "max_tokens", reply)
        self._serve([sequence], connection, streaming=bool(body.get("stream")))

    def _sequence(
        self, rid: str | None, prompt: tuple[int, ...], params: dict[str, Any], limit_key: str, reply: Reply
    ) -> Sequence:
        wish = read_wish(params, limit_key, prompt, self._profile.model, self._context, nan=self._faults.nan)
        return Sequence(rid or uuid.uuid4().hex, prompt, wish.tokens, wish.finish, reply)

    def _serve(self, sequences: list[Sequence], connection: Connection, *, streaming: bool) -> None:
        if streaming:
            connection.start(_SSE)

        def leave() -> None:
            for sequence in sequences:
                if self._by_rid.pop(sequence.rid, None):
                    self.figures.counters["num_aborted_requests_total"] += 1
                    self.scheduler.abort(sequence)

        connection.on_close = leave
        if connection.done_at is not None:
            sequences[0].turnaround_s = self._clock.turnaround(connection.done_at, self._clock.now())
            connection.done_at = None
        for sequence in sequences:
            number = next(self._numbers)
            self._by_rid[sequence.rid] = (sequence, connection)
            every = self._faults.error_after_200
            sequence.reply = _Counted(self, sequence.reply, breaks=bool(every) and number % (every or 1) == 0)
            self._on_request(number)
            self.scheduler.submit(sequence)

    def account(self, sequence: Sequence, *, finished: bool) -> None:
        """Count tokens that were just generated."""
        now = self._clock.now()
        self.last_output = now
        counters = self.figures.counters
        counters["generation_tokens_total"] += sequence.generated - sequence.emitted
        if sequence.emitted == 0:
            counters["prompt_tokens_total"] += len(sequence.prompt)
            counters["cached_tokens_total"] += sequence.cached
            self.figures.observe("time_to_first_token_seconds", now - sequence.arrived)
        if finished:
            _, connection = self._by_rid.pop(sequence.rid, (None, None))
            if connection is not None:
                connection.done_at = self.scheduler.now
            counters["num_requests_total"] += 1
            self.figures.observe("e2e_request_latency_seconds", now - sequence.arrived)

    def break_off(self, sequence: Sequence) -> None:
        """End a request with an error event, as a fault orders."""
        self._by_rid.pop(sequence.rid, None)
        asyncio.get_running_loop().call_soon(self.scheduler.abort, sequence)

    def _abort_request(self, request: Request, connection: Connection) -> None:
        body = json_body(request)
        wanted = list(self._by_rid) if body.get("abort_all") else [str(body.get("rid"))]
        for rid in wanted:
            found = self._by_rid.pop(rid, None)
            if found:
                sequence = found[0]
                self.figures.counters["num_aborted_requests_total"] += 1
                self.scheduler.abort(sequence)
                sequence.finish = {"type": "abort", "message": "Abort in waiting queue", "status_code": None}
                sequence.reply.tokens(sequence, finished=True)
        connection.respond(200, b"")

    # -- health

    def _health(self, request: Request, connection: Connection) -> None:
        if self.status in {"starting", "draining"}:
            connection.respond(503, b"")
        elif request.query.get("now") == "1":
            connection.respond(200, b"")
        else:
            self._spawn(self._probe(connection))

    async def _probe(self, connection: Connection) -> None:
        """Have one token generated if nothing else is; any output within 20 s means health."""
        began = self._clock.now()
        if self.scheduler.idle and not self.scheduler.frozen:
            finish: dict[str, object] = {"type": "length", "length": 1}
            self.scheduler.submit(Sequence(uuid.uuid4().hex, (0,), 1, finish, _Probe(self)))
        while self._clock.now() < began + _HEALTH_LIMIT_S:
            await asyncio.sleep(self._clock.real(1.0))
            if self.last_output > began:
                self.status = "up" if self.status != "draining" else self.status
                connection.respond(200, b"")
                return
        if self.status == "up":
            self.status = "unhealthy"
        clock = time.strftime("%H:%M:%S")
        self._log.shout(
            "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
            f"tic start time: {clock}. last_heartbeat time: {clock}"
        )
        connection.respond(503, b"")

    def _ready(self, request: Request, connection: Connection) -> None:
        del request
        connection.respond(200 if self.status == "up" else 503, b"")

    # -- facts

    def _deprecated(self, request: Request) -> None:
        if request.path.startswith("/get_"):
            new = "/v1/loads" if request.path == "/get_load" else request.path.replace("/get_", "/")
            self._log.shout(
                f"Endpoint '{request.path}' is deprecated and will be removed in a future version. "
                f"Please use '{new}' instead."
            )

    def _server_info(self, request: Request, connection: Connection) -> None:
        self._deprecated(request)
        if not self.scheduler.frozen:  # else: sglang asks its schedulers, and waits
            info = facts.server_info(self._args, self._profile, self._limits, self.scheduler, self._facts)
            _respond_json(connection, info)

    def _model_info(self, request: Request, connection: Connection) -> None:
        self._deprecated(request)
        _respond_json(connection, facts.model_info(self._args, self._profile.model))

    def _models(self, request: Request, connection: Connection) -> None:
        del request
        card = facts.model_card(str(self._args["served_model_name"]), self._context)
        _respond_json(connection, {"object": "list", "data": [card]})

    def _loads(self, request: Request, connection: Connection) -> None:
        self._deprecated(request)
        load = facts.load(self.scheduler, self._limits)
        old = request.path == "/get_load"
        _respond_json(connection, [load] if old else {"version": self._facts["version"], "loads": [load]})

    def _metrics(self, request: Request, connection: Connection) -> None:
        del request
        counters = self.figures.counters
        counters["num_retracted_requests_total"] = self.scheduler.retracted_total
        text = self.figures.text(facts.gauges(self.scheduler, self._limits, counters))
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    # -- orders

    def _flush_cache(self, request: Request, connection: Connection) -> None:
        self._spawn(self._flush(float(request.query.get("timeout") or 0.0), connection))

    async def _flush(self, timeout_s: float, connection: Connection) -> None:
        until = self._clock.now() + timeout_s
        while not self.scheduler.flush():
            if self._clock.now() >= until:
                scheduler = self.scheduler
                self._log.shout(
                    "Cache not flushed because there are pending requests. "
                    f"#queue-req: {len(scheduler.waiting)}, #running-req: {len(scheduler.running)}"
                )
                connection.respond(400, b"Flush cache failed.\n", "text/plain")
                return
            await asyncio.sleep(self._clock.real(0.1))
        self._log.say("Cache flushed successfully!", rank=0)
        connection.respond(
            200,
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n",
            "text/plain",
        )

    def _slow_down(self, request: Request, connection: Connection) -> None:
        seconds = json_body(request).get("forward_sleep_time")
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise BadInput(f"forward_sleep_time must be seconds, got {seconds!r}")
        self.scheduler.slow_down_s = float(seconds or 0.0)
        connection.respond(200, b"null")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Counted:
    """A reply whose tokens are counted before they are sent."""

    def __init__(self, api: Api, reply: Reply, *, breaks: bool) -> None:
        self._api = api
        self._reply = reply
        self._breaks = breaks

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        self._api.account(sequence, finished=finished)
        if self._breaks and (sequence.emitted > 0 or finished):
            self._api.break_off(sequence)
            self._reply.failed(sequence, "Internal error: an ordered fault (SGLANG_SIM_FAIL)", 500)
        else:
            self._reply.tokens(sequence, finished=finished)

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        self._reply.failed(sequence, message, code)


class _Probe:
    """Where the health check's token goes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        del sequence
        if finished:
            self._api.last_output = self._api._clock.now()  # noqa: SLF001 (its own helper)

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        """A probe that fails is one that gets no token."""


def _respond_json(connection: Connection, answer: object) -> None:
    connection.respond(200, json.dumps(answer).encode())
