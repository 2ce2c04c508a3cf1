"""The warm-up that sglang runs against its own address, whoever may be listening there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import SimClock
    from .flags import ServerArgs

__all__ = ["WarmUp"]

# As sglang's: one try a second, and what it then has generated.
_POLLS = 120
_POLL_S = 1.0
_BODY = b'{"text":"The capital city of France is","sampling_params":{"temperature":0,"max_new_tokens":8}}'
_TIMEOUT_REAL_S = 5.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 (where a wildcard is reached)


class WarmUp:
    """Requests to the server's own address."""

    def __init__(self, args: ServerArgs, clock: SimClock) -> None:
        self._clock = clock
        self._new = args.version != "0.5.10"
        self._host, self._port = str(args["host"]), int(args["port"])
        self._key = args["api_key"]

    async def own(self, generate_at: float) -> None:
        """Warm up this server; what takes long in it is over at the simulated time ``generate_at``."""
        await asyncio.sleep(self._clock.real(_POLL_S))
        await self._ask("GET", "/model_info")
        await asyncio.sleep(self._clock.real_until(generate_at))
        await self._ask("POST", "/generate", _BODY)
        if self._new:
            await self._ask("POST", "/freeze_gc")

    async def somebody(self) -> bool:
        """Warm up whoever holds the address; False when in two (simulated) minutes no sglang answered there."""
        for _ in range(_POLLS):
            await asyncio.sleep(self._clock.real(_POLL_S))
            if await self._ask("GET", "/model_info") == 200:
                await self._ask("POST", "/generate", _BODY)
                return True
        return False

    async def _ask(self, method: str, path: str, body: bytes = b"") -> int | None:
        """The status of one request, or None where nobody speaks HTTP."""
        try:
            async with asyncio.timeout(_TIMEOUT_REAL_S):
                reader, writer = await asyncio.open_connection(_ANYWHERE.get(self._host, self._host), self._port)
                try:
                    key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
                    writer.write(
                        f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{key}Connection: close\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                        + body
                    )
                    words = (await reader.readline()).split()
                    await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else None
