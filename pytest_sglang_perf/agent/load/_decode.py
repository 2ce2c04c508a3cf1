"""From the events of one streamed answer to token counts with arrival times.

Three dialects: sglang's native ``/generate`` (cumulative counts in ``meta_info`` of every event) and OpenAI's
completions and chat (``usage`` in every event where the server honours ``continuous_usage_stats``, else only in
the last one, else never). Tokens are counted by the server, never by events: an event may carry several tokens,
one, or none (a role, an empty text while a character is incomplete, the closing usage).

Keys are searched in the raw bytes rather than by decoding every event. That is exact: inside a JSON string every
quote is escaped, so ``"completion_tokens":`` cannot occur in a model's text. It is also several times as fast as
decoding, and a plain search is several times as fast as a regular expression. Nearly every event does nothing but raise
the count; :meth:`Decoder.take` reads those in one go, and leaves all others to :meth:`Decoder.feed`.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any, Dict, List, Optional, Sequence

from ._sse import EventSplitter

_TOKENS = b'"completion_tokens"'
_COUNT = _TOKENS + b":"
_SKIP, _REACH = len(_COUNT), len(_COUNT) + 12
_FINISH = b'"finish_reason"'
_TIMES = (("e2e_latency", "e2e_s"), ("first_token_latency", "ttft_s"), ("queue_time", "queue_s"))
_NUMBER = re.compile(rb"\s*:\s*(\d+)")
_NOT_NULL = re.compile(rb"\s*:\s*[^n\s]")
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"(?!")')
_ERROR = b'"error"'
_NATIVE = b'"meta_info"'
_SENT = b'"sent_ns"'


class Decoder:
    """Reads the body of one streamed response.

    Attributes:
        chunks: arrival_ns and cumulative tokens (None where the server does not say) of each event that
            brought tokens, one after the other in a flat list.
        bodies: the payload of those events, if asked for.
        idle_events: events that brought no token.
        tokens: output tokens by the server's last count, None if it never gave one.
        error: what an error event in the stream said.
        lags: for a stamped server, arrival_ns and how much later than ``sent_ns`` it is, of every event, flat.
    """

    __slots__ = (
        "_closing", "_counted", "_finish", "_keep", "_native", "_splitter", "bodies", "chunks", "done",
        "error", "idle_events", "lags", "tokens",
    )  # fmt: skip

    def __init__(self, *, keep_bodies: bool = False, stamped: bool = False) -> None:
        self._splitter = EventSplitter()
        self._keep = keep_bodies
        self._counted = True
        self._native = False  # and then the closing event says how the answer finished
        self._finish: Optional[bytes] = None
        self._closing: Optional[bytes] = None
        self.bodies: List[str] = []
        self.chunks: List[Optional[int]] = []
        self.done = False
        self.error: Optional[str] = None
        self.idle_events = 0
        self.tokens: Optional[int] = None
        self.lags: Optional[array[int]] = array("q") if stamped else None

    def take(self, pieces: Sequence[Any], count: int) -> None:
        """Take ``count`` items of arrival times and body bytes in turn; :meth:`feed` for each pair, in less time."""
        chunks, lags = self.chunks, self.lags
        whole = b"".join(pieces[1:count:2])
        simple = not self._keep and whole.rfind(_ERROR) < 0 and b"\r" not in whole
        plain = simple and self._counted and self._splitter.clean
        native = self._native
        tokens = self.tokens or 0
        last: Optional[bytes] = None
        for i in range(0, count, 2):
            arrival_ns, body = pieces[i], pieces[i + 1]
            if plain and body.find(b"\n") == len(body) - 2 and body.endswith(b"\n") and body.startswith(b"data: "):
                at = body.rfind(_COUNT)
                digits = body[at + _SKIP : body.find(b",", at, at + _REACH)]
                if not digits.isdigit():
                    digits = body[at + _SKIP : body.find(b"}", at, at + _REACH)]
                if at > 0 and digits.isdigit() and (native or _unfinished(body)):
                    found = int(digits)
                    if found > tokens:
                        tokens = found
                        chunks.append(arrival_ns)
                        chunks.append(found)
                        last = body
                        if lags is not None:
                            self._lag(arrival_ns, body)
                        continue
            if last is not None:
                self.tokens, self._closing, last = tokens, last[6:-2], None
            self.feed(arrival_ns, body)
            tokens, native = self.tokens or 0, self._native
            plain = simple and self._counted and self._splitter.clean
        if last is not None:
            self.tokens, self._closing = tokens, last[6:-2]

    def feed(self, arrival_ns: int, body: bytes) -> None:
        """Take body bytes that arrived at ``arrival_ns``; an event arrives with its last byte."""
        for event in self._splitter.feed(body):
            self._event(arrival_ns, event)

    def finish(self, arrival_ns: int) -> None:
        """The body ended as it should."""
        for event in self._splitter.finish():
            self._event(arrival_ns, event)

    def _event(self, arrival_ns: int, event: bytes) -> None:
        if self.lags is not None:
            self._lag(arrival_ns, event)
        at = event.rfind(_TOKENS)
        found = None if at < 0 else _NUMBER.match(event, at + len(_TOKENS))
        if (found is None or event.rfind(_ERROR) >= 0) and self._special(event):
            return
        if found is not None:
            count = int(found.group(1))
            if count > (self.tokens or 0):
                self.tokens = count
                if self._counted or _TEXT.search(event):
                    self._chunk(arrival_ns, count, event)
                else:  # a total for what came without counts
                    self.idle_events += 1
            else:
                self.tokens = count
                self.idle_events += 1
            self._closing = event
            self._native = _NATIVE in event
        elif _TEXT.search(event):
            self._counted = False
            self._chunk(arrival_ns, None, event)
        else:
            self.idle_events += 1
        if not _unfinished(event) and _NOT_NULL.match(event, event.rfind(_FINISH) + len(_FINISH)):
            self._finish = event

    def _lag(self, arrival_ns: int, event: bytes) -> None:
        sent = _NUMBER.match(event, event.rfind(_SENT) + len(_SENT))
        if sent is not None and self.lags is not None:
            self.lags.append(arrival_ns)
            self.lags.append(arrival_ns - int(sent.group(1)))

    def _chunk(self, arrival_ns: int, count: Optional[int], event: bytes) -> None:
        self.chunks.append(arrival_ns)
        self.chunks.append(count)
        if self._keep:
            self.bodies.append(event.decode("utf-8", "replace"))

    def _special(self, event: bytes) -> bool:
        """The end mark and error events; whether it was one of them."""
        if event == b"[DONE]":
            self.done = True
            return True
        if event.rfind(_ERROR) >= 0 or not event.startswith(b"{"):
            data = _loads(event)
            if data is None:
                self.error = "not JSON: " + event[:200].decode("utf-8", "replace")
                return True
            if data.get("error"):
                self.error = _message(data)
                return True
        return False

    def summary(self) -> Dict[str, Any]:
        """What the closing events say: finish, prompt and cached tokens, server times, text and token ids.

        Keys that the server does not give are None.
        """
        closing = _loads(self._closing or b"") or {}
        finish_event = closing if self._finish is self._closing else _loads(self._finish or b"") or {}
        meta = closing.get("meta_info")
        if isinstance(meta, dict):  # sglang native
            return {
                "finish": _finish_text(meta.get("finish_reason")),
                "prompt_tokens": meta.get("prompt_tokens"),
                "cached_tokens": meta.get("cached_tokens"),
                "server": _server_times(meta),
                "text": closing.get("text"),
                "ids": closing.get("output_ids"),
            }
        usage = closing.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        choices = finish_event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        finish = choice.get("finish_reason")
        if isinstance(choice.get("matched_stop"), str) and "NaN" in choice["matched_stop"]:
            finish = "{}: {}".format(finish, choice["matched_stop"])
        return {
            "finish": finish,
            "prompt_tokens": usage.get("prompt_tokens"),
            "cached_tokens": details.get("cached_tokens") if isinstance(details, dict) else None,
            "server": {},
            "text": None,
            "ids": None,
        }


def _unfinished(event: bytes) -> bool:
    at = event.rfind(_FINISH)
    return at < 0 or event.startswith(b":null", at + len(_FINISH))


def _loads(event: bytes) -> Optional[Dict[str, Any]]:
    try:
        data = json.loads(event)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _message(data: Dict[str, Any]) -> str:
    error = data["error"]
    if isinstance(error, dict):
        return str(error.get("message") or error)[:500]
    return str(error)[:500]


def _finish_text(reason: Any) -> Optional[str]:
    """``length``, ``stop``, ``abort: message``; a NaN detector's stop keeps its name."""
    if not isinstance(reason, dict):
        return reason if isinstance(reason, str) else None
    kind = str(reason.get("type"))
    detail = reason.get("message") if kind == "abort" else reason.get("matched")
    return f"{kind}: {detail}" if isinstance(detail, str) and detail else kind


def _server_times(meta: Dict[str, Any]) -> Dict[str, float]:
    times: Dict[str, float] = {}
    for key, name in _TIMES:
        value = meta.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            times[name] = float(value)
    return times
