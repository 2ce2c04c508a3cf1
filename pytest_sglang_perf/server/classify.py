"""From the lines of a log to the cause of a crash.

A line that fits a crash class proves nothing by itself: libraries complain and fall back, users' texts are
echoed, and healthy boots print tracebacks. So two things are kept apart. *Deaths* are the few lines that say that
a process of the server ended or will. *Hits* are lines that fit a class; they are only asked for a cause once
there was a death (or an exit status, a dead child, a stall). Of the hits the deepest wins (out of memory before
"graph capture failed" before "subprocess died"), then the first traceback (eight ranks repeat it), then the
order of the classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._blocks import TRACEBACK, Blocks
from ._ends import asks_to_stop, death_kind, may_end
from ._incident import Death, Hit, Incident, Raised, names_exception, shorten
from ._verdicts import Case, with_kernel_log, with_stopped
from .classes import search_classes, suspicious
from .lines import Line, parse_line
from .phases import PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .diagnosis import Diagnosis

__all__ = ["Classifier"]

_REMEMBERED = 20_000
_UNUSUAL = re.compile(
    r"\b(?:[Ee]rror|ERROR|[Ff]ail\w*|[Ww]arn\w*|WARN|[Cc]annot|[Uu]nable|[Ii]nvalid|[Mm]issing|[Aa]bort\w*)\b"
)


def _is_code(text: str) -> bool:
    """Frames and source lines of a traceback: they name files and exceptions, but are not what happened."""
    if not text.startswith("  "):
        return False
    if text.startswith(("  File ", "    ")):
        return not _is_telling(text)
    return text.lstrip().startswith("raise ")


def _is_telling(text: str) -> bool:
    """What makes a frame, a source line or a line of a py-spy dump worth a look all the same."""
    return (
        "server_args.py" in text
        or "/arg_groups/" in text
        or "validation_hook.py" in text
        or "fullgraph" in text
        or "fp4_quantize" in text
        or "_symmetric_memory" in text
        or "allreduce_fusion" in text
        or "assert" in text
        or "rror: " in text
        or "fatal" in text
    )


def _says_more(text: str) -> bool:
    return _is_telling(text) or "[--" in text  # the usage text tells the release


class Classifier:
    """Reads a log line by line and says, at any moment, how the server is.

    Args:
        tracker: the phase tracker of the same boot, which the caller feeds with each line *before* this; without
            one the classifier follows the phases itself.
    """

    def __init__(self, tracker: PhaseTracker | None = None) -> None:
        self.tracker = PhaseTracker() if tracker is None else tracker
        self._follows = tracker is None
        self._incident = Incident()
        self._earlier: list[Diagnosis] = []
        self._index = 0
        self._number = 0
        self._blocks = Blocks()
        self._uncaught: Death | None = None
        self._stop: Death | None = None
        self._sick: Death | None = None
        self._answered: set[str] = set()
        self._answering: set[str] = set()
        self._unwell = False
        self._pending = False
        self._fatal = False
        self._plain: dict[str, bool] = {}

    def feed(self, text: str, number: int | None = None, ns: int | None = None) -> None:
        """Take the next line; ``number`` counts from 1 by itself unless given."""
        self._number = self._number + 1 if number is None else number
        line = parse_line(text, self._number)
        if self._follows:
            self.tracker.feed_line(line, ns)
        self.feed_line(line)

    def feed_line(self, line: Line) -> None:
        """Take the next line, already parsed and already fed to the tracker."""
        self._number = line.number
        kind = line.kind
        if kind == "batch":
            self._on_batch(line.ranks)
        elif kind == "access":
            if '"GET /health' in line.message:
                self._on_health(line.message)
        elif kind == "args":
            self._on_arguments()
        elif kind in {"log", "uvicorn", "more"}:
            self._index += 1
            if not line.text.startswith("    ") or _is_telling(line.text):
                self._on_text(line)
            if kind == "more":
                self._remember(line)

    def feed_again(self, text: str, number: int) -> bool:
        """Take a line of a traceback that came before and says nothing by itself, at little cost.

        Returns:
            False for any other line, which is to be parsed and fed as usual. Most of a noisy log repeats a few
            tracebacks.
        """
        is_frame = self._plain.get(text)
        if is_frame is None or self.tracker.current == "spawn":
            return False
        self._number = number
        self._index += 1
        if is_frame:
            self._blocks.frame_line(text, number)
        return True

    def _remember(self, line: Line) -> None:
        text = line.text
        if len(self._plain) < _REMEMBERED and text.startswith(("    ", "  File ")) and not _says_more(text):
            self._plain[text] = text[2] == "F"

    def note_stop(self) -> None:
        """From here on the server ends because we ask it to."""
        if self._stop is None and not self._incident.deaths:
            self._stop = self._death("stop", "")

    @property
    def fatal(self) -> Diagnosis | None:
        """The diagnosis as soon as the log proves that this server ends or is useless; never on a mere warning."""
        return self.finish() if self._fatal else None

    def finish(
        self,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        stopped_by_us: bool = False,
        dead_children: Sequence[Mapping[str, object]] = (),
        stalled_in: str | None = None,
        kernel_log: Sequence[str] = (),
        stopped: Sequence[str] = (),
    ) -> Diagnosis:
        """Judge what was read so far; more lines may follow.

        Args:
            exit_code: of the server process, None while it lives or where nobody knows; negative for a signal.
            signal: the signal that ended it, where that is known instead.
            stopped_by_us: whether the end was asked for.
            dead_children: watched processes that died: ``{"pid": …, "title": …, "status": …}``.
            stalled_in: the phase that made no progress for longer than its limit.
            kernel_log: lines of dmesg since the boot began: they know of lost GPUs and out-of-memory kills.
            stopped: processes that cannot run because somebody stopped them, in words.
        """
        status = -signal if exit_code is None and signal else exit_code
        case = Case(
            incident=self._incident.copy(),
            end=self._index,
            number=self._number,
            tracker=self.tracker,
            stop=self._stop,
            sick=self._sick,
            unwell=self._unwell,
            uncaught=self._uncaught,
            earlier=tuple(self._earlier),
        )
        found = case.judge(status, stopped_by_us, dead_children, stalled_in)
        return with_kernel_log(with_stopped(found, stopped), kernel_log)

    # -- lines -------------------------------------------------------------------------------------------------

    def _on_text(self, line: Line) -> None:
        text, blocks = line.message, self._blocks
        if line.kind == "more":
            blocks.continuation(text, self._number)
        else:
            blocks.log_line(text)
            if self._pending:
                self._pending, self._fatal = False, True
            if self._uncaught is not None and "kill_process_tree" not in text:
                self._uncaught = None  # whoever raised it, somebody goes on
        if blocks.ignored or _is_code(text):
            return
        if line.kind == "more" and text[:1].isalpha() and names_exception(text):
            self._incident.exceptions.append(Raised(self._number, blocks.number, shorten(text), blocks.frame))
            if blocks.uncaught:
                self._uncaught = self._death("uncaught", text)
        if may_end(text):
            self._look_for_end(line)
        if suspicious(text):
            self._look_for_cause(line)

    def _look_for_end(self, line: Line) -> None:
        text = line.message
        if asks_to_stop(text):
            if self._stop is None and not self._incident.deaths:
                self._stop = self._death("stop", line.text)
            return
        kind = death_kind(text)
        if kind is None or self._stop is not None:
            return
        self._incident.add_death(self._death(kind, line.text))
        if kind == "exception":
            self._pending = True  # its traceback comes now, and the cause with it
            if not text.endswith(TRACEBACK):
                head = text.partition("exception: ")[2]
                self._incident.exceptions.append(Raised(self._number, self._blocks.number, shorten(head), None))
        else:
            self._fatal = True

    def _look_for_cause(self, line: Line) -> None:
        text = line.message
        found = False
        for entry, detail in search_classes(text):
            found = True
            if entry.name == "health-check-failed":
                self._sick = self._death("health", line.text)
                self._answering = set()
            self._incident.add_hit(
                Hit(
                    entry,
                    detail,
                    self._number,
                    self._index,
                    self._blocks.number,
                    self.tracker.current,
                    shorten(line.text),
                )
            )
        if found or (_UNUSUAL.search(text) and not text.startswith("  ")):
            self._incident.add_unusual(self._number, self._index, shorten(line.text))

    def _on_health(self, message: str) -> None:
        if message.endswith("200 OK"):
            self._sick, self._unwell = None, False
        elif " 503 " in message and self.tracker.served:
            self._unwell = True

    def _on_batch(self, ranks: str) -> None:
        if self._sick is None:
            self._answered.add(ranks)
            return
        self._answering.add(ranks)
        if self._answering >= self._answered:
            self._sick = None  # every rank that ever worked does so again

    def _on_arguments(self) -> None:
        self._blocks.log_line("")
        ended = self._incident.deaths or self._stop is not None or self._uncaught is not None
        if ended or self.tracker.served:
            self._earlier.append(self.finish())
            del self._earlier[:-8]
            self.tracker.restart()
            self._incident = Incident()
            self._uncaught = self._stop = self._sick = None
            self._pending = self._fatal = self._unwell = False

    def _death(self, kind: str, text: str) -> Death:
        return Death(kind, self._number, self._index, self._blocks.number, self.tracker.current, shorten(text))
