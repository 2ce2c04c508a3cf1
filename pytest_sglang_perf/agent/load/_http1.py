"""HTTP/1.1 responses, parsed as their bytes arrive.

Only what a client of one request at a time needs, and strict where a lenient reading would shift bytes between
responses. The common case, a read that holds exactly one chunk, never comes here: see ``Connection.data_received``.
"""

from __future__ import annotations

from typing import Dict, List

HEAD, SIZE, DATA, TRAILER, LENGTH, UNTIL_EOF, DONE = range(7)
MAX_HEAD = 65536
_HEX = frozenset(b"0123456789abcdefABCDEF")

# Chunk sizes as servers wrote them. Looking one up is a third of what reading it costs, and a stream has few.
SIZES: Dict[bytes, int] = {}
_MOST_SIZES = 8192


class HttpError(Exception):
    """The peer does not speak HTTP/1.1 as we understand it; the connection must be closed."""


class Response:
    """One response. Feed it bytes until :attr:`done`.

    Attributes:
        status: the status code, 0 until the head is complete.
        headers: names in lower case; repeated ones are joined by ", ".
        between: all bytes so far belong to whole chunks, and another chunk may follow.
        done: the body is complete.
        keep_alive: the connection may carry another request once ``done``.
        excess: bytes after the end of the response; a sane server sends none before our next request.
    """

    __slots__ = ("_buf", "_left", "_state", "between", "done", "excess", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: Dict[str, str] = {}
        self.between = False
        self.done = False
        self.keep_alive = True
        self.excess = b""
        self._state = HEAD
        self._buf = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the wire and return the body bytes among them.

        Raises:
            HttpError: the bytes are not an HTTP/1.1 response.
        """
        data, self._buf = self._buf + data, b""
        body: List[bytes] = []
        while data and self._state != DONE:
            state = self._state
            if state in (DATA, LENGTH):
                data = self._take(data, body)
            elif state == UNTIL_EOF:
                body.append(data)
                data = b""
            else:
                at = data.find(b"\r\n\r\n" if state == HEAD else b"\r\n")
                if at < 0:
                    if len(data) > MAX_HEAD:
                        raise HttpError(f"a header line longer than {MAX_HEAD} bytes")
                    self._buf, data = data, b""
                elif state == HEAD:
                    rest = data[at + 4 :]
                    self._head(data[:at])
                    data = rest
                else:
                    line, data = data[:at], data[at + 2 :]
                    if state == SIZE:
                        self._size(line)
                    elif not line:  # an empty line ends the trailer
                        self._finish(b"")
        if self._state == DONE and data:
            self.excess += data
        self.between = self._state == SIZE and not self._buf
        return body[0] if len(body) == 1 else b"".join(body)

    def eof(self) -> bool:
        """The peer closed the connection; whether the response is complete all the same."""
        if self._state == UNTIL_EOF:
            self._finish(b"")
        return self.done

    def _take(self, data: bytes, body: List[bytes]) -> bytes:
        """Body bytes of a known length, and for a chunk the line end behind it."""
        left = self._left
        if self._state == LENGTH:
            body.append(data[:left])
            self._left = max(0, left - len(data))
            if not self._left:
                self._finish(b"")
            return data[left:]
        if left > 2:
            take = data[: left - 2]
            body.append(take)
            left -= len(take)
            data = data[len(take) :]
        end = data[:left] if left <= 2 else b""
        if end:
            expected = b"\r\n"[2 - left : 2 - left + len(end)]
            if end != expected:
                raise HttpError("a chunk is longer than the size it was sent with")
            left -= len(end)
            data = data[len(end) :]
        self._left = left
        if not left:
            self._state = SIZE
        return data

    def _size(self, line: bytes) -> None:
        digits = line.split(b";", 1)[0].strip()  # extensions carry nothing we use
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise HttpError(f"not a chunk size: {line[:40]!r}")
        size = int(digits, 16)
        if size:
            if digits == line and len(SIZES) < _MOST_SIZES:
                SIZES[digits] = size
            self._left = size + 2
            self._state = DATA
        else:
            self._state = TRAILER

    def _head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isdigit():
            raise HttpError(f"not an HTTP/1.1 status line: {lines[0][:80]!r}")
        headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise HttpError(f"not a header line: {line[:80]!r}")
            name, value = name.strip().lower(), value.strip()
            headers[name] = headers[name] + ", " + value if name in headers else value
        status = int(code)
        if 100 <= status < 200:  # an interim response: the real head follows
            return
        self.status = status
        self.headers = headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        if headers.get("transfer-encoding", "").lower().endswith("chunked"):
            self._state = SIZE
        elif "content-length" in headers:
            length = headers["content-length"]
            if not length.isdigit():
                raise HttpError(f"not a content length: {length[:40]!r}")
            self._left = int(length)
            self._state = LENGTH
            if not self._left:
                self._finish(b"")
        elif status in (204, 304):
            self._finish(b"")
        else:
            self.keep_alive = False
            self._state = UNTIL_EOF

    def _finish(self, excess: bytes) -> None:
        self._state = DONE
        self.done = True
        self.excess = excess
