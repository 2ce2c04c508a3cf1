"""What one line of an sglang log is made of.

sglang writes ``[time ranks] message`` without level, logger or pid; uvicorn writes its own form, with or
without the time; tracebacks, warnings, progress bars and C++ write whatever they like. Containers, Kubernetes,
Ray, journald and Slurm put their own words in front. Everything here is tolerant: a line that fits nothing is a
continuation, never an error.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Line", "LineSplitter", "parse_line", "strip_ansi"]

LONGEST_LINE = 1 << 20
"""Bytes kept of a line. The argument dump has 25 kB; a hexdump without newlines must not fill the memory."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")

# What wraps a line on its way to a file. Ray keeps the indentation after its one space, so only one is taken.
_WRAPPER = re.compile(
    r"""(?:
      \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)\ (?:std(?:out|err)\ [FP]\ )?   # CRI, docker -t
    | \([^()]*\bpid=\d+[^()]*\)\ ?                                                                  # Ray
    | \d{1,4}:\                                                                                        # srun -l
    | \[rank\d+\]:\                                                                                  # torchrun
    | [a-z0-9][\w.-]*-\d+\ +\|\                                                                     # compose
    | [A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d\ \S+\ \S+\[\d+\]:\                                     # journald
    )""",
    re.VERBOSE,
)
_RANKS = r"(?:DP|PP|ATTN_CP|MOE_DP|TP|EP|CP)\d+"
# Releases before 0.3 printed no date. Other programs that embed sglang put a level behind the stamp.
_HEAD = re.compile(
    rf"\[((?:\d{{4}}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?)((?: {_RANKS})*)\] ?"
    r"(?:\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\] |(?:DEBUG|INFO|WARNING|ERROR) +(?![ :]))?"
    r"(?:\w+\.py:\d+: )?(.*)",
    re.DOTALL,
)
_RANKS_ONLY = re.compile(rf"\[()({_RANKS}(?: {_RANKS})*)\] (.*)", re.DOTALL)
_TRACING = re.compile(r" *()()(?:DEBUG|INFO|WARN|ERROR) +[\w.:]+: (.*)", re.DOTALL)
_UVICORN = re.compile(r"(INFO|WARNING|ERROR|CRITICAL|DEBUG): +(.*)", re.DOTALL)
_ACCESS = re.compile(r'\S+ - "[A-Z]+ \S+ HTTP/[\d.]+" \d{3}')
_STAMP = re.compile(rf"\[(?:20\d\d-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?(?: {_RANKS})*\] ")
_WIDEST_WRAPPER = 400
_EXCEPTION = re.compile(r"(?:Scheduler|\w+Manager|\w+Controller|\w+Router) hit an exception: .*", re.DOTALL)
_PROGRESS = re.compile(r"\d+%(?: Completed)? ?\|")
# Lines whose content is the user's or the configuration's: words in them say nothing about the server's health.
_ARGS = ("server_args=", "Received ServerArgs", "launch_command=")
_ECHO = ("Receive: obj=", "Finish: obj=", "Receive: ", "Finish: ", "Receive generate", "in_request=")


class Line(NamedTuple):
    """One parsed line.

    ``kind`` is ``log`` (sglang's own), ``uvicorn``, ``access``, ``batch`` (Prefill or Decode statistics),
    ``args`` (the argument dump), ``echo`` (requests and generated text), ``progress`` (a tqdm bar) or ``more``
    (continuation: traceback, warning, C++, anything else).
    """

    number: int
    text: str
    message: str
    kind: str
    ranks: str
    stamp: str

    @property
    def seconds(self) -> float | None:
        """Seconds since the epoch of the line's own clock (local time of the node, taken as UTC), if it has one."""
        if not self.stamp:
            return None
        stamp = self.stamp.replace(",", ".")
        try:
            dated = stamp if "-" in stamp else f"1970-01-02 {stamp}"
            return datetime.fromisoformat(dated).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None


