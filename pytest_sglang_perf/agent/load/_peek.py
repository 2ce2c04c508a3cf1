"""How many requests the server itself says it has: the other end of the delivered concurrency.

Asked once a second, because an answer costs the server something. Which endpoint there is differs by version and
flags: ``/v1/loads`` (newer sglang), ``/metrics`` (with ``--enable-metrics``; vLLM too), ``/get_load`` (older sglang).
"""

from __future__ import annotations

import asyncio
import json
import re
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

from ._http import ask
from ._http1 import HttpError, Response
from ._requests import http_head

if TYPE_CHECKING:
    from ._engine import Engine
    from ._spec import Spec

PATHS = ("/v1/loads", "/metrics", "/get_load")
_PERIOD_S = 1.0
_TIMEOUT_S = 5.0
_GAUGE = re.compile(
    r"^(?:sglang:num_running_reqs|sglang:num_queue_reqs|vllm:num_requests_running|vllm:num_requests_waiting)"
    r"(\{[^}]*\})?\s+([0-9.eE+]+)\s*$",
    re.MULTILINE,
)
_OTHER_RANK = re.compile(r'(?:tp_rank|pp_rank|moe_ep_rank)="(?!0")')
_KEYS = ("num_running_reqs", "num_waiting_reqs", "num_reqs")


def count_requests(body: bytes) -> Optional[float]:
    """Requests that run or wait, over all data-parallel ranks; None if the answer does not say.

    Ranks of tensor and pipeline parallelism work on the same requests; only rank 0 of each is counted.
    """
    text = body.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except ValueError:
        found = [float(value) for labels, value in _GAUGE.findall(text) if not _OTHER_RANK.search(labels)]
        return sum(found) if found else None
    loads = list(_loads(data))
    return sum(loads) if loads else None


def _loads(data: Any) -> Iterator[float]:
    """The innermost objects with counts; ``num_reqs`` is the sum where it is given."""
    if isinstance(data, dict):
        mine = {key: data[key] for key in _KEYS if isinstance(data.get(key), (int, float))}
        nested = [found for value in data.values() if isinstance(value, (list, dict)) for found in _loads(value)]
        if nested:
            yield from nested
        elif mine:
            yield float(mine.get("num_running_reqs", mine.get("num_reqs", 0)) + mine.get("num_waiting_reqs", 0))
    elif isinstance(data, list):
        for item in data:
            yield from _loads(item)


def find_path(spec: Spec) -> Optional[str]:
    """The first endpoint that answers with a count."""
    for path in PATHS:
        try:
            status, body = ask(spec, "GET", path, timeout_s=_TIMEOUT_S)
        except OSError:
            return None
        if status == 200 and count_requests(body) is not None:
            return path
    return None


class Peek:
    """Asks while the trial runs.

    Attributes:
        seen: moment and count of each answer.
    """

    def __init__(self, engine: Engine, path: str) -> None:
        self._engine = engine
        self._request = http_head(engine.spec, "GET", path, {}) + b"\r\n"
        self.seen: List[Tuple[int, float]] = []

    async def run(self) -> None:
        """Ask until the trial ends; a failing question is not asked again."""
        engine = self._engine
        parts = urlsplit(engine.spec.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        while not engine.over:
            await asyncio.sleep(_PERIOD_S)
            try:
                body = await asyncio.wait_for(self._once(parts.hostname or "", port), _TIMEOUT_S)
            except (OSError, HttpError, asyncio.TimeoutError):
                return
            count = count_requests(body)
            if count is not None:
                self.seen.append((monotonic_ns(), count))

    async def _once(self, host: str, port: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._engine.tls)
        try:
            writer.write(self._request)
            response, body = Response(), b""
            while not response.done:
                data = await reader.read(65536)
                if not data:
                    response.eof()
                    break
                body += response.feed(data)
            return body
        finally:
            writer.close()
