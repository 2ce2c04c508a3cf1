"""A server that knows what it did: an sglang-like HTTP server that stamps every event with the time it was sent.

It computes nothing. Each stream gets its first token a set time after its request and the others at a set rate, and
every event carries ``sent_ns``, CLOCK_MONOTONIC of the moment before the write. A client on the same machine can
therefore tell how late it was, and every throughput and latency is known in advance. One plain epoll loop, no
asyncio: it must be faster than the clients that it judges.

``python -m pytest_sglang_perf.agent.load.stamped --rate 20 --ttft-ms 75`` prints ``{"port": …}`` and serves.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import signal
import socket
import sys
from time import monotonic_ns
from typing import Any, Dict, List, Optional, Tuple

_SPIN_NS = 1_500_000
_BACKLOG = 8192


class Shape:
    """How the server behaves.

    ``period_ns`` lies between events of a stream, ``ttft_ns`` before the first. ``step_ns`` above 0 makes all events
    wait for the next multiple of it, as continuous batching does: every stream emits at the same moments.
    ``chunk`` tokens share an event; ``max_running`` requests run at once, others queue; ``pad`` bytes of text.
    """

    def __init__(
        self, *, rate: float, ttft_ms: float, burst: bool = False, chunk: int = 1, max_running: int = 0, pad: int = 200
    ) -> None:
        self.period_ns = int(1e9 * chunk / rate)
        self.ttft_ns = int(ttft_ms * 1e6)
        self.step_ns = self.period_ns if burst else 0
        self.chunk = chunk
        self.max_running = max_running
        self.text = ("the quick brown fox jumps over the lazy dog " * (pad // 44 + 1))[:pad]


class Client:
    """A connection: what it has sent, what it still has to get, and the request it waits for."""

    __slots__ = (
        "api",
        "asked",
        "cached",
        "inbox",
        "outbox",
        "prompt",
        "received_ns",
        "serial",
        "sock",
        "tokens",
        "usage",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.outbox = b""
        self.serial = 0  # of the request being answered; 0 while idle
        self.api = ""
        self.usage = False
        self.asked = self.tokens = self.prompt = self.cached = 0
        self.received_ns = 0


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class StampedServer:
    """Serves until :meth:`stop`; one thread, one loop."""

    def __init__(self, shape: Shape, host: str = "127.0.0.1", port: int = 0) -> None:
        self.shape = shape
        self.running = 0
        self.served = 0
        self._stop = False
        self._serial = 0
        self._due: List[Tuple[int, int, Client]] = []
        self._queue: List[Tuple[int, Client]] = []
        self._clients: Dict[int, Client] = {}
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, port))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self.port: int = self._listener.getsockname()[1]

    def stop(self, *_: Any) -> None:
        """End :meth:`serve` at its next turn."""
        self._stop = True

    def close(self) -> None:
        """Let go of the sockets without serving (the parent of a forked server)."""
        self._listener.close()
        self._poll.close()

    def serve(self, parent: int = 0) -> None:
        """Serve until told to stop, or until ``parent`` (a process id) is not our parent any more."""
        due = self._due
        listener = self._listener.fileno()
        while not self._stop and (not parent or os.getppid() == parent):
            timeout = 0.1
            if due:
                ahead = due[0][0] - monotonic_ns()
                # epoll waits in whole milliseconds, rounded up: the last stretch is spun
                timeout = 0.0 if ahead < _SPIN_NS else min(0.1, (ahead - _SPIN_NS) / 1e9)
            for fd, event in self._poll.poll(timeout, 1024):
                if fd == listener:
                    self._accept()
                else:
                    self._ready(self._clients[fd], event)
            now = monotonic_ns()
            while due and due[0][0] <= now:
                at, serial, client = heapq.heappop(due)
                if client.serial == serial:
                    self._emit(client, at)
        for client in list(self._clients.values()):
            client.sock.close()
        self.close()

    def _accept(self) -> None:
        for _ in range(256):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[sock.fileno()] = Client(sock)
            self._poll.register(sock, select.EPOLLIN)

    def _ready(self, client: Client, event: int) -> None:
        if event & select.EPOLLOUT:
            self._write(client, b"")
        if not event & ~select.EPOLLOUT:
            return
        try:
            data = client.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.inbox += data
        end = client.inbox.find(b"\r\n\r\n")
        if end < 0:
            return
        head = client.inbox[:end].decode("latin-1")
        length = 0
        for line in head.split("\r\n")[1:]:
            if line.lower().startswith("content-length:"):
                length = int(line[15:])
        if len(client.inbox) < end + 4 + length:
            return
        body, client.inbox = client.inbox[end + 4 : end + 4 + length], client.inbox[end + 4 + length :]
        self._request(client, head.split(" ", 2)[1], body)

    def _drop(self, client: Client) -> None:
        self._poll.unregister(client.sock)
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if client.serial:
            self._leave(client)

    def _leave(self, client: Client) -> None:
        """A request is over; the next in the queue takes its place."""
        if client.tokens >= 0:
            self.running -= 1
        client.serial = 0
        while self._queue and self._room():
            serial, waiting = self._queue.pop(0)
            if waiting.serial == serial:
                self._begin(waiting)

    def _room(self) -> bool:
        return not self.shape.max_running or self.running < self.shape.max_running

    def _request(self, client: Client, path: str, body: bytes) -> None:
        path = path.split("?", maxsplit=1)[0]
        apis = {"/generate": "generate", "/v1/completions": "completions", "/v1/chat/completions": "chat"}
        if path not in apis:
            self._plain(client, path)
            return
        order = json.loads(body)
        client.received_ns = monotonic_ns()
        client.api = apis[path]
        if client.api == "generate":
            client.prompt = len(order["input_ids"])
            client.asked = order["sampling_params"]["max_new_tokens"]
            client.usage = True
        else:
            prompt = order["prompt"] if client.api == "completions" else order["messages"][-1]["content"].split()
            client.prompt = len(prompt)
            client.asked = order["max_tokens"]
            client.usage = bool((order.get("stream_options") or {}).get("continuous_usage_stats"))
        self._serial += 1
        client.serial = self._serial
        client.tokens = -1
        if self._room():
            self._begin(client)
        else:
            self._queue.append((client.serial, client))

    def _begin(self, client: Client) -> None:
        self.running += 1
        client.tokens = 0
        heapq.heappush(self._due, (self._step(monotonic_ns() + self.shape.ttft_ns), client.serial, client))

    def _step(self, due_ns: int) -> int:
        step = self.shape.step_ns
        return -(-due_ns // step) * step if step else due_ns

    def _emit(self, client: Client, due_ns: int) -> None:
        first = not client.tokens
        client.tokens = min(client.asked, client.tokens + self.shape.chunk)
        last = client.tokens >= client.asked
        now = monotonic_ns()
        data = _event(client, self.shape.text, now, last=last)
        wire = b"%x\r\n%s\r\n" % (len(data), data)
        if first:
            wire = _HEAD + wire
        if last:
            wire += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
            self.served += 1
            self._leave(client)
        else:
            heapq.heappush(self._due, (due_ns + self.shape.period_ns, client.serial, client))
        self._write(client, wire)

    def _write(self, client: Client, wire: bytes) -> None:
        wire = client.outbox + wire
        try:
            sent = client.sock.send(wire)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the read side will notice
        waiting = bool(client.outbox)
        client.outbox = wire[sent:]
        if bool(client.outbox) != waiting:
            self._poll.modify(client.sock, select.EPOLLIN | (select.EPOLLOUT if client.outbox else 0))

    def _plain(self, client: Client, path: str) -> None:
        status, kind, body = "200 OK", "application/json", b"{}"
        if path == "/metrics":
            kind = "text/plain"
            body = b'sglang:num_running_reqs{tp_rank="0"} %d.0\n' % self.running
            body += b'sglang:num_queue_reqs{tp_rank="0"} %d.0\n' % len(self._queue)
        elif path == "/server_info":
            body = json.dumps({"model_path": "stamped", "version": "stamped", "served": self.served}).encode()
        elif path == "/v1/models":
            body = b'{"object":"list","data":[{"id":"stamped","object":"model"}]}'
        elif path == "/flush_cache" and self.running:
            status = "400 Bad Request"
        elif path not in ("/health", "/ready", "/flush_cache", "/model_info"):
            status = "404 Not Found"
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._write(client, head.encode() + body)


def _event(client: Client, text: str, now: int, *, last: bool) -> bytes:
    if client.api == "generate":
        finish = b'{"type":"length","length":%d}' % client.asked if last else b"null"
        extra = b',"e2e_latency":%.9f' % ((now - client.received_ns) / 1e9) if last else b""
        return (
            b'data: {"text":"%s","meta_info":{"id":"%d","finish_reason":%s,"prompt_tokens":%d,'
            b'"weight_version":"default","completion_tokens":%d,"cached_tokens":%d,"sent_ns":%d%s}}\n\n'
            % (text.encode(), client.serial, finish, client.prompt, client.tokens, client.cached, now, extra)
        )
    finish = b'"length"' if last else b"null"
    usage = b"null"
    if client.usage or last:
        usage = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            client.prompt,
            client.prompt + client.tokens,
            client.tokens,
        )
    content = b'"text":"%s"' if client.api == "completions" else b'"delta":{"content":"%s"}'
    return b'data: {"id":"%d","choices":[{"index":0,%s,"finish_reason":%s}],"usage":%s,"sent_ns":%d}\n\n' % (
        client.serial,
        content % text.encode(),
        finish,
        usage,
        now,
    )


def main(argv: Optional[List[str]] = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="stamped", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream")
    parser.add_argument("--ttft-ms", type=float, default=75.0, help="from the request to its first token")
    parser.add_argument("--burst", action="store_true", help="all streams emit at the same moments")
    parser.add_argument("--chunk", type=int, default=1, help="tokens an event")
    parser.add_argument("--max-running", type=int, default=0, help="requests at once; others queue (0: all)")
    parser.add_argument("--pad", type=int, default=200, help="bytes of text an event")
    options = parser.parse_args(argv)
    shape = Shape(
        rate=options.rate,
        ttft_ms=options.ttft_ms,
        burst=options.burst,
        chunk=options.chunk,
        max_running=options.max_running,
        pad=options.pad,
    )
    server = StampedServer(shape, options.host, options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
    _raise_file_limit()
    print(json.dumps({"port": server.port}), flush=True)
    server.serve()
    return 0


def _raise_file_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
