"""The shapes of answers: sglang's own and OpenAI's, streamed and whole."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import SimClock
    from .http import Connection
    from .sequence import Sequence, TokenPool

__all__ = ["ChatReply", "CompletionReply", "NativeReply", "NativeStream", "Shapes"]

_SSE = "text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"


class Shapes:
    """What all answers of one server share."""

    def __init__(
        self, pool: TokenPool, clock: SimClock, model: str, *, incremental: bool, retractions_key: str
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.model = model
        self.incremental = incremental
        self._retractions_key = retractions_key

    def meta(self, sequence: Sequence, *, finished: bool) -> str:
        """``meta_info`` of one answer so far, as JSON. Latencies are simulated seconds."""
        reason = json.dumps(sequence.finish) if finished else "null"
        last = f',"e2e_latency":{self.clock.now() - sequence.arrived:.6f}' if finished else ""
        return (
            f'{{"id":"{sequence.rid}","finish_reason":{reason},"prompt_tokens":{len(sequence.prompt)},'
            f'"weight_version":"default","{self._retractions_key}":{sequence.retractions},'
            f'"reasoning_tokens":0,"completion_tokens":{sequence.generated},"cached_tokens":{sequence.cached}{last}}}'
        )


class NativeStream:
    """``/generate`` with ``"stream": true``: every chunk repeats the whole answer so far."""

    def __init__(self, shapes: Shapes, connection: Connection, index: int | None, last: Callable[[], bool]) -> None:
        self._shapes = shapes
        self._connection = connection
        self._index = "" if index is None else f',"index":{index}'
        self._last = last
        self._ids: list[str] = []
        self._text: list[str] = []

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        """Send one chunk."""
        shapes, start, end = self._shapes, sequence.emitted, sequence.generated
        ids, text = shapes.pool.ids(sequence, start, end), shapes.pool.text(sequence, start, end)
        if not shapes.incremental:
            self._ids.append(ids)
            self._text.append(text)
            ids, text = ",".join(self._ids), "".join(self._text)
        meta = shapes.meta(sequence, finished=finished)
        data = f'data: {{"text":"{text}","output_ids":[{ids}],"meta_info":{meta}{self._index}}}\n\n'.encode()
        if finished and self._last():
            self._connection.send(data + _DONE, end=True)
        else:
            self._connection.send(data)

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        """End the stream with an error; its status was 200 long ago."""
        del sequence
        error = json.dumps({"error": {"message": message, "code": code}})
        self._connection.send(f"data: {error}\n\n".encode() + _DONE, end=True)


class NativeReply:
    """``/generate`` without streaming: one object, or a list for a batch."""

    def __init__(self, shapes: Shapes, connection: Connection, count: int, *, batch: bool) -> None:
        self._shapes = shapes
        self._connection = connection
        self._batch = batch
        self._answers: dict[str, str] = {}
        self._order: list[str] = []
        self._count = count

    def expect(self, sequence: Sequence) -> None:
        """Keep a place for this sequence's answer."""
        self._order.append(sequence.rid)

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        """Answer when the last sequence is done."""
        if not finished:
            return
        pool, end = self._shapes.pool, sequence.generated
        self._answers[sequence.rid] = (
            f'{{"text":"{pool.text(sequence, 0, end)}","output_ids":[{pool.ids(sequence, 0, end)}],'
            f'"meta_info":{self._shapes.meta(sequence, finished=True)}}}'
        )
        if len(self._answers) == self._count:
            answers = ",".join(self._answers[rid] for rid in self._order)
            self._connection.respond(200, (f"[{answers}]" if self._batch else answers).encode())

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        """Answer with the error."""
        del sequence
        self._connection.respond(code, json.dumps({"error": {"message": message}}).encode())


class CompletionReply:
    """``/v1/completions``."""

    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, shapes: Shapes, connection: Connection, body: dict[str, Any]) -> None:
        options = body.get("stream_options") or {}
        self._shapes = shapes
        self._connection = connection
        self._stream = bool(body.get("stream"))
        self._usage = bool(options.get("include_usage"))
        self._usage_always = bool(options.get("continuous_usage_stats"))
        self._model = body.get("model") or shapes.model
        self._created = int(time.time())

    def tokens(self, sequence: Sequence, *, finished: bool) -> None:
        """Send one chunk, or the whole answer at its end."""
        text = self._shapes.pool.text(sequence, sequence.emitted if self._stream else 0, sequence.generated)
        if not self._stream:
            if finished:
                answer = self._object(sequence, self.object, [self._choice(sequence, text)])
                self._connection.respond(200, json.dumps(answer | {"usage": _usage(sequence)}).encode())
            return
        events = [
            self._object(sequence, self.chunk_object, [choice])
            for choice in self._deltas(sequence, text, finished=finished)
        ]
        for event in events:
            event["usage"] = _usage(sequence) if self._usage_always else None
        if finished and self._usage:
            events.append(self._object(sequence, self.chunk_object, []) | {"usage": _usage(sequence)})
        data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
        self._connection.send(data + _DONE if finished else data, end=finished)

    def failed(self, sequence: Sequence, message: str, code: int) -> None:
        """End with an error event, or answer with the error."""
        del sequence
        error = {"object": "error", "message": message, "type": "InternalServerError", "code": code}
        if self._stream:
            self._connection.send(f"data: {json.dumps({'error': error})}\n\n".encode() + _DONE, end=True)
        else:
            self._connection.respond(code, json.dumps(error).encode())

    def _object(self, sequence: Sequence, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": sequence.rid,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _choice(self, sequence: Sequence, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None} | _finish(sequence, finished=True)

    def _deltas(self, sequence: Sequence, text: str, *, finished: bool) -> list[dict[str, Any]]:
        return [{"index": 0, "text": text, "logprobs": None} | _finish(sequence, finished=finished)]


class ChatReply(CompletionReply):
    """``/v1/chat/completions``: the role comes first, the reason to finish in a chunk of its own."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _choice(self, sequence: Sequence, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        return {"index": 0, "message": message, "logprobs": None} | _finish(sequence, finished=True)

    def _deltas(self, sequence: Sequence, text: str, *, finished: bool) -> list[dict[str, Any]]:
        def delta(role: str | None, content: str | None, *, last: bool = False) -> dict[str, Any]:
            parts = {"role": role, "content": content, "reasoning_content": None, "tool_calls": None}
            return {"index": 0, "delta": parts, "logprobs": None} | _finish(sequence, finished=last)

        deltas = [delta("assistant", "")] if sequence.emitted == 0 else []
        deltas.append(delta(None, text))
        if finished:
            deltas.append(delta(None, None, last=True))
        return deltas


def _finish(sequence: Sequence, *, finished: bool) -> dict[str, Any]:
    reason = sequence.finish if finished else {}
    return {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}


def _usage(sequence: Sequence) -> dict[str, Any]:
    prompt, completion = len(sequence.prompt), sequence.generated
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
