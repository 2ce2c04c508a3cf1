"""Following a server's log: bytes to lines, with progress bars tamed and secrets masked.

A progress bar rewrites its line with carriage returns, hundreds of times a second if it likes. Each rewrite is a
line of its own here, but only every quarter of a second, and the last one always.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional

from .redact import Redactor

__all__ = ["Line", "LineSplitter", "LogTail"]

_PROGRESS_GAP_NS = 250_000_000
_LONGEST_LINE = 1024 * 1024


class Line(NamedTuple):
    """A line of the log: the offset of its first byte, when we read it (ns), its text without the line's end."""

    offset: int
    ns: int
    text: str


class LineSplitter:
    """Cuts bytes into lines at newlines and carriage returns."""

    def __init__(self, *, progress_gap_ns: int = _PROGRESS_GAP_NS, longest: int = _LONGEST_LINE) -> None:
        self._gap_ns = progress_gap_ns
        self._longest = longest
        self._rest = b""
        self._offset = 0  # of the first byte of the rest
        self._progress: Optional[Line] = None  # a rewrite that was held back
        self._shown_ns: Optional[int] = None  # when the last rewrite was let through

    def feed(self, data: bytes, now_ns: int) -> List[Line]:
        """The lines that are complete (or due, for progress) after ``data``, in order."""
        found: List[Line] = []
        buffer = self._rest + data
        start = 0
        while True:
            end = _end_of_line(buffer, start)
            if end is None:
                break
            # A carriage return at the very end may be the first half of \r\n.
            if buffer[end : end + 1] == b"\r" and end + 1 == len(buffer):
                break
            ending = 2 if buffer[end : end + 2] == b"\r\n" else 1
            is_rewrite = ending == 1 and buffer[end : end + 1] == b"\r"
            self._complete(found, self._offset + start, buffer[start:end], now_ns, is_rewrite=is_rewrite)
            start = end + ending
        self._offset += start
        self._rest = buffer[start:]
        while len(self._rest) > self._longest:
            cut = _whole_characters(self._rest, self._longest)
            self._complete(found, self._offset, self._rest[:cut], now_ns, is_rewrite=False)
            self._offset += cut
            self._rest = self._rest[cut:]
        self._show_due(found, now_ns)
        return found

    def finish(self, now_ns: int) -> List[Line]:
        """What is left at the end of the log, ended or not."""
        found: List[Line] = []
        self._flush_progress(found)
        rest = self._rest.rstrip(b"\r")
        if rest:
            found.append(Line(self._offset, now_ns, rest.decode(errors="replace")))
        self._offset += len(self._rest)
        self._rest = b""
        return found

    def _complete(self, found: List[Line], offset: int, raw: bytes, now_ns: int, *, is_rewrite: bool) -> None:
        line = Line(offset, now_ns, raw.decode(errors="replace"))
        if is_rewrite:
            if raw:
                self._progress = line
                self._show_due(found, now_ns)
            return
        self._flush_progress(found)
        self._shown_ns = None
        found.append(line)

    def _show_due(self, found: List[Line], now_ns: int) -> None:
        if self._progress is not None and (self._shown_ns is None or now_ns - self._shown_ns >= self._gap_ns):
            self._shown_ns = now_ns
            self._flush_progress(found)

    def _flush_progress(self, found: List[Line]) -> None:
        if self._progress is not None:
            found.append(self._progress)
            self._progress = None


class LogTail:
    """Reads what a growing file has gained.

    Secrets are masked in the lines, and in the file itself as soon as they are seen there: the asterisks have the
    secret's length, and the server only ever appends.

    Args:
        path: the file; it exists.
        redactor: what to mask.
    """

    def __init__(self, path: str, redactor: Redactor) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._redactor = redactor
        self._splitter = LineSplitter()
        self._overlap = b""
        self.size = 0  # bytes read so far

    def read(self, now_ns: int, limit: int = 256 * 1024) -> List[Line]:
        """The next lines, from at most ``limit`` bytes; fewer bytes than that means the end was reached."""
        data = os.pread(self._fd, limit, self.size)
        self._mask_file(data)
        self.size += len(data)
        return self._masked(self._splitter.feed(data, now_ns))

    def drain(self, now_ns: int) -> List[Line]:
        """Everything up to the present end, and what is unfinished."""
        lines: List[Line] = []
        end = os.fstat(self._fd).st_size
        while self.size < end:
            lines.extend(self.read(now_ns))
        return lines + self._masked(self._splitter.finish(now_ns))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _masked(self, lines: List[Line]) -> List[Line]:
        if not self._redactor.longest:
            return lines
        return [line._replace(text=self._redactor.text(line.text)) for line in lines]

    def _mask_file(self, data: bytes) -> None:
        if not self._redactor.longest:
            return
        # A secret may begin in what was read before.
        window = self._overlap + data
        for start, length in self._redactor.find(window):
            os.pwrite(self._fd, b"*" * length, self.size - len(self._overlap) + start)
        self._overlap = window[-(self._redactor.longest - 1) :]


def _end_of_line(buffer: bytes, start: int) -> Optional[int]:
    newline = buffer.find(b"\n", start)
    # Bounded by the newline, or a log without carriage returns would be searched to its end for each line.
    carriage = buffer.find(b"\r", start, newline if newline >= 0 else len(buffer))
    if carriage >= 0:
        return carriage
    return newline if newline >= 0 else None


def _whole_characters(data: bytes, size: int) -> int:
    """The largest cut of at most ``size`` bytes that does not split a UTF-8 character."""
    for cut in range(size, max(0, size - 4), -1):
        if data[cut] & 0xC0 != 0x80:
            return cut
    return size
