"""The verdict on what a log said: a pure function of everything that was gathered."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ._incident import Death, Hit, Incident, Raised, shorten
from .classes import Depth, crash_class, search_classes
from .diagnosis import Diagnosis, Evidence, Verdict, explain_exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .phases import PhaseTracker

__all__ = ["Case", "with_kernel_log", "with_stopped"]

_OUTSIDE = re.compile(r"exit code -(?:15|9|2|1)\b")
_HANGS = {"no-progress", "scheduler-hang", "health-check-failed", "collective-timeout", "rendezvous-timeout"}
_SERVED = {"ready", "running", "stopping"}
_EVIDENCE = 12
_NEAR = 50
"""Lines before the end within which an exception counts as what ended the process."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is known when somebody asks for the verdict.

    Attributes:
        incident: deaths and candidate causes; changed by judging.
        end: index of the last line in the incident's count; ``number`` in the log's.
        tracker: the phases so far.
        stop: the line that asked the server to stop.
        sick: the failed health check that was not taken back.
        unwell: the last health check after the start was answered with 503.
        uncaught: an uncaught exception that nothing has followed.
        earlier: diagnoses of earlier boots in the same log.
    """

    incident: Incident
    end: int
    number: int
    tracker: PhaseTracker
    stop: Death | None
    sick: Death | None
    unwell: bool
    uncaught: Death | None
    earlier: tuple[Diagnosis, ...]

    def judge(
        self,
        status: int | None,
        stopped_by_us: bool,
        dead_children: Sequence[Mapping[str, object]],
        stalled_in: str | None,
    ) -> Diagnosis:
        incident = self.incident
        if not incident.deaths and self.uncaught is not None and self.stop is None:
            incident.add_death(self.uncaught)
        asked = self.stop is not None or stopped_by_us
        if incident.deaths and not (stopped_by_us and self._only_our_doing(incident)):
            return self._crashed(incident, status, dead_children)
        if dead_children and not asked:
            return self._lost_child(incident, dead_children[0])
        if stalled_in is not None:
            return self._stalled(incident, stalled_in)
        if self.sick is not None:
            incident.add_death(self.sick)
            return self._crashed(incident, status)
        if asked:
            return self._ended_well("The server was asked to stop, and ended")
        if status:
            return self._ended(incident, status)
        return self._undisturbed(ended=status == 0)

    def _undisturbed(self, *, ended: bool) -> Diagnosis:
        """Nothing bad is known."""
        served = self.tracker.served
        if ended:
            if served:
                return self._ended_well("The server ended in an orderly way")
            return self._plain("unknown", "The process ended without an error before it was ready")
        if served and self.unwell:
            return self._plain("unknown", "The server came up, but its last health check was answered with 503")
        if served:
            return self._plain("healthy", "The server came up, and nothing in the log says that it ended")
        if self.earlier and self.earlier[-1].verdict == "crashed":
            return self.earlier[-1]  # a new attempt is under way; what is known is how the last one ended
        return self._plain("unknown", f"The server was still coming up (phase {self.tracker.current})")

    @staticmethod
    def _only_our_doing(incident: Incident) -> bool:
        """Whether the deaths are what a stop looks like where the log missed the signal."""
        ours = {"sigquit", "killtree", "subprocess"}
        return all(
            death.kind in ours and (death.kind != "subprocess" or _OUTSIDE.search(death.text))
            for death in incident.deaths
        )

    def _crashed(
        self, incident: Incident, status: int | None, dead_children: Sequence[Mapping[str, object]] = ()
    ) -> Diagnosis:
        hit = incident.cause(self.end)
        death = incident.deaths[0] if incident.deaths else None
        name = "unknown" if hit is None else hit.entry.name
        block = hit.block if hit is not None else death.block if death is not None else None
        raised = incident.raised(block)
        phase = hit.phase if hit is not None else death.phase if death is not None else self.tracker.current
        detail = "" if hit is None else hit.detail
        if name == "peer-rank-lost" and dead_children:
            first = dead_children[0]
            detail = f"{first.get('title') or 'a process'}, pid {first.get('pid')}, was the first to end"
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
            for number, text in incident.unusual(self.end, 5):
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
            said += [f"{other.entry.name}: line {other.number}" for other in incident.followers(hit, self.end)[:6]]
        if self.earlier:
            said.append(f"{len(self.earlier)} earlier boot(s) in this log")
        if status is not None:
            said.append(explain_exit(status))
        return tuple(said)

    def _lost_child(self, incident: Incident, child: Mapping[str, object]) -> Diagnosis:
        hit = incident.cause(self.end)
        if hit is not None and hit.entry.depth < crash_class("subprocess-died").depth:
            return self._crashed(incident, None)
        status = child.get("status")
        how = explain_exit(status) if isinstance(status, int) else "exit status unknown"
        title = str(child.get("title") or "a process of the server")
        evidence = self._evidence(incident, hit, None, unusual=hit is None)
        detail = f"{title}, pid {child.get('pid')}, {how}"
        return self._named("subprocess-died", self.tracker.current, detail, evidence, ())

    def _stalled(self, incident: Incident, phase: str) -> Diagnosis:
        hit = incident.cause(self.end)
        if hit is not None and hit.entry.name in {"allreduce-fusion-hang", "scheduler-hang", "port-in-use"}:
            return self._crashed(incident, None)
        if phase in _SERVED:
            return self._named("scheduler-hang", phase, "no progress while serving", (), ())
        evidence = self._evidence(incident, hit, None, unusual=True)
        return self._named("no-progress", phase, f"phase {phase}", evidence, ())

    def _ended(self, incident: Incident, status: int) -> Diagnosis:
        """An exit status that is not zero, and no line that says why."""
        hit = incident.cause(self.end)
        raised = incident.exceptions[-1] if incident.exceptions else None
        if hit is not None and hit.entry.depth == 0:
            return self._crashed(incident, status)
        how = explain_exit(status)
        if raised is not None and self.number - raised.number < _NEAR:
            evidence = self._evidence(incident, None, raised, unusual=True)
            return self._named("unknown", self.tracker.current, raised.text, evidence, (how,))
        name = "killed" if status in {-9, 137} else "silent-exit"
        evidence = tuple(incident.unusual(self.end, 5))
        return self._named(name, self.tracker.current, how, evidence, ())

    def _ended_well(self, cause: str) -> Diagnosis:
        evidence = () if self.stop is None or not self.stop.text else ((self.stop.number, self.stop.text),)
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


def with_stopped(found: Diagnosis, stopped: Sequence[str]) -> Diagnosis:
    """A hang whose cause is a process that was stopped from outside."""
    if not stopped or found.crash_class not in _HANGS:
        return found
    entry = crash_class("process-stopped")
    return replace(
        found,
        crash_class=entry.name,
        cause=f"{entry.cause} ({stopped[0]})",
        advice=entry.advice,
        links=entry.links,
        consequences=(f"{found.crash_class}: {found.cause}", *found.consequences),
    )


def with_kernel_log(found: Diagnosis, kernel_log: Sequence[str]) -> Diagnosis:
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
