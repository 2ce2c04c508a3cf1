"""Plain HTTP requests outside the measured time."""

from __future__ import annotations

import http.client
import os
import ssl
from typing import TYPE_CHECKING, Dict, Optional, Tuple
from urllib.parse import urlsplit

from ._spec import SpecError

if TYPE_CHECKING:
    from ._spec import Spec


def authorization(spec: Spec) -> Dict[str, str]:
    """The header that carries the server's key, if it has one. The key itself never leaves the environment.

    Raises:
        SpecError: the key's environment variable is not set.
    """
    if not spec.api_key_env:
        return {}
    key = os.environ.get(spec.api_key_env)
    if not key:
        raise SpecError(f"api_key_env: the environment variable {spec.api_key_env} is not set here")
    return {"Authorization": "Bearer " + key}


def ask(
    spec: Spec, method: str, path: str, *, body: Optional[bytes] = None, timeout_s: float = 10.0
) -> Tuple[int, bytes]:
    """One request on a connection of its own: status and body.

    Raises:
        OSError: no answer.
        SpecError: the key's environment variable is not set.
    """
    parts = urlsplit(spec.url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    headers = authorization(spec)
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, parts.path.rstrip("/") + path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from None
    finally:
        connection.close()
