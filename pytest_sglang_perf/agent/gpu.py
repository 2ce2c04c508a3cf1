"""Readings of the GPUs over a trial: one long-lived ``nvidia-smi`` and a thread that stamps what it says.

A reading is stamped with CLOCK_MONOTONIC when it arrives, before it is parsed. So that a trial's window can be
interpolated at both ends, `Sampler.start` returns after a reading of every GPU, and `Sampler.stop` waits for one
more. Whatever is wrong with nvidia-smi becomes a text; the trial goes on without power.
"""

from __future__ import annotations

import math
import os
import re
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, List, Optional, TextIO, Tuple

from .command import await_end, kill_group, missing, spawn

if TYPE_CHECKING:
    import subprocess

__all__ = ["COLUMNS", "Sampler"]

# Columns of the samples file after mono_ns, and what nvidia-smi calls them, the newest name first.
_FIELDS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("index", ("index",)),
    ("power_w", ("power.draw",)),
    ("power_instant_w", ("power.draw.instant",)),
    ("utilization_pct", ("utilization.gpu",)),
    ("memory_used_mib", ("memory.used",)),
    ("memory_total_mib", ("memory.total",)),
    ("power_limit_w", ("power.limit", "enforced.power.limit")),
    ("temperature_c", ("temperature.gpu",)),
    ("clock_sm_mhz", ("clocks.sm", "clocks.current.sm")),
    ("throttle_hex", ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
)
_COUNT = "count"  # asked for besides: how many GPUs make a full reading
COLUMNS = ("mono_ns", *(column for column, _ in _FIELDS))

_REJECTED = re.compile(r'Field "([^"]+)" is not a valid field')
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_MAX_LINE = 64 * 1024


