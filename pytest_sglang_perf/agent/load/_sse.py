"""Server-sent events, split from body bytes as the WHATWG standard says.

Bytes stay bytes: an event is decoded only once it is whole, so a character split between two reads is whole again.
"""

from __future__ import annotations

import re
from typing import List

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Turns body bytes into the ``data`` payloads of complete events.

    Attributes:
        clean: the next byte begins an event.
    """

    __slots__ = ("_buf", "_data", "_first", "clean")

    def __init__(self) -> None:
        self._buf = b""
        self._data: List[bytes] = []
        self._first = True
        self.clean = False

    def feed(self, body: bytes) -> List[bytes]:
        """Take body bytes; return the payload of each event that they complete."""
        # The common case: one whole event of one line, ended by bare newlines.
        alone = self.clean and body.startswith(b"data: ") and body.find(b"\n") == len(body) - 2
        if alone and body.endswith(b"\n") and b"\r" not in body:
            return [body[6:-2]]
        return self._slow(body)

    def finish(self) -> List[bytes]:
        """The body ended. A last event without its blank line counts: its server closed early, not we."""
        events = self._slow(b"\n\n") if self._buf or self._data else []
        self._buf = b""
        return events

    def _slow(self, body: bytes) -> List[bytes]:
        buf = self._buf + body
        if self._first:
            if len(buf) < 3 and b"\xef\xbb\xbf".startswith(buf):
                self._buf = buf
                return []
            self._first = False
            if buf.startswith(b"\xef\xbb\xbf"):
                buf = buf[3:]
        events: List[bytes] = []
        *lines, self._buf = buf.split(b"\n") if b"\r" not in buf else _lines(buf)
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                value = line[5:]
                self._data.append(value[1:] if value.startswith(b" ") else value)
            # A comment, an id, an event name or a retry time: nothing that we count.
        self.clean = not self._buf and not self._data
        return events


def _lines(buf: bytes) -> List[bytes]:
    """The lines of ``buf`` by any of the three line ends, and at last what is no whole line yet."""
    lines: List[bytes] = []
    position = 0
    for match in _LINE_END.finditer(buf):
        end = match.end()
        if match.group() == b"\r" and end == len(buf):
            break  # its newline may follow in the next read
        lines.append(buf[position : match.start()])
        position = end
    return [*lines, buf[position:]]
