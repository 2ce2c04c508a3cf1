"""A server that answers each request as a test tells it to, byte for byte."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

Step = bytes | float | None
Script = Callable[[int, dict[str, Any]], list[Step]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
CLOSE: Step = None


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: Any) -> bytes:
    return chunk(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")


def native(count: int, *, finish: Any = None, **meta: Any) -> bytes:
    body = {"finish_reason": finish, "prompt_tokens": 16, "completion_tokens": count, "cached_tokens": 0} | meta
    return event({"text": "abc"[: count % 3] + "xyz", "meta_info": {"id": "1"} | body})


def answer(tokens: int, **last: Any) -> list[Step]:
    """A good answer of the native API."""
    events = [native(i + 1) for i in range(tokens - 1)]
    closing = native(tokens, finish={"type": "length", "length": tokens}, **last)
    return [HEAD, *events, closing, event(b"[DONE]") + END]


def refusal(status: str, message: str) -> list[Step]:
    body = json.dumps({"error": {"message": message}}).encode()
    return [b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        script: Script = self.server.script  # type: ignore[attr-defined]
        while True:
            request = self.rfile.readline()
            if not request:
                return
            length = 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = self.rfile.read(length)
            path = request.split()[1].decode()
            if path not in ("/generate", "/v1/completions", "/v1/chat/completions"):
                self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            with self.server.lock:  # type: ignore[attr-defined]
                number = self.server.count  # type: ignore[attr-defined]
                self.server.count += 1  # type: ignore[attr-defined]
            try:
                for step in script(number, json.loads(body)):
                    if step is None:
                        return
                    if isinstance(step, float):
                        time.sleep(step)
                    else:
                        self.wfile.write(step)
            except OSError:
                return


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the play."""


@contextmanager
def serve(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve on a free port until the block ends; gives the URL. Requests are numbered from 0."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.script = script  # type: ignore[attr-defined]
        server.count = 0  # type: ignore[attr-defined]
        server.lock = threading.Lock()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
