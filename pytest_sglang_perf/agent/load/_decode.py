"""From the events of one streamed answer to token counts with arrival times.

Three dialects: sglang's native ``/generate`` (cumulative counts in ``meta_info`` of every event) and OpenAI's
completions and chat (``usage`` in every event where the server honours ``continuous_usage_stats``, else only in
the last one, else never). Tokens are counted by the server, never by events: an event may carry several tokens,
one, or none (a role, an empty text while a character is incomplete, the closing usage).

Keys are searched in the raw bytes rather than by decoding every event. That is exact: inside a JSON string every
quote is escaped, so ``"completion_tokens":`` cannot occur in a model's text. It is also several times as fast as
decoding, and a plain search is several times as fast as a regular expression.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any, Dict, List, Optional

from ._sse import EventSplitter

_TOKENS = b'"completion_tokens"'
_FINISH = b'"finish_reason"'
_TIMES = (("e2e_latency", "e2e_s"), ("first_token_latency", "ttft_s"), ("queue_time", "queue_s"))
_NUMBER = re.compile(rb"\s*:\s*(\d+)")
_NOT_NULL = re.compile(rb"\s*:\s*[^n\s]")
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)"\s*:\s*"(?!")')
_ERROR = b'"error"'
_STAMP = re.compile(rb'"sent_ns"\s*:\s*(\d+)')


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
        "_closing", "_counted", "_finish", "_keep", "_splitter", "bodies", "chunks", "done", "error",
        "idle_events", "lags", "tokens",
    )  # fmt: skip

    def __init__(self, *, keep_bodies: bool = False, stamped: bool = False) -> None:
        self._splitter = EventSplitter()
        self._keep = keep_bodies
        self._counted = True
        self._finish: Optional[bytes] = None
        self._closing: Optional[bytes] = None
        self.bodies: List[str] = []
        self.chunks: List[Optional[int]] = []
        self.done = False
        self.error: Optional[str] = None
        self.idle_events = 0
        self.tokens: Optional[int] = None
        self.lags: Optional[array[int]] = array("q") if stamped else None

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
            stamp = _STAMP.search(event)
            if stamp is not None:
                self.lags.append(arrival_ns)
                self.lags.append(arrival_ns - int(stamp.group(1)))
        at = event.rfind(_TOKENS)
        found = None if at < 0 else _NUMBER.match(event, at + len(_TOKENS))
        if (found is None or _ERROR in event) and self._special(event):
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
        elif _TEXT.search(event):
            self._counted = False
            self._chunk(arrival_ns, None, event)
        else:
            self.idle_events += 1
        at = event.rfind(_FINISH)
        if at >= 0 and not event.startswith(b":null", at + len(_FINISH)) and _NOT_NULL.match(event, at + len(_FINISH)):
            self._finish = event

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
        if _ERROR in event or not event.startswith(b"{"):
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
