"""Before the clock starts: an empty prefix cache."""

from __future__ import annotations

import http.client
import ssl
import time
from typing import TYPE_CHECKING, Dict
from urllib.parse import urlsplit

from ._requests import http_head

if TYPE_CHECKING:
    from ._spec import Spec

_FLUSH_WAIT_S = 15.0
_PAUSE_S = 0.1


def ask(spec: Spec, method: str, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """One plain request outside the measured time: status and body.

    Raises:
        OSError: no answer.
    """
    parts = urlsplit(spec.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "", port, timeout=timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=timeout_s)
    headers: Dict[str, str] = {}
    for line in http_head(spec, method, path, {}).decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        if name.lower() == "authorization":
            headers[name] = value
    try:
        connection.request(method, parts.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from None
    finally:
        connection.close()


def flush_cache(spec: Spec) -> str:
    """Empty sglang's prefix cache; say what came of it.

    A server refuses (400) while requests run, for instance those that an earlier trial has just aborted, so
    it is asked again for a while. Servers other than sglang have no such endpoint: ``unsupported``.
    """
    until = time.monotonic() + _FLUSH_WAIT_S
    while True:
        try:
            status, _ = ask(spec, "POST", "/flush_cache")
        except OSError as error:
            return f"no answer: {error}"
        if status == 200:
            return "flushed"
        if status in (404, 405, 501):
            return "unsupported"
        if time.monotonic() > until:
            return f"refused: HTTP {status}"
        time.sleep(_PAUSE_S)
