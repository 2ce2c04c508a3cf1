"""A small closed-loop client of its own, so that the simulated node is not judged by our load engine.

It speaks just enough HTTP, keeps one connection a slot, and counts tokens by the server's ``completion_tokens``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

_COUNT = re.compile(rb'"completion_tokens":(\d+)')
_SMI = ["--query-gpu=index,power.draw", "--format=csv,noheader,nounits", "-lms", "20"]


@dataclass
class Trial:
    """What one level showed, in simulated seconds except where it says real."""

    level: int
    tokens_per_s: float
    ttft_p50_s: float
    watts: float | None
    window_real_s: float
    total_real_s: float
    chunks_per_real_s: float
    server_cpu_share: float


@dataclass
class _Loop:
    port: int
    prompt: int
    output: int
    random: random.Random
    chunks: list[tuple[float, int]] = field(default_factory=list)
    first: list[tuple[float, float]] = field(default_factory=list)
    done: int = 0
    stopped: bool = False
    marks: dict[int, asyncio.Future[float]] = field(default_factory=dict)

    async def slot(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        while not self.stopped:
            await self._request(reader, writer)
            self.done += 1
            if self.done in self.marks:
                self.marks[self.done].set_result(time.monotonic())
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ids = [self.random.randrange(1000, 30000) for _ in range(self.prompt)]
        params = {"max_new_tokens": self.output, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": ids, "sampling_params": params, "stream": True}).encode()
        sent = time.monotonic()
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        count = 0
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            now = time.monotonic()
            if found := _COUNT.search(data):
                if count == 0:
                    self.first.append((sent, now - sent))
                self.chunks.append((now, int(found[1]) - count))
                count = int(found[1])
        await reader.readexactly(2)
        assert count == self.output

    def when(self, requests: int) -> asyncio.Future[float]:
        """The time at which so many requests are done."""
        return self.marks.setdefault(requests, asyncio.get_running_loop().create_future())


async def closed_loop(node, server, level: int, waves: float, *, prompt=128, output=128) -> Trial:
    """Keep ``level`` requests in flight; measure over ``waves`` times as many that finish after the first wave."""
    scale = server.json("/server_info")["simulated"]["time_scale"]
    loop = _Loop(server.port, prompt, output, random.Random(level))
    watts: list[tuple[float, float]] = []
    smi = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi", *_SMI, env=node.environment, stdout=-1
    )
    reading = asyncio.create_task(_read_watts(smi, watts))
    began, cpu = time.monotonic(), _cpu_s(server.process.pid)
    marks = loop.when(level), loop.when(level + round(waves * level))
    slots = [asyncio.create_task(loop.slot()) for _ in range(level)]
    first, last = await asyncio.gather(*marks)
    loop.stopped = True
    await asyncio.gather(*slots)
    total, cpu = time.monotonic() - began, _cpu_s(server.process.pid) - cpu
    smi.kill()
    await asyncio.gather(smi.wait(), reading)
    inside = [value for when, value in watts if first < when <= last]
    ttft = [value for sent, value in loop.first if first < sent <= last] or [float("nan")]
    return Trial(
        level=level,
        tokens_per_s=sum(n for when, n in loop.chunks if first < when <= last) / (last - first) / scale,
        ttft_p50_s=statistics.median(ttft) * scale,
        watts=statistics.fmean(inside) if inside else None,
        window_real_s=last - first,
        total_real_s=total,
        chunks_per_real_s=len(loop.chunks) / total,
        server_cpu_share=cpu / total,
    )


async def _read_watts(smi: asyncio.subprocess.Process, watts: list[tuple[float, float]]) -> None:
    assert smi.stdout is not None
    while line := await smi.stdout.readline():
        watts.append((time.monotonic(), float(line.split(b",")[1])))


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100
