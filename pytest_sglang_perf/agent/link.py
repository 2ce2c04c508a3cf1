"""A pair of file descriptors to a controller, each served by a thread of its own.

Blocking reads and writes in threads leave the descriptors in blocking mode (they may be shared with a shell or
with sshd), and keep signs of life and the event loop independent of each other and of a controller that does not
read.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Callable

from .protocol import LineBuffer

if TYPE_CHECKING:
    from .outbox import Outbox

__all__ = ["Link"]


class Link:
    """Reads lines from one descriptor and writes an outbox to another, until either ends.

    Args:
        read_fd: where orders come from; owned by the link.
        write_fd: where answers go; owned by the link, may equal ``read_fd``.
        outbox: what to write.
        on_line: called on the reader's thread with this link and each line.
        on_end: called once, on either thread, when the other side is gone.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        outbox: Outbox,
        *,
        on_line: Callable[[Link, bytes], None],
        on_end: Callable[[Link], None],
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._outbox = outbox
        self._on_line = on_line
        self._on_end = on_end
        self._ended = threading.Event()
        self._once = threading.Lock()
        self.written = threading.Event()

    def start_reading(self) -> None:
        """Begin to hand on lines."""
        threading.Thread(target=self._read, name="link-read", daemon=True).start()

    def start_writing(self, last_seq: int = 0) -> int:
        """Begin to write the outbox, in place of any other link; see `Outbox.attach`."""
        missed = self._outbox.attach(self, last_seq)
        threading.Thread(target=self._write, name="link-write", daemon=True).start()
        return missed

    def end(self) -> None:
        """Stop using the descriptors. Threads that block in them end when the other side does."""
        with self._once:
            if self._ended.is_set():
                return
            self._ended.set()
        self._on_end(self)

    def write(self, data: bytes) -> None:
        """Write past the outbox, for who relays what another agent says.

        Raises:
            OSError: the other side is gone.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]

    @property
    def ended(self) -> bool:
        """Whether the other side is gone or `end` was called."""
        return self._ended.is_set()

    def _read(self) -> None:
        buffer = LineBuffer()
        try:
            while not self._ended.is_set():
                data = os.read(self._read_fd, 256 * 1024)
                if not data:
                    break
                for line in buffer.feed(data):
                    self._on_line(self, line)
        except OSError:
            pass
        self.end()

    def _write(self) -> None:
        try:
            while not self._ended.is_set():
                self.written.set()
                line = self._outbox.take(self, timeout=0.5)
                if line is None:
                    continue
                self.written.clear()
                self.write(line)
        except OSError:
            self.end()
