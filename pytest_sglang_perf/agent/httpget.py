"""A GET request on the event loop, for probes: one connection, one answer, one deadline for all of it."""

from __future__ import annotations

import asyncio
from typing import Dict, NamedTuple, Optional, Tuple

__all__ = ["Response", "get"]

_LIMIT = 16 * 1024 * 1024


class Response(NamedTuple):
    """Status code and body."""

    status: int
    body: bytes


async def get(host: str, port: int, path: str, *, timeout: float, headers: Optional[Dict[str, str]] = None) -> Response:
    """Fetch ``http://host:port/path``.

    Raises:
        OSError: no connection (`ConnectionRefusedError`), or it broke.
        asyncio.TimeoutError: no complete answer within ``timeout`` seconds.
        ValueError: the answer is not HTTP.
    """
    return await asyncio.wait_for(_get(host, port, path, headers or {}), timeout)


async def _get(host: str, port: int, path: str, headers: Dict[str, str]) -> Response:
    reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT)
    try:
        lines = [f"GET {path} HTTP/1.1", f"Host: {_bracketed(host)}:{port}", "Accept: */*", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        await writer.drain()
        status, fields = await _head(reader)
        if fields.get("transfer-encoding", "").lower() == "chunked":
            body = await _chunks(reader)
        elif "content-length" in fields:
            body = await reader.readexactly(min(int(fields["content-length"]), _LIMIT))
        else:
            body = await reader.read(_LIMIT)
        return Response(status, body)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError(f"the answer ended after {len(error.partial)} bytes") from None
    except asyncio.LimitOverrunError as error:
        raise ValueError(str(error)) from None
    finally:
        # Not waited for: what matters has been read, and a peer that does not close would hold us up.
        writer.close()


async def _head(reader: asyncio.StreamReader) -> Tuple[int, Dict[str, str]]:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *rest = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise ValueError(f"not an HTTP answer: {first[:80]!r}")
    fields = {}
    for line in rest:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return int(words[1]), fields


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    size = 0
    while size < _LIMIT:
        line = await reader.readuntil(b"\r\n")
        length = int(line.split(b";")[0], 16)
        if length == 0:
            break
        part = await reader.readexactly(length + 2)
        parts.append(part[:-2])
        size += length
    return b"".join(parts)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
