"""The bench: one node under lease, the boots and trials taken on it, and what must still be taken before a stop.

A GPU node holds one server at a time. Measurements are memoised by config fingerprint, workload fingerprint and
level; before a server is stopped for another one, every level that a selected test still needs of it is measured.
So a config boots as often as its plan says, and never twice because of test order.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pytest_sglang_perf import verdict
from pytest_sglang_perf.errors import (
    ConnectionLost,
    CrashedUnderLoad,
    NodeError,
    ServerCrashed,
    SglangPerfError,
    TrialInvalid,
)
from pytest_sglang_perf.measured import BootRecord, Planned, Want
from pytest_sglang_perf.server.attached import AttachedServer
from pytest_sglang_perf.server.boot import Boot
from pytest_sglang_perf.trials import LoadEnded, TrialRecord, pool, run_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_sglang_perf.nodes.open import OpenNode
    from pytest_sglang_perf.report.live import Live
    from pytest_sglang_perf.server.evidence import NodeEvidence
    from pytest_sglang_perf.suite import ResolvedServer, ResolvedWorkload

__all__ = ["Bench"]

#: A trial that the client or its surroundings spoiled is taken again this often; a slow one never is.
INVALID_RETRIES = 2
#: Fewer trials do not show their spread, whatever precision is asked for.
LEAST_TRIALS = 3


class Bench:
    """Boots and measures on one node. Not thread-safe: tests run one after another."""

    def __init__(
        self,
        node: OpenNode,
        *,
        trials: int,
        live: Live,
        precision: float | None = None,
        environ: Mapping[str, str] | None = None,
        keep_in: Path | None = None,
        explain: Callable[[ResolvedServer, ServerCrashed, str], str] | None = None,
    ) -> None:
        self.node = node
        self.boots: dict[str, list[BootRecord]] = {}
        self.trials = trials
        self.precision = precision
        self.logs: dict[str, list[str]] = {}
        self.evidence: dict[str, NodeEvidence] = {}
        self.spent = {"boots": 0, "trials": 0, "boot_s": 0.0, "trial_s": 0.0}
        self._live = live
        self._explain = explain
        self._environ = os.environ if environ is None else environ
        self._keep_in = keep_in
        self._planned: dict[str, dict[Want, Planned]] = {}
        self._failed_boots: dict[str, tuple[str, ServerCrashed]] = {}
        self._failed_levels: dict[tuple[str, Want], tuple[str, SglangPerfError]] = {}
        self._boot: Boot | AttachedServer | None = None
        self._record: BootRecord | None = None
        self._on_stop: list[Callable[[], None]] = []

    # -- the plan -------------------------------------------------------------------------------------------

    def plan(
        self, server: ResolvedServer, workload: ResolvedWorkload, level: float, trials: int | None, *, boots: int = 1
    ) -> None:
        """Note that a selected test needs this level of this server config, in its first ``boots`` boots."""
        want = Want(workload.fingerprint, level)
        planned = self._planned.setdefault(server.fingerprint, {})
        known = planned.get(want, Planned(workload, 0, 0))
        planned[want] = Planned(workload, max(known.trials, trials or self.trials), max(known.boots, boots))

    def _outstanding(self, record: BootRecord) -> list[tuple[Want, Planned]]:
        """What the boot must still measure before it is stopped."""
        planned = self._planned.get(record.fingerprint, {})
        wanted = {want: one for want, one in planned.items() if record.number <= one.boots} | record.wanted
        return [
            (want, one)
            for want, one in wanted.items()
            if want not in record.trials and (record.fingerprint, want) not in self._failed_levels
        ]

    # -- boots ----------------------------------------------------------------------------------------------

    @property
    def current(self) -> Boot | AttachedServer | None:
        return self._boot

    @property
    def running(self) -> BootRecord | None:
        """What the server that runs now has given so far."""
        return self._record if self._boot is not None and self._boot.dead() is None else None

    def ensure(self, server: ResolvedServer, *, test: str, fresh: bool = False) -> Boot | AttachedServer:
        """Return a live boot of ``server``, starting one where needed; ``fresh`` asks for a further boot.

        Raises:
            ServerCrashed: in full for the first test that needed the server, short for the later ones.
        """
        self._check_boots(server)
        boot = self._boot
        if boot is not None and boot.server.fingerprint == server.fingerprint and not fresh and boot.dead() is None:
            return boot
        if boot is not None:
            self._finish(boot)
        return self._start(server, test)

    def _check_boots(self, server: ResolvedServer) -> None:
        """Raise, in short, where an earlier test saw that the config does not start."""
        if server.fingerprint in self._failed_boots:
            first, error = self._failed_boots[server.fingerprint]
            raise ServerCrashed(
                f'sglang server "{server.name}" did not start: {error.crash_class} (see {first})',
                crash_class=error.crash_class,
                phase=error.phase,
                server=server.name,
            )

    def _start(self, server: ResolvedServer, test: str) -> Boot | AttachedServer:
        earlier = self.boots.setdefault(server.fingerprint, [])
        number = len(earlier) + 1
        try:
            boot = self._up(server, number)
        except ServerCrashed as error:
            if earlier:
                raise
            self._failed_boots[server.fingerprint] = test, error
            if self._explain is not None and (more := self._explain(server, error, test)):
                error = ServerCrashed(  # the same crash, better told
                    f"{error}\n{more}", crash_class=error.crash_class, phase=error.phase, server=error.server
                )
            raise error from None
        record = BootRecord(
            number=number,
            server=server.name,
            fingerprint=server.fingerprint,
            started_wall_s=time.time(),
            boot_time_s=boot.boot_time_s,
            facts=boot.facts,
            server_info=boot.server_info,
        )
        earlier.append(record)
        self._boot, self._record = boot, record
        if isinstance(boot, AttachedServer):
            self._live.done(f"{server.name}: attached to {boot.url}")
        else:
            self._live.done(f"{server.name}: boot {number} ready after {boot.boot_time_s or 0:.1f} s")
        return boot

    def _up(self, server: ResolvedServer, number: int) -> Boot | AttachedServer:
        """Boot once; whatever goes wrong, nothing of it stays."""
        if self.node.attached is not None:
            attached = AttachedServer(self.node.attached, server, self._environ)
            attached.attach()
            return attached
        boot = Boot(
            self.node.client,
            server,
            f"{server.name}-{number}-{os.urandom(3).hex()}",
            environ=self._environ,
            extra_env=self.node.server_env,
            launch=self.node.launch,
            time_scale=self.node.time_scale,
            on_progress=lambda b: self._progress(b, number),
        )
        began = time.monotonic()
        self.spent["boots"] += 1
        self._live.phase(server.name, number, "spawn", 0.0)
        try:
            boot.start()
        except ServerCrashed as error:
            self._live.done(f"{server.name}: boot {number} crashed: {error.crash_class}")
            self._keep(boot)
            boot.stop()
            raise
        except BaseException:
            boot.stop(wait_s=1.0)
            raise
        finally:
            self.spent["boot_s"] += time.monotonic() - began
        return boot

    def _progress(self, boot: Boot, number: int) -> None:
        for phase, entered_s in boot.take_entered():
            self._live.phase(boot.server.name, number, phase, entered_s)
        self._live.boot(boot.server.name, number, boot.progress_text, boot.elapsed_s)

    def crashes(self, server: ResolvedServer, crash_class: str) -> bool:
        """Boot a config only to see whether it crashes in this way; for the search of a culprit."""
        if self._boot is not None:
            self._finish(self._boot)
        try:
            boot = self._up(server, 1)
        except ServerCrashed as error:
            return error.crash_class == crash_class
        boot.stop()
        return False

    def _finish(self, boot: Boot | AttachedServer) -> None:
        """Take what is still planned of the running server, then stop it."""
        server = boot.server
        record = self._record
        if record is not None:
            for want, planned in self._outstanding(record):
                if boot.dead() is not None:
                    break
                try:
                    self._measure(boot, record, want, planned)
                except (ServerCrashed, TrialInvalid) as error:
                    self._failed_levels[server.fingerprint, want] = "", error
        self.stop()

    def stop(self) -> None:
        """Stop the running server, if any, without measuring anything more."""
        boot, self._boot, self._record = self._boot, None, None
        if boot is not None:
            self._keep(boot)
        for callback in self._on_stop:
            callback()
        self._on_stop.clear()
        if boot is not None:
            boot.stop()

    def _keep(self, boot: Boot | AttachedServer) -> None:
        if isinstance(boot, AttachedServer):
            return
        self.logs[boot.boot_id] = boot.lines
        if boot.evidence is not None:
            self.evidence[boot.boot_id] = boot.evidence

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call back once when the running server is stopped."""
        self._on_stop.append(callback)

    def save_logs(self, folder: Path | None) -> None:
        """Write the log of every boot so far into ``folder``, when there is one, and what its node told of its end."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self._boot is not None:
            self._keep(self._boot)
        for boot_id, lines in self.logs.items():
            (folder / f"{boot_id}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for boot_id, evidence in self.evidence.items():
            (folder / f"{boot_id}.evidence.txt").write_text(evidence.to_text(), encoding="utf-8")

    # -- measurements ---------------------------------------------------------------------------------------

    def asked_for(self, record: BootRecord, want: Want) -> bool:
        """Whether this level was wanted in this boot before anything was measured; else a claim was undecided."""
        planned = self._planned.get(record.fingerprint, {}).get(want)
        if planned is None or want in record.asked:
            return True
        return self.measured(record.fingerprint, want).index(record) < planned.boots

    def measured(self, fingerprint: str, want: Want) -> list[BootRecord]:
        """The boots that have trials for this level."""
        return [record for record in self.boots.get(fingerprint, []) if want in record.trials]

    def measure(
        self,
        server: ResolvedServer,
        workload: ResolvedWorkload,
        level: float,
        *,
        boots: int,
        trials: int,
        test: str,
    ) -> list[BootRecord]:
        """Make sure that ``boots`` boots have measured this level, and return them.

        Raises:
            ServerCrashed, CrashedUnderLoad, TrialInvalid: in full for the first test that needed it.
            NodeError: the node is the trouble.
        """
        want = Want(workload.fingerprint, level)
        self.check(server, want, test=test)
        while len(have := self.measured(server.fingerprint, want)) < boots:
            fresh = self._record is not None and want in self._record.trials
            self.take(server, want, Planned(workload, trials, boots), test=test, fresh=fresh)
        return have

    def check(self, server: ResolvedServer, want: Want, *, test: str) -> None:
        """Raise again what made a config, or this level of it, impossible to measure, if anything did."""
        self._check_boots(server)
        failed = self._failed_levels.get((server.fingerprint, want))
        if failed is not None:
            raise self._again(server, want, *failed, test=test)

    def take(self, server: ResolvedServer, want: Want, planned: Planned, *, test: str, fresh: bool) -> BootRecord:
        """Measure a level in one boot: the one that runs, or a ``fresh`` one.

        Raises:
            ServerCrashed, CrashedUnderLoad, TrialInvalid, NodeError: as `measure`.
        """
        try:
            boot = self.ensure(server, test=test, fresh=fresh)
            record = self._record
            assert record is not None
            if want not in record.trials:
                self._measure(boot, record, want, planned)
        except (CrashedUnderLoad, TrialInvalid) as error:
            self._failed_levels[server.fingerprint, want] = test, error
            raise
        return record

    def _again(
        self, server: ResolvedServer, want: Want, first: str, error: SglangPerfError, *, test: str
    ) -> SglangPerfError:
        """The error of a level that failed before: in full for its first test, short afterwards."""
        if not first:  # it failed while the server was being finished, so no test has told it yet
            self._failed_levels[server.fingerprint, want] = test, error
            return error
        if isinstance(error, CrashedUnderLoad):
            return CrashedUnderLoad(
                f'sglang server "{server.name}" crashed under load at concurrency {want.level}: {error.crash_class} '
                f"(see {first})",
                crash_class=error.crash_class,
                server=server.name,
                level=want.level,
                requests=error.requests,
            )
        return TrialInvalid(f'"{server.name}" at concurrency {want.level} could not be measured (see {first})')

    def _measure(self, boot: Boot | AttachedServer, record: BootRecord, want: Want, planned: Planned) -> None:
        # Tests share what is measured, so the one that asks for most trials decides, whichever comes first.
        known = self._planned.get(record.fingerprint, {}).get(want, planned)
        trials = max(planned.trials, known.trials)
        taken: list[TrialRecord] = []
        while self._more(taken, trials):
            taken.append(self._one(boot, planned.workload, want.level, len(taken) + 1, trials))
        record.pooled[want] = pool(taken, time_scale=self.node.time_scale)
        record.trials[want] = taken
        record.facts = boot.facts

    def _more(self, taken: list[TrialRecord], most: int) -> bool:
        """Whether a further trial is wanted: until ``most``, or until the mean is known as well as was asked for."""
        if self.precision is None or most <= LEAST_TRIALS:
            return len(taken) < most
        values = [trial.values["output_throughput"] for trial in taken if "output_throughput" in trial.values]
        if len(values) < len(taken):
            return len(taken) < most
        return verdict.TrialPlan(self.precision, least=LEAST_TRIALS, most=most).next(values) > 0

    def _one(
        self, boot: Boot | AttachedServer, workload: ResolvedWorkload, level: float, number: int, of: int
    ) -> TrialRecord:
        label = f"{boot.server.name} at concurrency {level}: trial {number} of {of}"
        spoiled: list[str] = []
        for _attempt in range(1 + INVALID_RETRIES):
            began = time.monotonic()
            self.spent["trials"] += 1
            try:
                record = run_trial(
                    self.node,
                    boot,
                    workload,
                    level,
                    on_progress=lambda e: self._live.trial(label, e, began),  # noqa: B023
                    keep_in=self._keep_in,
                )
            except TrialInvalid as error:
                spoiled.append(str(error))
                continue
            except LoadEnded as ended:
                self._live.done(f"{label}: the server died")
                raise boot.crashed_under_load(ended.reason, level=level, requests=ended.requests) from None
            except ConnectionLost:
                raise
            except NodeError:
                if (reason := boot.dead()) is not None:
                    raise boot.crashed_under_load(reason, level=level, requests=0) from None
                raise
            finally:
                self.spent["trial_s"] += time.monotonic() - began
            record.notes.extend(f"taken again after an invalid trial: {text}" for text in spoiled)
            self._live.trial_done(label, record)
            return record
        raise TrialInvalid(
            f"{label}: invalid {len(spoiled)} times in a row; the figures would be the client's, not the server's.\n"
            + spoiled[-1]
        )
