"""One boot of a server config: started through the agent, followed by its log, ready by proof or crashed by proof.

The agent judges readiness on the node (rule 1: our process, our listener, healthy, reporting what was launched).
This side reads the log as it streams: phases, facts, and the cause when it dies (rules 2 and 3).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.agent.pulse import is_sign_of_life
from pytest_sglang_perf.errors import AgentError, ConnectionLost, CrashedUnderLoad, ServerCrashed
from pytest_sglang_perf.server.classes import crash_class
from pytest_sglang_perf.server.classify import Classifier
from pytest_sglang_perf.server.crash import crash_report
from pytest_sglang_perf.server.diagnosis import Diagnosis
from pytest_sglang_perf.server.evidence import NodeEvidence, ask
from pytest_sglang_perf.server.facts import BootFacts
from pytest_sglang_perf.server.lines import parse_line
from pytest_sglang_perf.server.phases import PhaseTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_sglang_perf.nodes.client import AgentClient
    from pytest_sglang_perf.suite import ResolvedServer

__all__ = ["Boot"]

#: A fatal log line is followed by the exit within seconds; after this long we stop waiting for it and say so.
FATAL_GRACE_S = 8.0
#: A dead child leaves the parent alive for a minute (detokenizer) or for ever (a data-parallel rank).
CHILD_GRACE_S = 2.0
#: No boot takes longer; what hangs is found much earlier by the limit of its phase.
CEILING_S = 3 * 3600.0
#: A /health probe generates a token, behind whatever the server is busy with.
PROBE_TIMEOUT_S = 30.0
#: Of a log that says nothing about its end, so many last lines are shown.
LAST_WORDS = 3
#: sglang's own drain takes 5 s.
STOP_S = 10.0


class Boot:
    """A server config on a node, from spawn to exit.

    Attributes:
        url: base URL on the node, such as ``http://127.0.0.1:30000``; known once started.
        evidence: what the node told about its death or hang; None while it is well.
        boot_time_s: from spawn to readiness, in seconds of the node's clock times ``time_scale``.
    """

    def __init__(
        self,
        client: AgentClient,
        server: ResolvedServer,
        boot_id: str,
        *,
        environ: Mapping[str, str],
        extra_env: Mapping[str, str] | None = None,
        launch: Sequence[str] | None = None,
        time_scale: float = 1.0,
        on_progress: Callable[[Boot], None] | None = None,
        log_limit: int = 200_000,
    ) -> None:
        self.server = server
        self.boot_id = boot_id
        self.url = ""
        self.port = 0
        self.log_path = ""
        self.server_info: dict[str, Any] = {}
        self.boot_time_s: float | None = None
        self.crash: ServerCrashed | None = None
        self.evidence: NodeEvidence | None = None
        self.time_scale = time_scale
        self.tracker = PhaseTracker(start_ns=client.now_ns())
        self.classifier = Classifier(self.tracker)
        self._facts = BootFacts()
        self.lines: list[str] = []
        self._client = client
        self._secrets = {name: environ[name] for name in server.secret_env if name in environ}
        self._secret_files = server.secret_files(environ)
        self._extra_env = dict(extra_env or {})
        self._launch = launch
        self._on_progress = on_progress
        self._log_limit = log_limit
        self._line_number = 0
        self._entered: list[tuple[str, float]] = []
        self._stop_s = STOP_S if server.stop_s is None else server.stop_s
        self._changed = threading.Condition()
        self._start_ns = 0
        self._last_line = time.monotonic()
        self._fatal_since: float | None = None
        self._dead_children: list[dict[str, Any]] = []
        self._child_since: float | None = None
        self._exit: dict[str, Any] | None = None
        self._ready: dict[str, Any] | None = None
        self._stopping = False
        self._ordered = False  # the stop, by us
        self._swept = False
        self._probe = ""
        self._unsubscribe = client.subscribe(self._on_event)

    # -- events, on the client's reader thread ------------------------------------------------------------

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.get("boot") != self.boot_id:
            return
        kind = event["event"]
        with self._changed:
            if kind == "boot.log":
                self._take_lines(event["lines"])
            elif kind == "boot.probe":
                self._probe = f"{event['state']}: {event.get('detail') or ''}".rstrip(": ")
            elif kind == "boot.ready":
                self._ready = event
            elif kind == "boot.child_died":
                self._dead_children.append(event)
                self._child_since = self._child_since or time.monotonic()
            elif kind == "boot.exit":
                self._exit = event
            elif kind == "boot.swept":
                self._swept = True
            self._changed.notify_all()

    def _take_lines(self, lines: list[list[Any]]) -> None:
        self._last_line = time.monotonic()
        for _offset, ns, text in lines:
            self._line_number += 1
            if len(self.lines) < self._log_limit:
                self.lines.append(text)
            line = parse_line(text, self._line_number)
            for change in self.tracker.feed_line(line, ns):
                # That it is ready is told once, with the time at which the probes saw it.
                if change.edge == "start" and change.phase not in {"ready", "running"}:
                    self._entered.append((change.phase, ns / 1e9))
            self.classifier.feed_line(line)
            self._facts.feed_line(line)
        if self.classifier.fatal is not None and self._fatal_since is None:
            self._fatal_since = time.monotonic()

    # -- the life of a boot ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn the server and wait until it is ready.

        Raises:
            ServerCrashed: with phase, class, advice and the decisive lines.
            AgentError: the agent could not even spawn it.
        """
        try:
            answer = self._client.request(
                "boot.start",
                timeout=60.0,
                boot=self.boot_id,
                argv=self.server.argv("{host}", "{port}", launch=self._launch),
                env={**self.server.env, **self._extra_env, **self._secrets},
                secret_env=sorted(self._secrets),
                secret_files=self._secret_files,
                cwd=self.server.cwd,
                host=self.server.host,
                port=self.server.port,
                expect=self.server.expect,
                probe_timeout_s=self.server.probe_timeout_s or PROBE_TIMEOUT_S,
                stop_s=self._stop_s,
            )
        except AgentError as error:
            self._swept = True  # nothing was launched, so there is nothing to wait for
            self._unsubscribe()
            if error.kind == "port_in_use":
                raise self._fail(self._port_in_use(error)) from None
            raise
        self.port = int(answer["port"])
        self.url = f"http://{answer['host']}:{self.port}"
        self.log_path = str(answer["log_path"])
        self._start_ns = int(answer["start_ns"])
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        last_shown = 0.0
        ceiling = self.server.boot_deadline_s or CEILING_S
        with self._changed:
            while True:
                now = time.monotonic()
                self._raise_if_lost()
                if self._ready is not None and self._exit is None:
                    self._became_ready(self._ready)
                    return
                if (reason := self._is_dead(now)) is not None:
                    break
                if now - began > ceiling:
                    reason = f"no progress: not ready after {ceiling:.0f} s"
                    break
                if self._on_progress is not None and (now - last_shown > 0.1 or self._entered):
                    last_shown = now
                    self._on_progress(self)
                self._changed.wait(0.1)
        self._ask_node()
        self._kill()
        raise self._fail(self.diagnose(reason))

    def _became_ready(self, event: dict[str, Any]) -> None:
        self.server_info = dict(event.get("server_info") or {})
        self.boot_time_s = (int(event["ns"]) - self._start_ns) / 1e9 * self.time_scale
        self.tracker.enter("running", ns=int(event["ns"]))

    def _is_dead(self, now: float) -> str | None:
        """Why the server counts as dead now, or None. Called with the lock held."""
        if self.crash is not None:
            return "crashed before"  # what has frozen may take its time to go, and is of no use meanwhile
        if self._exit is not None:
            return "exited"
        if self._child_since is not None and now - self._child_since > CHILD_GRACE_S:
            return "a child died"
        if self._fatal_since is not None and now - self._fatal_since > FATAL_GRACE_S:
            return "a fatal line was logged"
        limit = self.server.boot_limits_s.get(self.tracker.current) or self.tracker.limit_s
        if self._ready is None and limit is not None and now - self._last_line > limit:
            return f"no progress in phase {self.tracker.current} for {limit:.0f} s"
        return None

    def _raise_if_lost(self) -> None:
        lost = self._client.lost
        if lost is not None:
            raise ConnectionLost(f"{self._client.describe()}: {lost}. The agent stops the server on the node by itself")
        if self._exit is not None and self._exit.get("after_stop") and not self._ordered:
            raise ConnectionLost(
                f"{self._client.describe()}: the agent has stopped the server by itself, because it did not hear from "
                "here in time. Was this process stopped, or the machine suspended? SGLANG_PERF_TTL gives it more time"
            )

    def dead(self) -> str | None:
        """Why the server is dead, or None while it lives. Cheap; asked between and during trials."""
        with self._changed:
            self._raise_if_lost()
            return self._is_dead(time.monotonic())

    @property
    def elapsed_s(self) -> float:
        """Seconds from the spawn to readiness, or until now; by the node's clock, times ``time_scale``."""
        if self.boot_time_s is not None:
            return self.boot_time_s
        return (self._client.now_ns() - self._start_ns) / 1e9 * self.time_scale if self._start_ns else 0.0

    def take_entered(self) -> list[tuple[str, float]]:
        """The phases entered since the last call, each with the seconds since the spawn by the node's own stamps."""
        entered, self._entered = self._entered, []
        return [(phase, max(0.0, at_s - self._start_ns / 1e9) * self.time_scale) for phase, at_s in entered]

    @property
    def progress_text(self) -> str:
        """One line for the terminal: phase, progress in it, elapsed time."""
        progress = self.tracker.progress
        if progress is None:
            return self.tracker.current
        return f"{self.tracker.current} {progress.done}/{progress.total} {progress.what}"

    @property
    def facts(self) -> dict[str, Any]:
        """What the boot told about itself: capacity, chosen backends, features disabled silently, phase times."""
        phases = {name: spent * self.time_scale for name, spent in self.tracker.durations.items()}
        return {**self._facts, "phases": phases, "boot_time": self.boot_time_s}

    def order(self) -> dict[str, Any]:
        """What the load engine's order says of this server."""
        return {"url": self.url}

    def request_server_info(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """Ask the running server for /server_info, through the agent."""
        answer = self._client.request("boot.server_info", timeout=timeout + 5, boot=self.boot_id, timeout_s=timeout)
        return dict(answer["server_info"])

    def stop(self, *, wait_s: float = 30.0) -> None:
        """Order the stop and wait until nothing of it is left, for at most ``wait_s`` seconds."""
        with self._changed:
            if self._stopping and self._swept:
                return
            self._stopping = True
            self.classifier.note_stop()
        self._kill()
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not self._swept and time.monotonic() < deadline and self._client.lost is None:
                self._changed.wait(0.2)
        self._unsubscribe()

    def _kill(self) -> None:
        self._ordered = True
        try:
            self._client.request("boot.stop", timeout=10.0, boot=self.boot_id, term_s=self._stop_s)
        except (AgentError, ConnectionLost):
            pass  # already gone, or the agent stops it by itself

    # -- the cause ------------------------------------------------------------------------------------------

    def diagnose(self, reason: str) -> Diagnosis:
        """What the log, the exit and the children say together."""
        code = self._exit.get("code") if self._exit else None
        return self.classifier.finish(
            exit_code=code,
            stopped_by_us=bool(self._exit and self._exit.get("after_stop") and self._stopping),
            dead_children=self._dead_children,
            stalled_in=self.tracker.current if reason.startswith("no progress") else None,
            kernel_log=self.evidence.kernel_log if self.evidence is not None else (),
            stopped=self.evidence.stopped if self.evidence is not None else (),
        )

    def _ask_node(self) -> None:
        """Have the node tell what the log cannot. Not under the lock: the answer comes on the reader's thread."""
        with self._changed:
            hangs = self._exit is None and not self._dead_children
        self.evidence = ask(self._client, self.boot_id, stacks=hangs)

    def crashed_under_load(self, reason: str, *, level: float, requests: int) -> CrashedUnderLoad:
        """The error for a server that died while a trial ran."""
        self._ask_node()
        with self._changed:
            diagnosis = self.diagnose(reason)
        self._kill()
        diagnosis = self._in_silence(diagnosis, reason)
        text, crash_class = crash_report(self, diagnosis, level=level, requests=requests)
        error = CrashedUnderLoad(text, crash_class=crash_class, server=self.server.name, level=level, requests=requests)
        self.crash = error
        return error

    def _in_silence(self, diagnosis: Diagnosis, reason: str) -> Diagnosis:
        """What kills without a word leaves the last words as evidence, and how its silence was noticed."""
        cause = f"{diagnosis.cause}; {reason}" if reason.startswith("no progress") else diagnosis.cause
        said = ((number, self.lines[number - 1]) for number in range(len(self.lines), 0, -1))
        last = list(islice((line for line in said if line[1].strip() and is_sign_of_life(line[1])), LAST_WORDS))
        return replace(diagnosis, cause=cause, evidence=diagnosis.evidence or tuple(reversed(last)))

    def _fail(self, diagnosis: Diagnosis) -> ServerCrashed:
        text, crash_class = crash_report(self, diagnosis)
        self.crash = ServerCrashed(text, crash_class=crash_class, phase=str(diagnosis.phase), server=self.server.name)
        return self.crash

    def _port_in_use(self, error: AgentError) -> Diagnosis:
        """The probe before the launch found the port taken: minutes of loading a model are saved."""
        entry = crash_class("port-in-use")
        return Diagnosis("crashed", entry.name, "spawn", f"{error}", entry.advice, entry.links)

    @property
    def children(self) -> tuple[str, ...]:
        """Titles of the child processes at readiness; empty before it."""
        children = (self._ready or {}).get("children") or ()
        return tuple(str(child["title"]) for child in children)

    @property
    def exit_event(self) -> dict[str, Any] | None:
        return self._exit

    @property
    def dead_children(self) -> list[dict[str, Any]]:
        return list(self._dead_children)
