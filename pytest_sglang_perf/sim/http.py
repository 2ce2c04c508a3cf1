"""An HTTP/1.1 server for many small streamed chunks: one protocol object a connection, one write a chunk.

It does what sglang's front end is asked to do by its clients (keep-alive, chunked answers, bodies by length
or chunked) and no more. Errors in a request's form are answered with 400 and a closed connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Application", "Connection", "Request"]

_MAX_HEAD = 64 * 1024
_MAX_BODY = 256 * 1024 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True)
class Request:
    """One request, read whole. Header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    version: str = "1.1"


class Application(Protocol):
    """What answers requests."""

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer now or later, through ``connection``."""

    def answered(self, request: Request, peer: str, status: int) -> None:
        """An answer has begun: the place for an access log."""


class _BadRequest(Exception):
    """The bytes are no request that we understand."""


class Connection(asyncio.Protocol):
    """One client connection; answers one request at a time."""

    def __init__(self, application: Application, connections: set[Connection]) -> None:
        self._application = application
        self._connections = connections
        self._buffer = b""
        self._request: Request | None = None
        self._keep = True
        self._transport: asyncio.Transport
        self._peer = ""
        #: For the application: when its last answer here was ready.
        self.done_at: float | None = None
        #: Called once when the client leaves before its answer is complete.
        self.on_close: Callable[[], None] | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._peer = f"{host}:{port}"
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._request is None:
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)
        leave, self.on_close = self.on_close, None
        if leave is not None:
            leave()

    # -- answers

    def respond(self, status: int, body: bytes, content_type: str = "application/json", headers: str = "") -> None:
        """Answer the request whole."""
        typed = f"content-type: {content_type}\r\n" if body else ""
        self._head(status, f"content-length: {len(body)}\r\n{typed}{headers}", body)
        self._done()

    def start(self, content_type: str) -> None:
        """Begin a streamed answer."""
        self._head(200, f"content-type: {content_type}\r\ntransfer-encoding: chunked\r\n")

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Send one chunk of a streamed answer; with ``end``, the last."""
        if self._transport.is_closing():
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data)
        self._transport.write(framed + b"0\r\n\r\n" if end else framed)
        if end:
            self._done()

    def close(self) -> None:
        """Drop the client, in the middle of an answer too."""
        self._transport.abort()

    def _head(self, status: int, headers: str, body: bytes = b"") -> None:
        if self._transport.is_closing() or self._request is None:
            return
        keep = "" if self._keep else "connection: close\r\n"
        head = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\nserver: uvicorn\r\n{keep}{headers}\r\n"
        self._transport.write(head.encode("latin-1") + (body if self._request.method != "HEAD" else b""))
        self._application.answered(self._request, self._peer, status)

    def _done(self) -> None:
        self._request = None
        self.on_close = None
        if not self._keep:
            self._transport.close()
        elif self._buffer:
            self._read()

    # -- requests

    def _read(self) -> None:
        try:
            request = self._parse()
        except _BadRequest as error:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self._transport.close()
            del error
            return
        if request is None:
            return
        self._request = request
        wish = request.headers.get("connection", "").lower()
        self._keep = wish == "keep-alive" if request.version == "1.0" else wish != "close"
        self._application.handle(request, self)

    def _parse(self) -> Request | None:
        """The next request in the buffer, or None while it is not complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise _BadRequest("head too long")
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _BadRequest(first)
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise _BadRequest(line)
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            found = _chunked_body(self._buffer, end + 4)
            if found is None:
                self._continue(headers)
                return None
            body, rest = found
        else:
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > _MAX_BODY:
                raise _BadRequest(f"content-length {length}")
            rest = end + 4 + int(length)
            if len(self._buffer) < rest:
                self._continue(headers)
                return None
            body = self._buffer[end + 4 : rest]
        self._buffer = self._buffer[rest:]
        path, _, query = words[1].partition("?")
        return Request(words[0], unquote(path), dict(parse_qsl(query)), headers, body, words[2][5:])

    def _continue(self, headers: dict[str, str]) -> None:
        if headers.get("expect", "").lower() == "100-continue" and self._buffer.endswith(b"\r\n\r\n"):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _chunked_body(buffer: bytes, at: int) -> tuple[bytes, int] | None:
    parts: list[bytes] = []
    while True:
        line = buffer.find(b"\r\n", at)
        if line < 0:
            return None
        try:
            size = int(buffer[at:line].split(b";")[0], 16)
        except ValueError:
            raise _BadRequest("chunk size") from None
        at = line + 2 + size + 2
        if len(buffer) < at:
            return None
        if size == 0:
            return b"".join(parts), at
        parts.append(buffer[line + 2 : at - 2])
