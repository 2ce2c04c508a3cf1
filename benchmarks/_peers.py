"""How other load generators read a stream, reduced to their loops, so that all can be timed on one stream.

Each style opens, sends and reads as the tool it is named after does; what the tools do besides (tokenizing, metrics,
queues between processes) is left out, in their favour. Prints one JSON object. Run by ``benchmarks.load_engine``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import resource
import sys
from time import monotonic_ns
from typing import Any

import aiohttp  # type: ignore[import-not-found, unused-ignore]
import orjson  # type: ignore[import-not-found, unused-ignore]

from pytest_sglang_perf.agent.load._drive import peak_kib

STAMP = re.compile(rb'"sent_ns":(\d+)')
SAMPLING = {"temperature": 0, "ignore_eos": True}
BODY = {"input_ids": list(range(1000, 1128)), "stream": True}


class Stream:
    """Stamps of one request."""

    def __init__(self):
        self.sent_ns = 0
        self.stamps = []
        self.lags = []

    def saw(self, now, sent_ns):
        self.stamps.append(now)
        self.lags.append(now - sent_ns)


async def lines_orjson(_session, url, body, stream):
    """sglang's Python client: a session for each request, lines of the response, every event decoded at once."""
    async with aiohttp.ClientSession(read_bufsize=10 * 1024**2) as own:
        stream.sent_ns = monotonic_ns()
        async with own.post(url, json=body) as response:
            async for line in response.content:
                text = line.strip()
                if not text or text == b"data: [DONE]":
                    continue
                data = orjson.loads(text[6:])
                stream.saw(monotonic_ns(), data["meta_info"]["sent_ns"])


async def any_json(session, url, body, stream):
    """vLLM's and evalscope's: one session, whatever arrives, a str buffer, json."""
    buffer = ""
    stream.sent_ns = monotonic_ns()
    async with session.post(url, json=body) as response:
        async for chunk in response.content.iter_any():
            buffer += chunk.decode()
            while "\n\n" in buffer:
                message, buffer = buffer.split("\n\n", 1)
                if message != "data: [DONE]":
                    now = monotonic_ns()
                    stream.saw(now, json.loads(message[6:])["meta_info"]["sent_ns"])


async def until_deferred(session, url, body, stream):
    """aiperf's: read(1) and readuntil, stamped before parsing, parsed after the end."""
    pieces = []
    stream.sent_ns = monotonic_ns()
    async with session.post(url, json=body) as response:
        while not response.content.at_eof():
            first = await response.content.read(1)
            if not first:
                break
            now = monotonic_ns()
            pieces.append((now, first + await response.content.readuntil(b"\n\n")))
    for now, event in pieces:
        found = STAMP.search(event)
        if found:
            stream.saw(now, int(found.group(1)))


class Bare(asyncio.Protocol):
    """The least that a client of an event loop can do: a stamp for each read, and the next request at the end."""

    def __init__(self, payload, rounds, done):
        self.payload, self.rounds, self.done = payload, rounds, done
        self.stamps, self.bodies = [], []
        self.transport: Any = None

    def connection_made(self, transport):
        self.transport = transport

    def ask(self):
        self.transport.write(self.payload)

    def data_received(self, data):
        self.stamps.append(monotonic_ns())
        self.bodies.append(data)
        if data.endswith(b"\r\n0\r\n\r\n"):
            self.rounds -= 1
            if self.rounds:
                self.ask()
            else:
                self.done()


async def bare(url, streams, tokens, rounds=3):
    """Figures of the bare loop; connections are open before the clock starts, and bytes are kept unread."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(BODY | {"sampling_params": SAMPLING | {"max_new_tokens": tokens}}).encode()
    payload = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    loop, left, over = asyncio.get_running_loop(), streams, asyncio.Event()

    def done():
        nonlocal left
        left -= 1
        if not left:
            over.set()

    made = [(await loop.create_connection(lambda: Bare(payload, rounds, done), host, port))[1] for _ in range(streams)]
    before = resource.getrusage(resource.RUSAGE_SELF)
    for number, connection in enumerate(made):
        connection.ask()
        if not number % 32:
            await asyncio.sleep(0)
    await over.wait()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    lags = []
    for connection in made:
        for at, data in zip(connection.stamps, connection.bodies, strict=True):
            lags += [(at - int(sent)) / 1e6 for sent in STAMP.findall(data)]
    return {
        "lag_p50_ms": quantile(lags, 0.5),
        "lag_p99_ms": quantile(lags, 0.99),
        "cpu_us_per_event": (user + system) / len(lags) * 1e6,
        "system_share": system / (user + system),
        "events": len(lags),
    }


STYLES = {
    "sglang-style aiohttp, asyncio": (lines_orjson, False),
    "vllm-style aiohttp, asyncio": (any_json, False),
    "aiperf-style aiohttp, uvloop": (until_deferred, True),
}


async def run(style, url, streams, tokens):
    body = BODY | {"sampling_params": SAMPLING | {"max_new_tokens": tokens}}
    made = [Stream() for _ in range(streams)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        await asyncio.gather(*(style(session, url + "/generate", body, stream) for stream in made))
    return made


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else None


def main():
    name, url, streams, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    style, fast = STYLES.get(name, (None, name == "bare uvloop"))
    if fast:
        import uvloop

        uvloop.install()
    if style is None:
        gc.disable()
        print(json.dumps(asyncio.run(bare(url, streams, tokens))))
        return
    before = resource.getrusage(resource.RUSAGE_SELF)
    made = asyncio.run(run(style, url, streams, tokens))
    after = resource.getrusage(resource.RUSAGE_SELF)
    lags = [lag / 1e6 for stream in made for lag in stream.lags]
    gaps = [(b - a) / 1e6 for stream in made for a, b in zip(stream.stamps, stream.stamps[1:], strict=False)]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    outcome = {
        "lag_p50_ms": quantile(lags, 0.5),
        "lag_p99_ms": quantile(lags, 0.99),
        "ttft_p50_ms": quantile([(s.stamps[0] - s.sent_ns) / 1e6 for s in made if s.stamps], 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "cpu_us_per_event": cpu / max(1, len(lags)) * 1e6,
        "max_rss_mib": peak_kib() // 1024,
        "events": len(lags),
    }
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