def strip_ansi(text: str) -> str:
    """The text without colour and cursor sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def parse_line(text: str, number: int = 0) -> Line:
    """Take a line (without its newline) apart."""
    text = strip_ansi(text).rstrip()
    if text.endswith('" 200 OK') and "INFO:     " in text[:200]:
        return Line(number, text, text, "access", "", "")  # most of any log under load
    if text.startswith(("    ", "  File ")) and "%" not in text and "] " not in text:
        return Line(number, text, text, "more", "", "")  # most of any traceback
    head = _HEAD.match(text) if text.startswith("[") else None
    if head is None:
        text, head = _unwrap(text)
    if head is None:
        return _without_head(text, number)
    stamp, ranks, message = head.groups()
    kind = "log"
    if message.startswith(("Decode batch", "Prefill batch")):
        kind = "batch"
    elif message.startswith(_ARGS):
        kind = "args"
    elif message.startswith(_ECHO):
        kind = "echo"
    else:
        uvicorn = _UVICORN.match(message)
        if uvicorn is not None:
            message = uvicorn[2]
            kind = "access" if _ACCESS.match(message) else "uvicorn"
    return Line(number, text, message, kind, ranks.strip(), stamp)


def _without_head(text: str, number: int) -> Line:
    uvicorn = _UVICORN.match(text)
    if uvicorn is not None:
        message = uvicorn[2]
        return Line(number, text, message, "access" if _ACCESS.match(message) else "uvicorn", "", "")
    damaged = _EXCEPTION.search(text) if " hit an exception: " in text else None
    if damaged is not None:  # its stamp was cut, or written in a way that we do not know
        return Line(number, text, damaged[0], "log", "", "")
    return Line(number, text, text, "progress" if "%" in text and _PROGRESS.search(text) else "more", "", "")


def _unwrap(text: str) -> tuple[str, re.Match[str] | None]:
    """The line as sglang wrote it, and its head if it has one."""
    if text.startswith('{"log":"'):
        text = _of_docker(text)
        if text.startswith("["):
            return text, _HEAD.match(text)
    for _ in range(3):  # compose around Ray around sglang is as deep as it gets
        wrapper = _WRAPPER.match(text)
        if wrapper is None:
            break
        text = text[wrapper.end() :]
        tracing = _TRACING.match(text)
        if tracing is not None:
            return text, tracing
    if "] " not in text:
        return text, None
    # Whatever else stands in front of a stamp: other loggers, launchers, a progress bar that never got its newline.
    stamp = _STAMP.search(text, 0, _WIDEST_WRAPPER)
    if stamp is not None:
        text = text[stamp.start() :]
        return text, _HEAD.match(text)
    return text, _RANKS_ONLY.match(text)


def _of_docker(text: str) -> str:
    """The line inside an entry of docker's ``json-file`` log driver, as it lies on the host's disk."""
    try:
        entry = json.loads(text)
    except ValueError:
        return text
    inner = entry.get("log") if isinstance(entry, dict) else None
    return strip_ansi(inner).rstrip() if isinstance(inner, str) else text


class LineSplitter:
    r"""Bytes in, numbered lines out, in bounded memory.

    Lines are counted by newlines, as an editor does; the updates of a progress bar (``\r``) come out as lines of
    their own under the number of the line they will end up in.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._overlong = False
        self._number = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Lines that ``data`` completes, as (number from 1, text)."""
        if self._overlong:  # the beginning of this line came out already; what is left of it goes
            newline = data.find(b"\n") + 1
            if not newline:
                return
            data, self._overlong = data[newline:], False
        end = data.rfind(b"\n") + 1
        if end:
            lines = (self._rest + data[:end]).decode("utf-8", "replace").split("\n")
            lines.pop()
            self._rest = data[end:]
            for text in lines:
                self._number += 1
                if "\r" in text:
                    yield from self._updates(text)
                else:
                    yield self._number, text
        else:
            self._rest += data
        if len(self._rest) > LONGEST_LINE:
            yield from self.close()
            self._overlong = True

    def close(self) -> Iterator[tuple[int, str]]:
        """The last line, when it has no newline."""
        rest, self._rest = self._rest, b""
        if rest:
            self._number += 1
            yield from self._updates(rest.decode("utf-8", "replace"))

    def _updates(self, text: str) -> Iterator[tuple[int, str]]:
        pieces = [piece for piece in text.split("\r") if piece.strip()]
        for piece in pieces or [""]:
            yield self._number, piece
