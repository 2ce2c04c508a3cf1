"""What waits to be told to the controller: bounded, numbered, and kept for a while to be told again.

Supervision must never wait for a controller that does not read. So putting is always instant; when too much
waits, chatter (`CHATTER`: activity, progress) is dropped first, then log lines (`LOG`: they can be fetched from
the file), and `VITAL` messages never. A message gets its ``seq`` when it is taken for sending, so numbers rise by
one without gaps, whatever was dropped; how much was dropped is told by an event of its own.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from .protocol import encode

__all__ = ["CHATTER", "LOG", "VITAL", "Outbox"]

VITAL, LOG, CHATTER = 0, 1, 2
_PENDING_BYTES = 8 * 1024 * 1024
_HISTORY_BYTES = 16 * 1024 * 1024


class Outbox:
    """A queue of messages with memory; safe to use from any thread."""

    def __init__(self, *, pending_bytes: int = _PENDING_BYTES, history_bytes: int = _HISTORY_BYTES) -> None:
        self._changed = threading.Condition()
        self._pending: Deque[Tuple[int, str, bytes]] = deque()
        self._pending_bytes = 0
        self._pending_limit = pending_bytes
        self._history: Deque[bytes] = deque()
        self._history_bytes = 0
        self._history_limit = history_bytes
        self._seq = 0  # of the newest message in history
        self._cursor = 1  # seq of the next message to send
        self._dropped: Counter[str] = Counter()
        self._sender: Optional[object] = None
        self._closed = False

    def put(self, message: Dict[str, Any], rank: int = VITAL) -> None:
        """Queue a message; never blocks."""
        line = encode(message)
        with self._changed:
            self._pending.append((rank, str(message.get("event", "answer")), line))
            self._pending_bytes += len(line)
            if self._pending_bytes > self._pending_limit:
                self._shed()
            self._changed.notify_all()

    def take(self, sender: object, timeout: float) -> Optional[bytes]:
        """The next line for ``sender`` to send, or None when there is none within ``timeout`` seconds.

        None at once when another sender has been attached since, or the box is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._sender is not sender or self._ready(), timeout)
            if self._sender is not sender:
                return None
            if self._cursor <= self._seq:
                line = self._history[self._cursor - self._seq - 1]
            elif self._dropped:
                line = self._number(encode({"event": "dropped", "events": dict(self._dropped)}))
                self._dropped.clear()
            elif self._pending:
                _, _, body = self._pending.popleft()
                self._pending_bytes -= len(body)
                line = self._number(body)
                self._changed.notify_all()
            else:
                return None
            self._cursor += 1
            return line

    def attach(self, sender: object, last_seq: int = 0) -> int:
        """Let ``sender`` alone take messages from now on, those after ``last_seq`` again.

        Returns:
            How many of those messages are no longer known.
        """
        with self._changed:
            self._sender = sender
            oldest = self._seq - len(self._history) + 1
            self._cursor = min(max(last_seq + 1, oldest), self._seq + 1)
            self._changed.notify_all()
            return max(0, oldest - last_seq - 1)

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until less is pending than twice the limit: for who makes us answer, not for who supervises."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or self._pending_bytes <= 2 * self._pending_limit, timeout
            )

    def wait_until_sent(self, timeout: float) -> bool:
        """Wait until everything was taken for sending."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or (not self._pending and self._cursor > self._seq), timeout
            )

    def close(self) -> None:
        """Wake every waiter for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ready(self) -> bool:
        return bool(self._closed or self._pending or self._dropped or self._cursor <= self._seq)

    def _number(self, body: bytes) -> bytes:
        self._seq += 1
        line = b'{"seq":%d,' % self._seq + body[1:]
        self._history.append(line)
        self._history_bytes += len(line)
        while self._history_bytes > self._history_limit and len(self._history) > 1:
            self._history_bytes -= len(self._history.popleft())
        return line

    def _shed(self) -> None:
        for rank in (CHATTER, LOG):
            kept: List[Tuple[int, str, bytes]] = []
            for item in self._pending:
                # Make real room, or every further message would search the whole queue again.
                if item[0] == rank and self._pending_bytes > self._pending_limit // 2:
                    self._pending_bytes -= len(item[2])
                    self._dropped[item[1]] += 1
                else:
                    kept.append(item)
            self._pending = deque(kept)
            if self._pending_bytes <= self._pending_limit:
                return
