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
from dataclasses import replace
from typing import TYPE_CHECKING

from ._blocks import TRACEBACK, Blocks
from ._ends import asks_to_stop, death_kind, may_end
from ._incident import Death, Hit, Incident, Raised, names_exception, shorten
from .classes import Depth, crash_class, search_classes, suspicious
from .diagnosis import Diagnosis, Evidence, Verdict, explain_exit
from .lines import Line, parse_line
from .phases import PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Classifier"]

_OUTSIDE = re.compile(r"exit code -(?:15|9|2|1)\b")
_TELLING_FRAMES = (
    "server_args.py",
    "/arg_groups/",
    "validation_hook.py",
    "fullgraph",
    "fp4_quantize",
    "_symmetric_memory",
    "allreduce_fusion",
)
_UNUSUAL = re.compile(
    r"\b(?:[Ee]rror|ERROR|[Ff]ail\w*|[Ww]arn\w*|WARN|[Cc]annot|[Uu]nable|[Ii]nvalid|[Mm]issing|[Aa]bort\w*)\b"
)
_SERVED = {"ready", "running", "stopping"}
_EVIDENCE = 12


def _is_code(text: str) -> bool:
    """Frames and source lines of a traceback: they name files and exceptions, but are not what happened."""
    if not text.startswith("  "):
        return False
    if text.startswith("  File "):
        return not any(name in text for name in _TELLING_FRAMES)
    return text.lstrip().startswith("raise ")


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
        self._pending = False
        self._fatal = False

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
            if self._sick is not None and '"GET /health' in line.message and line.message.endswith("200 OK"):
                self._sick = None
        elif kind == "args":
            self._on_arguments()
        elif kind in {"log", "uvicorn", "more"}:
            self._index += 1
            self._on_text(line)

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
    ) -> Diagnosis:
        """Judge what was read so far; more lines may follow.

        Args:
            exit_code: of the server process, None while it lives or where nobody knows; negative for a signal.
            signal: the signal that ended it, where that is known instead.
            stopped_by_us: whether the end was asked for.
            dead_children: watched processes that died: ``{"pid": …, "title": …, "status": …}``.
            stalled_in: the phase that made no progress for longer than its limit.
            kernel_log: lines of dmesg since the boot began: they know of lost GPUs and out-of-memory kills.
        """
        status = -signal if exit_code is None and signal else exit_code
        found = self._judge(status, stopped_by_us, dead_children, stalled_in)
        return self._with_kernel_log(found, kernel_log) if kernel_log else found

    # -- verdicts ----------------------------------------------------------------------------------------------

    def _judge(
        self,
        status: int | None,
        stopped_by_us: bool,
        dead_children: Sequence[Mapping[str, object]],
        stalled_in: str | None,
    ) -> Diagnosis:
        incident = self._incident.copy()
        if not incident.deaths and self._uncaught is not None and self._stop is None:
            incident.add_death(self._uncaught)
        asked = self._stop is not None or stopped_by_us
        if incident.deaths and not (stopped_by_us and self._only_our_doing(incident)):
            return self._crashed(incident, status)
        if dead_children and not asked:
            return self._lost_child(incident, dead_children[0])
        if stalled_in is not None:
            return self._stalled(incident, stalled_in)
        if self._sick is not None:
            incident.add_death(self._sick)
            return self._crashed(incident, status)
        if asked:
            return self._ended_well("The server was asked to stop, and ended")
        if status:
            return self._ended(incident, status)
        return self._undisturbed(ended=status == 0)

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

    def _on_batch(self, ranks: str) -> None:
        if self._sick is None:
            self._answered.add(ranks)
            return
        self._answering.add(ranks)
        if self._answering >= self._answered:
            self._sick = None  # every rank that ever worked does so again

    def _on_arguments(self) -> None:
        self._blocks.log_line("")
        if self._incident.deaths or self._stop is not None or self._uncaught is not None:
            self._earlier.append(self.finish())
            del self._earlier[:-8]
            self.tracker.restart()
            self._incident = Incident()
            self._uncaught = self._stop = self._sick = None
            self._pending = self._fatal = False

    def _death(self, kind: str, text: str) -> Death:
        return Death(kind, self._number, self._index, self._blocks.number, self.tracker.current, shorten(text))

    def _undisturbed(self, *, ended: bool) -> Diagnosis:
        """Nothing bad is known."""
        served = not _SERVED.isdisjoint(self.tracker.started)
        if ended:
            if served:
                return self._ended_well("The server ended in an orderly way")
            return self._plain("unknown", "The process ended without an error before it was ready")
        if served:
            return self._plain("healthy", "The server came up, and nothing in the log says that it ended")
        if self._earlier:
            return self._earlier[-1]  # a new attempt is under way; what is known is how the last one ended
        return self._plain("unknown", f"The server was still coming up (phase {self.tracker.current})")

    @staticmethod
    def _only_our_doing(incident: Incident) -> bool:
        """Whether the deaths are what a stop looks like where the log missed the signal."""
        ours = {"sigquit", "killtree", "subprocess"}
        return all(
            death.kind in ours and (death.kind != "subprocess" or _OUTSIDE.search(death.text))
            for death in incident.deaths
        )

    def _with_kernel_log(self, found: Diagnosis, kernel_log: Sequence[str]) -> Diagnosis:
        """What the kernel says is deeper than any death that has no root in the server's own log."""
        if found.verdict != "crashed" or (crash_class(found.crash_class).depth is Depth.ROOT and found.evidence):
            return found
        for text in kernel_log:
            for entry, detail in search_classes(text):
                if entry.precursor and entry.depth is Depth.ROOT:
                    cause = f"{entry.cause} ({detail or shorten(text)})"
                    return replace(
                        found,
                        crash_class=entry.name,
                        cause=cause,
                        advice=entry.advice,
                        links=entry.links,
                        evidence=(*found.evidence, (0, f"dmesg: {shorten(text)}")),
                        consequences=(f"{found.crash_class}: {found.cause}", *found.consequences),
                    )
        return found

    def _crashed(self, incident: Incident, status: int | None) -> Diagnosis:
        hit = incident.cause(self._index)
        death = incident.deaths[0] if incident.deaths else None
        name = "unknown" if hit is None else hit.entry.name
        block = hit.block if hit is not None else death.block if death is not None else None
        raised = incident.raised(block)
        phase = hit.phase if hit is not None else death.phase if death is not None else self.tracker.current
        detail = "" if hit is None else hit.detail
        if name == "cuda-oom-at-startup" and phase in _SERVED:
            name = "cuda-oom-under-load"
        if name in {"scheduler-exception", "unknown"} and raised is not None:
            detail = raised.text
        evidence = self._evidence(incident, hit, raised, unusual=name in {"scheduler-exception", "unknown"})
        return self._named(name, phase, detail, evidence, self._consequences(incident, hit, status))

    def _evidence(
        self, incident: Incident, hit: Hit | None, raised: Raised | None, *, unusual: bool
    ) -> tuple[Evidence, ...]:
        lines: dict[int, str] = {}
        if hit is not None:
            lines[hit.number] = hit.text
            head = next((d for d in incident.deaths if d.block == hit.block), None)
            if head is not None:
                lines.setdefault(head.number, head.text)
        if raised is not None:
            if raised.frame is not None:
                lines.setdefault(raised.frame[0], shorten(raised.frame[1]))
            lines.setdefault(raised.number, raised.text)
        if unusual:
            for number, text in incident.unusual(self._index, 5):
                lines.setdefault(number, text)
        kinds: set[str] = set()
        for death in incident.deaths:
            if death.kind not in kinds:
                kinds.add(death.kind)
                lines.setdefault(death.number, death.text)
        kept = sorted(lines.items())
        if len(kept) > _EVIDENCE and hit is not None:
            kept = [item for item in kept if item[0] == hit.number or item in kept[: _EVIDENCE - 1]]
        return tuple(kept)

    def _consequences(self, incident: Incident, hit: Hit | None, status: int | None) -> tuple[str, ...]:
        said = []
        exceptions = sum(death.kind == "exception" for death in incident.deaths)
        if exceptions > 1:
            said.append(f"{exceptions} processes reported an exception; the first one is shown")
        if hit is not None:
            said += [f"{other.entry.name}: line {other.number}" for other in incident.followers(hit, self._index)[:6]]
        if self._earlier:
            said.append(f"{len(self._earlier)} earlier boot(s) in this log")
        if status is not None:
            said.append(explain_exit(status))
        return tuple(said)

    def _lost_child(self, incident: Incident, child: Mapping[str, object]) -> Diagnosis:
        hit = incident.cause(self._index)
        if hit is not None and hit.entry.depth < crash_class("subprocess-died").depth:
            return self._crashed(incident, None)
        status = child.get("status")
        how = explain_exit(status) if isinstance(status, int) else "exit status unknown"
        title = str(child.get("title") or "a process of the server")
        evidence = self._evidence(incident, hit, None, unusual=hit is None)
        detail = f"{title}, pid {child.get('pid')}, {how}"
        return self._named("subprocess-died", self.tracker.current, detail, evidence, ())

    def _stalled(self, incident: Incident, phase: str) -> Diagnosis:
        hit = incident.cause(self._index)
        if hit is not None and hit.entry.name in {"allreduce-fusion-hang", "scheduler-hang", "port-in-use"}:
            return self._crashed(incident, None)
        if phase in _SERVED:
            return self._named("scheduler-hang", phase, "no progress while serving", (), ())
        evidence = self._evidence(incident, hit, None, unusual=True)
        return self._named("no-progress", phase, f"phase {phase}", evidence, ())

    def _ended(self, incident: Incident, status: int) -> Diagnosis:
        """An exit status that is not zero, and no line that says why."""
        hit = incident.cause(self._index)
        raised = incident.exceptions[-1] if incident.exceptions else None
        if hit is not None and hit.entry.depth == 0:
            return self._crashed(incident, status)
        how = explain_exit(status)
        if raised is not None and self._number - raised.number < 50:
            evidence = self._evidence(incident, None, raised, unusual=True)
            return self._named("unknown", self.tracker.current, raised.text, evidence, (how,))
        name = "killed" if status in {-9, 137} else "silent-exit"
        evidence = tuple(incident.unusual(self._index, 5))
        return self._named(name, self.tracker.current, how, evidence, ())

    def _ended_well(self, cause: str) -> Diagnosis:
        evidence = () if self._stop is None or not self._stop.text else ((self._stop.number, self._stop.text),)
        return Diagnosis("stopped", "", self.tracker.current, cause, evidence=evidence, version=self.tracker.version)

    def _plain(self, verdict: Verdict, cause: str) -> Diagnosis:
        return Diagnosis(verdict, "", self.tracker.current, cause, version=self.tracker.version)

    def _named(
        self,
        name: str,
        phase: str,
        detail: str,
        evidence: tuple[Evidence, ...],
        consequences: tuple[str, ...],
    ) -> Diagnosis:
        entry = crash_class(name)
        return Diagnosis(
            "crashed",
            name,
            phase,
            f"{entry.cause} ({shorten(detail)})" if detail else entry.cause,
            entry.advice,
            entry.links,
            evidence,
            self.tracker.version,
            consequences,
        )
