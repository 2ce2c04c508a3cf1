"""The bytes of each request: HTTP head and JSON body, ready to be written in one piece."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple
from urllib.parse import urlsplit

from ._decode import Decoder
from ._http import authorization
from ._http1 import Response
from ._prompts import PromptSource
from ._vocabulary import FALLBACK

if TYPE_CHECKING:
    from ._spec import Spec

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Exchange:
    """One request and what came back for it.

    ``scheduled_ns`` is when it should have been sent, ``sent_ns`` when its bytes were handed to the socket.
    ``pending`` holds arrival time and body bytes in turn until the decoder has taken them.
    """

    __slots__ = (
        "aborted", "decoder", "end_ns", "error", "index", "input_len", "output_len", "payload", "pending",
        "queued", "response", "scheduled_ns", "sent_ns",
    )  # fmt: skip

    def __init__(
        self, index: int, payload: bytes, input_len: int, output_len: int, *, keep_bodies: bool, stamped: bool
    ) -> None:
        self.index = index
        self.payload = payload
        self.input_len = input_len
        self.output_len = output_len
        self.scheduled_ns = 0
        self.sent_ns: Optional[int] = None
        self.end_ns: Optional[int] = None
        self.response = Response()
        self.decoder = Decoder(keep_bodies=keep_bodies, stamped=stamped)
        self.pending: List[Any] = []
        self.queued = False
        self.aborted = False
        self.error: Optional[str] = None


class RequestFactory:
    """Builds requests by index; the same index gives the same lengths whatever worker builds it."""

    def __init__(self, spec: Spec, salt: str) -> None:
        self._spec = spec
        self._prompts = PromptSource(*(spec.vocab or FALLBACK), seed=spec.seed, salt=salt, shared=spec.shared_prefix)
        self._rng = random.Random()
        self._head = http_head(spec, "POST", PATHS[spec.api], {"Accept": "text/event-stream"})

    def build(self, index: int, lengths: Optional[Tuple[int, int]] = None) -> Exchange:
        """Request number ``index``, with lengths of its own or those given (a trace's)."""
        spec = self._spec
        if lengths is None:
            self._rng.seed(spec.seed * 1000003 + index)
            lengths = spec.input.draw(self._rng), spec.output.draw(self._rng)
        body = self.body(index, spec.dialect.words(lengths[0]), lengths[1])
        payload = self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        return Exchange(
            index,
            payload,
            lengths[0] + spec.shared_prefix,
            lengths[1],
            keep_bodies=spec.keep_bodies,
            stamped=spec.stamped,
        )

    def body(self, index: int, words: int, output_len: int) -> bytes:
        """The JSON body: ``words`` token ids, or words of text where the server takes no ids."""
        spec = self._spec
        ids = self._prompts.ids(index, words)
        if spec.api == "generate":
            sampling = dict(spec.sampling, max_new_tokens=output_len)
            return b'{"input_ids":[%s],"sampling_params":%s,"stream":true}' % (ids, _dumps(sampling))
        dialect = spec.dialect
        options: Dict[str, Any] = {"model": spec.model, "max_tokens": output_len}
        options.update(spec.sampling)
        if not dialect.ignore_eos:
            options.pop("ignore_eos", None)
        options["stream"] = True
        if dialect.usage:
            options["stream_options"] = {"include_usage": True}
            if dialect.continuous_usage:
                options["stream_options"]["continuous_usage_stats"] = True
        if spec.api == "completions" and dialect.ids:
            return _dumps(options)[:-1] + b',"prompt":[%s]}' % ids
        text = ids.replace(b",", b" ").decode()
        if spec.api == "completions":
            options["prompt"] = text
        else:
            options["messages"] = [{"role": "user", "content": text}]
        return _dumps(options)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def http_head(spec: Spec, method: str, path: str, headers: Dict[str, str]) -> bytes:
    """Request line and headers, without the empty line that ends them.

    Raises:
        SpecError: the key's environment variable is not set.
    """
    parts = urlsplit(spec.url)
    target = parts.path.rstrip("/") + path
    lines = [f"{method} {target} HTTP/1.1", "Host: " + parts.netloc.split("@")[-1]]
    if method == "POST":
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in {**headers, **authorization(spec)}.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n"
