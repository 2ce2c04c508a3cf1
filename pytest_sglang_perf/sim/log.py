"""sglang's log: its own lines and uvicorn's on standard error, access lines on standard output."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flags import ServerArgs
    from .http import Request

__all__ = ["Log"]

_PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_PHRASES |= {500: "Internal Server Error", 503: "Service Unavailable"}


class Log:
    """Writes lines as sglang ``args.version`` does. Times are the machine's, not simulated."""

    def __init__(self, args: ServerArgs) -> None:
        self._old = args.version == "0.5.10"
        self._ranks = int(args["tp_size"] or 1)
        self._expert = int(args["ep_size"] or 1) > 1
        self._quiet = str(args["log_level"] or "info").lower() not in {"info", "debug"}
        self._quiet_http = str(args["log_level_http"] or args["log_level"] or "info").lower() not in {
            "info",
            "debug",
        }
        self._stamp = ""
        self._stamp_second = -1

    @property
    def ranks(self) -> range:
        """The tensor-parallel ranks."""
        return range(self._ranks)

    def rank(self, rank: int) -> str:
        """The tag of a rank, as in ``[2026-02-12 11:38:29 TP0 EP0]``."""
        tag = f" TP{rank}" if self._ranks > 1 else ""
        return tag + (f" EP{rank}" if self._expert else "")

    def say(self, message: str, *, rank: int | None = None) -> None:
        """An informative line; ``--log-level warning`` removes it."""
        if not self._quiet:
            self.shout(message, rank=rank)

    def shout(self, message: str, *, rank: int | None = None) -> None:
        """A line that is always written. The level does not show: sglang's format has none."""
        tag = "" if rank is None else self.rank(rank)
        sys.stderr.write(f"[{self._now()}{tag}] {message}\n")
        sys.stderr.flush()

    def every_rank(self, message: str) -> None:
        """The same line from every rank."""
        if not self._quiet:
            now = self._now()
            sys.stderr.write("".join(f"[{now}{self.rank(rank)}] {message}\n" for rank in self.ranks))
            sys.stderr.flush()

    def uvicorn(self, message: str, level: str = "INFO") -> None:
        """A line of uvicorn's own."""
        if level != "INFO" or not self._quiet_http:
            self.shout(f"{level + ':':<9} {message}")

    def raw(self, text: str) -> None:
        """Text without a stamp: warnings, progress bars, tracebacks."""
        sys.stderr.write(text)
        sys.stderr.flush()

    def access(self, request: Request, peer: str, status: int) -> None:
        """An access line. Buffered: many come at once, and :meth:`flush` follows within a moment."""
        if not self._quiet_http:
            path = request.path
            if request.query:
                path += "?" + "&".join(f"{key}={value}" for key, value in request.query.items())
            phrase = _PHRASES.get(status, "")
            sys.stdout.write(
                f'[{self._now()}] INFO:     {peer} - "{request.method} {path} HTTP/1.1" {status} {phrase}\n'
            )

    @staticmethod
    def flush() -> None:
        """Write access lines that are still buffered."""
        sys.stdout.flush()

    def _now(self) -> str:
        second = int(time.time())
        if second != self._stamp_second:
            self._stamp_second = second
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return self._stamp

    # -- Observer of the scheduler

    def prefill_batch(
        self,
        *,
        sequences: int,
        tokens: int,
        cached: int,
        usage: float,
        running: int,
        queued: int,
        pending: int,
        throughput: float,
    ) -> None:
        """What one prefill pass takes. Throughput is per simulated second, since the pass before."""
        more = "" if self._old else f"#pending-token: {pending}, "
        self.say(
            f"Prefill batch, #new-seq: {sequences}, #new-token: {tokens}, #cached-token: {cached}, "
            f"token usage: {usage:.2f}, #running-req: {running}, #queue-req: {queued}, {more}"
            f"cuda graph: False, input throughput (token/s): {throughput:.2f}",
            rank=0,
        )

    def decode_batch(
        self, *, running: int, tokens: int, usage: float, graph: bool, throughput: float, queued: int
    ) -> None:
        """What decoding looks like, every ``--decode-log-interval`` steps; per simulated second."""
        self.say(
            f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, "
            f"cuda graph: {graph}, gen throughput (token/s): {throughput:.2f}, #queue-req: {queued}",
            rank=0,
        )

    def retracted(self, *, requests: int, tokens: int) -> None:
        """The KV cache was full."""
        self.shout(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {requests}, "
            f"#new_tokens_gained: {tokens}, #new_token_ratio: 0.7000 -> 1.0000",
            rank=0,
        )