class _Query:
    """The fields asked for; those that this nvidia-smi does not know give way to older names, or to nothing."""

    def __init__(self) -> None:
        self._names: Dict[str, List[str]] = {column: list(names) for column, names in _FIELDS}
        self._names[_COUNT] = [_COUNT]

    def arguments(self, period_ms: int) -> List[str]:
        fields = ",".join(names[0] for names in self._names.values() if names)
        return [f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", str(period_ms)]

    def without(self, field: str) -> bool:
        """Give up a field; False when it was not asked for, or nothing works without it."""
        for column, names in self._names.items():
            if names and names[0] == field:
                del names[0]
                return bool(names) or column != "index"
        return False

    def parse(self, line: str) -> Optional[Dict[str, str]]:
        """One reading by column, "" for what is not available; None when the line is none."""
        asked = [column for column, names in self._names.items() if names]
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(asked) or not cells[asked.index("index")].isdecimal():
            return None
        return {column: _value(column, cell) for column, cell in zip(asked, cells)}


def _value(column: str, cell: str) -> str:
    if column == "throttle_hex":
        return cell if _HEX.match(cell) else ""
    # [N/A], [Not Supported], [Unknown Error], [GPU requires reset] and whatever a driver says next.
    try:
        return cell if math.isfinite(float(cell)) else ""
    except ValueError:
        return ""


class _Rounds:
    """Knows when every GPU has been read: all that there are, or until the first one comes again."""

    def __init__(self) -> None:
        self.newest: Dict[str, int] = {}
        self.complete = False

    def add(self, stamp_ns: int, index: str, count: str) -> None:
        again = index in self.newest
        self.newest[index] = stamp_ns
        self.complete = self.complete or again or len(self.newest) >= float(count or "inf")

    def complete_since(self, stamp_ns: int) -> bool:
        return bool(self.newest) and all(newest >= stamp_ns for newest in self.newest.values())


class Sampler:
    """Samples until stopped; `start` and `stop` block (each bounded), so call them off an event loop's thread.

    Args:
        argv: the nvidia-smi command, as a list of words; ``-i`` may be among them.
        period_ms: time between readings.
        path: the file to write, without a header: `COLUMNS`, separated by commas, "" for what is not available.
        first_reading_s: how long `start` waits for the first reading.
    """

    def __init__(self, argv: List[str], period_ms: int, path: str, *, first_reading_s: float = 5.0) -> None:
        self._argv = list(argv)
        self._period_ms = max(1, int(period_ms))
        self._path = path
        self._first_reading_s = first_reading_s
        self._changed = threading.Condition()
        self._rounds = _Rounds()
        self._troubles: List[str] = []
        self._sayings: Deque[str] = deque(maxlen=3)
        self._finished = False
        self._thread: Optional[threading.Thread] = None
        self._stopping = False
        self._wake_read = self._wake_write = -1

    def start(self) -> Optional[str]:
        """Start sampling, and return when every GPU has been read once.

        Returns:
            None, or why there will be no readings, in words; nothing runs then.
        """
        absent = missing(self._argv)
        if absent is not None:
            self._troubles.append(absent)
            return absent
        deadline = time.monotonic() + self._first_reading_s
        self._wake_read, self._wake_write = os.pipe()
        # nvidia-smi dies with the thread that started it, so that is the one that lives as long as it does.
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._rounds.complete or self._ended(), deadline - time.monotonic())
            if self._rounds.newest and not self._ended():
                return None
            if not self._ended():
                self._note(f"nvidia-smi gave no reading within {self._first_reading_s:g} s")
        return self._end(deadline + 5.0)

    def stop(self, timeout: Optional[float] = None) -> Optional[str]:
        """Wait for one more reading of every GPU, then end.

        Args:
            timeout: how many seconds to wait for it; 2 periods and 1 s by default. Ending takes up to 5 s more
                where nvidia-smi hangs in the driver.

        Returns:
            None, or what was wrong with the readings since the start, in words.
        """
        now_ns = time.monotonic_ns()
        patience_s = 2 * self._period_ms / 1000 + 1.0 if timeout is None else timeout
        deadline = time.monotonic() + patience_s
        with self._changed:
            if self._thread is not None and not self._ended():
                bracketed = self._changed.wait_for(
                    lambda: self._rounds.complete_since(now_ns) or self._ended(), deadline - time.monotonic()
                )
                if not bracketed:
                    late = [index for index, newest in self._rounds.newest.items() if newest < now_ns]
                    self._note(f"no reading of GPU {', '.join(late)} after the end of the trial")
        return self._end(deadline + 5.0)

    def _end(self, deadline: float) -> Optional[str]:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            os.close(self._wake_write)
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                self._note("nvidia-smi cannot be ended")
        with self._changed:
            said = [f"nvidia-smi says: {' / '.join(self._sayings)}"] if self._sayings else []
            return "; ".join(self._troubles + said) or None

    def _ended(self) -> bool:
        return self._thread is None or not self._thread.is_alive() or self._finished

    def _note(self, trouble: str) -> None:
        with self._changed:
            self._troubles.append(trouble)

    # -- on the sampler's own thread

    def _sample(self) -> None:
        query = _Query()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                while self._read_all(query, file):
                    pass
        except OSError as error:
            self._note(f"GPU sampling ended: {error}")
        finally:
            os.close(self._wake_read)
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _read_all(self, query: _Query, file: TextIO) -> bool:
        """Run nvidia-smi once; True when it should be asked again for less."""
        process = spawn(self._argv + query.arguments(self._period_ms), merge=True)
        try:
            again = self._read_from(process, query, file)
            if not (again or self._stopping):
                ended = await_end(process, 1.0)
                status = kill_group(process)
                how = f"ended with status {status}" if ended else "closed its output"
                self._note(f"nvidia-smi {how}" + (" during the trial" if self._rounds.newest else ""))
            return again
        finally:
            kill_group(process)

    def _read_from(self, process: subprocess.Popen[bytes], query: _Query, file: TextIO) -> bool:
        assert process.stdout is not None
        source = process.stdout.fileno()
        poller = select.poll()
        poller.register(source, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        rest, rest_ns = b"", 0
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            if self._wake_read in ready:
                return False
            data = os.read(source, _MAX_LINE)
            stamp_ns = time.monotonic_ns()
            *lines, tail = (rest + data).split(b"\n")
            # A line that comes in pieces was read off the GPU before its first piece came.
            stamps = [rest_ns if rest and not number else stamp_ns for number in range(len(lines) + 1)]
            rest, rest_ns = tail[:_MAX_LINE], stamps[-1]
            readings = []
            for line_ns, line in zip(stamps, lines if data else [*lines, tail]):
                text = line.decode("utf-8", "replace").strip()
                reading = query.parse(text)
                rejected = _REJECTED.search(text)
                if reading is not None:
                    readings.append((line_ns, reading))
                elif rejected is not None and query.without(rejected.group(1)):
                    return True
                elif text:
                    self._say(text[:300])
            self._take(readings, file)
            if not data:
                return False

    def _take(self, readings: List[Tuple[int, Dict[str, str]]], file: TextIO) -> None:
        file.writelines(
            ",".join([str(stamp_ns), *(reading.get(column, "") for column, _ in _FIELDS)]) + "\n"
            for stamp_ns, reading in readings
        )
        file.flush()
        # Only now: who waits for a reading may look for it in the file.
        with self._changed:
            for stamp_ns, reading in readings:
                self._rounds.add(stamp_ns, reading["index"], reading.get(_COUNT, ""))
            self._changed.notify_all()

    def _say(self, text: str) -> None:
        with self._changed:
            if text not in self._sayings:
                self._sayings.append(text)
