"""One pytest session: the suite, the plan, the bench, and for each test what it may measure and claim.

pytest itself is not imported here; the plugin hands over what it knows.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import __version__, metrics, outlook, verdict
from pytest_sglang_perf.baselines import BaselineStore, NodeClass, node_class, url_class
from pytest_sglang_perf.bench import Bench, Want
from pytest_sglang_perf.canary import CanaryRun
from pytest_sglang_perf.culprit import CulpritSearch
from pytest_sglang_perf.errors import (
    AgentError,
    LeaseUnavailable,
    NotComparable,
    NotDeclared,
    ServerCrashed,
    SessionVoid,
    SuiteError,
)
from pytest_sglang_perf.measurement import Budget, Measurement, Side, TestJudge, absence, no_baseline, trial_values
from pytest_sglang_perf.nodes.open import OpenNode, open_node
from pytest_sglang_perf.report.decisions import KEPT
from pytest_sglang_perf.suite import SimNode, Suite, UrlNode
from pytest_sglang_perf.unsettled import unsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_sglang_perf.bench import BootRecord
    from pytest_sglang_perf.claims import Claim
    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.options import Options
    from pytest_sglang_perf.report.live import Live
    from pytest_sglang_perf.suite import ResolvedServer, ResolvedWorkload

__all__ = ["PerfSession", "TestPerf"]


#: On top of the wait for a lease: what dead sessions left is ended, and the driver is asked who computes.
LEASE_EXTRA_S = 90.0


class PerfSession:
    """Opens the node on first use and keeps everything that tests share."""

    def __init__(
        self,
        suite: Suite,
        options: Options,
        declarations: Sequence[Declaration],
        *,
        live: Live,
        baselines: Path,
        environ: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> None:
        self.suite = suite
        self.options = options
        self.declarations = list(declarations)
        self.environ = os.environ if environ is None else environ
        self.run = run or uuid.uuid4().hex
        self.started_wall_s = time.time()
        self.node_name = node_name(suite, options, self.environ)
        self.node_config = suite.node(self.node_name)
        self.store = BaselineStore(baselines)
        self.node_class: NodeClass | None = None
        self.facts: dict[str, Any] = {}
        self._live = live
        self._bench: Bench | None = None
        self._stored: dict[str, Any] = {}
        self._canary: CanaryRun | None = None
        self._last: tuple[dict[str, Any], list[dict[str, Any]]] | None = None
        self._expected: outlook.Expected | None = None
        self._forwards: dict[int, tuple[int, contextlib.ExitStack]] = {}

    # -- before anything runs -------------------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        return isinstance(self.node_config, SimNode)

    @property
    def trials(self) -> int:
        return self.options.trials or self.suite.trials

    def budget(self, declaration: Declaration) -> Budget:
        """Boots at first and at most for one test: option, then mark, then suite, then one."""
        if isinstance(self.node_config, UrlNode):
            return Budget(1, 1)  # the one boot that is there
        first, most = self.options.boots or declaration.boots or self.suite.boots
        return Budget(first, most)

    def check_node(self) -> None:
        """See before anything runs that the node can do what the selected tests ask for.

        Raises:
            SuiteError: they need several servers, and the node is one server's URL.
        """
        if not isinstance(self.node_config, UrlNode):
            return
        names = sorted(self.plan())
        if len({self.suite.server(name).fingerprint for name in names}) > 1:
            raise SuiteError(
                f'node "{self.node_name}" is one running server at {self.node_config.url}, and the selected tests need '
                f"{len(names)}: {', '.join(names)} (controls included). Select those of the config that runs there: "
                "-k, or a node where servers can be booted: --sglang-node"
            )

    def plan(self) -> dict[str, dict[tuple[str, float], int]]:
        """Server config -> {(workload, level): trials} over all selected tests."""
        planned: dict[str, dict[tuple[str, float], int]] = {}
        for declaration in self.declarations:
            for server in filter(None, (declaration.server, declaration.control)):
                levels = planned.setdefault(server, {})
                if declaration.measures:
                    for level in declaration.levels:
                        key = declaration.workload, level
                        levels[key] = max(levels.get(key, 0), declaration.trials or self.trials)
        return planned

    def plan_line(self) -> str:
        """What is about to be done, and how often."""
        planned = self.plan()
        boots = len({self.suite.server(name).fingerprint for name in planned})
        trials = sum(sum(levels.values()) for levels in planned.values())
        most = max((self.budget(d).most for d in self.declarations), default=1)
        text = f"{boots} server config{'s' if boots != 1 else ''} ({', '.join(planned)}), {trials} trials"
        if most > 1:
            text += f"; up to {most} boots each while a claim is inconclusive"
        if (canary := getattr(self.node_config, "canary", None)) is not None:
            text += f"; canary {canary.server} before and after, {2 * canary.boots} boots"
        return text

    def looks(self) -> list[str]:
        """The sequential plans of the selected tests: looks, error of each, before anything runs."""
        measuring = [d for d in self.declarations if d.measures]
        return outlook.looks((self.budget(d), d.control is None) for d in measuring)

    # -- the bench ------------------------------------------------------------------------------------------

    @property
    def bench(self) -> Bench:
        """The node under lease, opened on first use.

        Raises:
            NodeError: unreachable, held by another session, or unable to run the agent.
        """
        if self._bench is None:
            self._bench = self._open()
            if (written := getattr(self.node_config, "canary", None)) is not None:
                self._canary = CanaryRun(self, written)
                self._live.note("canary before the tests")
                self._canary.before()
        if self._canary is not None and self._canary.result["status"] == "failed":
            raise SessionVoid(self._canary.result["told"])
        return self._bench

    def measure(
        self, server: ResolvedServer, workload: ResolvedWorkload, level: float, *, boots: int, test: str
    ) -> list[BootRecord]:
        """Measure outside of any test, with the suite's trials."""
        return self.bench.measure(server, workload, level, boots=boots, trials=self.trials, test=test)

    def finish(self) -> None:
        """Run the canary a second time, then leave the node.

        Raises:
            SessionVoid: the node moved, unless inconclusive tests are only warned of.
        """
        try:
            if self._bench is not None and self._canary is not None and self._canary.result["status"] == "started":
                self._live.note("canary after the tests")
                try:
                    self._canary.after()
                except SessionVoid:
                    if self.options.inconclusive == "fail":
                        raise
                finally:
                    self._live.note(self._canary.result["told"])
        finally:
            self.close()

    def _open(self) -> Bench:
        config = self.node_config
        node = open_node(self.node_name, config, run=self.run, environ=self.environ)
        try:
            if node.attached is None:
                self._lease(node)  # a server of others is on a machine of others, and cannot be kept to ourselves
            pythons = sorted({self.suite.server(name).python for name in self.plan()})
            self.facts = node.client.request("facts", timeout=60.0, pythons=[] if node.simulated else pythons)
        except BaseException:
            node.close()
            raise
        gpus = getattr(self.node_config, "gpus", None)
        if isinstance(config, UrlNode):
            self.node_class = url_class(config.url)
        else:
            self.node_class = node_class(self.facts, simulated=node.sim_profile or None, gpus=gpus)
        bench = Bench(
            node,
            trials=self.trials,
            precision=self.suite.precision,
            live=self._live,
            environ=self.environ,
            keep_in=self._artifacts("trials"),
            explain=self._explain_crash if self.options.bisect else None,
        )
        for declaration in self.declarations:
            if declaration.measures:
                for name in filter(None, (declaration.server, declaration.control)):
                    for level in declaration.levels:
                        bench.plan(
                            self.suite.server(name),
                            self.suite.workload(declaration.workload),
                            level,
                            declaration.trials,
                            boots=self.budget(declaration).first,
                        )
        self._expected = outlook.expected(self, node.time_scale)
        self._live.note(f"plan: {self._expected.line()}")
        if node.seed is not None:
            self._live.note(
                f"simulated node: profile {node.sim_profile}, time x{node.time_scale:g}, "
                f"seed {node.seed} (repeat with SGLANG_PERF_SIM_SEED={node.seed})"
            )
        return bench

    def _lease(self, node: OpenNode) -> None:
        wait = self.options.lease_wait_s
        if wait is None:
            wait = self.suite.lease_wait
        unsubscribe = node.client.subscribe(self._on_lease_event)
        try:
            answer = node.client.request(
                "lease.acquire",
                timeout=wait + LEASE_EXTRA_S,
                gpus=getattr(self.node_config, "gpus", None),
                wait_s=wait,
                purpose="pytest",
            )
        except AgentError as error:
            if error.kind == "lease_unavailable":
                raise LeaseUnavailable(
                    f"node {self.node_name} is held by {_holder(error.details.get('holder'))}; waited {wait:.0f} s. "
                    "Wait longer with --sglang-lease-wait=SECONDS, or ask them"
                ) from None
            if error.kind == "gpu_in_use":
                raise LeaseUnavailable(
                    f"node {self.node_name} is in use by somebody without a lease, who was left alone: "
                    f"{error}. Ask whoever it is to end it, or give the node other GPUs "
                    "(gpus: [...] in the suite)"
                ) from None
            raise
        finally:
            unsubscribe()
        for warning in answer.get("warnings", ()):
            self._live.note(f"node {self.node_name}: {warning}")

    def _on_lease_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "lease.waiting":
            self._live.note(f"waiting for node {self.node_name}: held by {_holder(event.get('holder'))}")

    def _explain_crash(self, server: ResolvedServer, error: ServerCrashed, test: str) -> str:
        """Say which of the changes against its parent makes a config crash (``--sglang-bisect``)."""
        expected = any(d.nodeid == test and d.expect == "blocked" for d in self.declarations)
        return "" if expected else self.culprits.of_crash(server, error, test)

    @property
    def culprits(self) -> CulpritSearch:
        """Looks for the setting that is to blame."""
        return CulpritSearch(self.bench, self.suite, self._live)

    def _artifacts(self, name: str) -> Path | None:
        return self.options.report / name if self.options.report is not None else None

    def forward(self, port: int) -> int:
        """The local port on 127.0.0.1 through which tests reach the node's ``port``, until its server stops."""
        if port not in self._forwards:
            stack = contextlib.ExitStack()
            self._forwards[port] = stack.enter_context(self.bench.node.transport.forward(port)), stack
            self.bench.on_stop(lambda: self._unforward(port))
        return self._forwards[port][0]

    def _unforward(self, port: int) -> None:
        if port in self._forwards:
            self._forwards.pop(port)[1].close()

    def start_test(self) -> None:
        """A test starts; pytest has written to the terminal since the last one."""
        self._live.start_test()

    def test(self, declaration: Declaration, record: list[Claim]) -> TestPerf:
        """What one test may measure and claim."""
        return TestPerf(self, declaration, record)

    # -- what goes home on the reports ----------------------------------------------------------------------

    def take_measured(self) -> list[dict[str, Any]]:
        """What was measured since the last call, in builtin types."""
        if self._bench is None:
            if self._last is None:
                return []
            late = list(self._last[1])
            self._last[1].clear()
            return late
        names = {d.server for d in self.declarations}
        workloads = {self.suite.workload(d.workload).fingerprint: d.workload for d in self.declarations}
        found: list[dict[str, Any]] = []
        for records in self._bench.boots.values():
            for record in records:
                for want in [w for w in record.trials if w not in record.saved]:
                    record.saved.add(want)
                    found.append(
                        {
                            "server": record.server,
                            "config": record.fingerprint,
                            "is_server": record.server in names,
                            "workload": workloads.get(want.workload, ""),
                            "workload_fingerprint": want.workload,
                            "level": want.level,
                            "boot": record.number,
                            "started": record.started_wall_s,
                            "boot_time": record.boot_time_s,
                            "version": record.version,
                            "facts": {name: record.facts[name] for name in KEPT if name in record.facts},
                            "session": self.run,
                            "columns": {name: list(v) for name, v in record.columns(want).items()},
                            "trials": [trial.to_dict() for trial in record.trials[want]],
                        }
                    )
        return found

    def summary(self) -> dict[str, Any]:
        """The session as reports show it, in builtin types."""
        bench = self._bench
        if self._last is not None:
            return self._last[0]
        return {
            "run": self.run,
            "node": self.node_name,
            "node_class": self.node_class.slug if self.node_class is not None else None,
            "node_details": dict(self.node_class.details) if self.node_class is not None else {},
            "simulated": self.simulated,
            "profile": bench.node.sim_profile if bench is not None else "",
            "time_scale": bench.node.time_scale if bench is not None else 1.0,
            "seed": bench.node.seed if bench is not None else None,
            "suite": str(self.suite.path),
            "margins": dict(self.suite.margins),
            "started": self.started_wall_s,
            "plan": self.plan_line(),
            "expected": self._expected.line() if self._expected is not None else "",
            "correction": self.options.correction or self.suite.correction,
            "canary": dict(self._canary.result) if self._canary is not None else None,
            "spent": dict(bench.spent) if bench is not None else {},
            "plugin_version": __version__,
        }

    @property
    def closed(self) -> bool:
        """Whether the node was left, so that the summary is the last one."""
        return self._last is not None

    def close(self) -> None:
        """Order everything on the node to stop, and leave. Returns within seconds; the agent finishes the job."""
        if self._bench is not None:
            self._last = self.summary(), self.take_measured()
            bench, self._bench = self._bench, None
            try:
                bench.save_logs(self._artifacts("logs"))
            finally:
                bench.node.close()
                # Those of servers whose end we could not see; left open, they would hold up Python's own end.
                for port in list(self._forwards):
                    self._unforward(port)

    # -- baselines ------------------------------------------------------------------------------------------

    def stored(self, server: str) -> Any:
        """The baseline file of a server config for this node class, or None."""
        if self.node_class is None:
            self.bench  # noqa: B018  # the node class is known once the node is open
        assert self.node_class is not None
        if server not in self._stored:
            self._stored[server] = self.store.load(self.node_class, server)
        return self._stored[server]

    def baseline_boots(self, server: str, workload: str, level: float, metric: str) -> list[verdict.Boot]:
        """Stored boots of one metric, empty where none are."""
        stored = self.stored(server)
        if stored is None:
            return []
        resolved = self.suite.server(server), self.suite.workload(workload)
        return [
            verdict.Boot(trials=tuple(trials), session=session)
            for trials, session in stored.boots(
                config=resolved[0].fingerprint, workload=resolved[1].fingerprint, level=level, metric=metric
            )
        ]


def _holder(holder: Any) -> str:
    """Who holds a node, as a message names them."""
    if not isinstance(holder, dict):
        return "somebody who left no name"
    text = f"{holder.get('user', 'someone')}@{holder.get('host', 'an unknown host')} (pid {holder.get('pid', '?')}"
    if holder.get("purpose"):
        text += f", {holder['purpose']}"
    if holder.get("since"):
        text += f", since {holder['since']}"
    if holder.get("until"):
        text += f", until {holder['until']} at most"
    return text + ")"


def node_name(suite: Suite, options: Options, environ: Mapping[str, str]) -> str:
    """Which node to use.

    Raises:
        SuiteError: none is named, it is unknown, or CI would silently run on a simulation.
    """
    name = options.node or suite.default_node
    if name is None:
        raise SuiteError(
            f"no node is named: use --sglang-node or default_node. The suite has: {', '.join(suite.nodes)}"
        )
    node = suite.node(name)
    if isinstance(node, SimNode) and environ.get("CI") and not options.node_is_explicit:
        raise SuiteError(
            f'CI is set and the default node "{name}" is simulated: a gate must not turn green for want of a GPU. '
            f"If that is what you want, say so: --sglang-node {name} or SGLANG_PERF_NODE={name}"
        )
    return name


@dataclass
class TestPerf:
    """What the fixture ``sglang_perf`` gives: ``measure()`` and what it is judged against."""

    __test__ = False

    session: PerfSession
    declaration: Declaration
    claims: list[Claim] = field(default_factory=list)

    def measure(self, concurrency: float | None = None) -> Measurement:
        """Measure the declared server config at one declared level, or take what was measured already.

        Raises:
            NotDeclared: the level was not declared.
            ServerCrashed, TrialInvalid, NodeError: there is no figure; the message says why and what to do.
        """
        level = self.declaration.level(concurrency)
        budget = self.session.budget(self.declaration)
        if self.declaration.control is not None and self.declaration.plan == "paired":
            self._paired(level, budget.first)
        records = self._records(self.declaration.server, level, budget.first)
        judge = TestJudge(
            where=self.declaration.nodeid,
            level=level,
            simulated=self.session.simulated,
            budget=budget,
            noise=lambda metric: self._noise(metric, level),
            margins=self.session.suite.margins,
            baseline=lambda j: self._baseline(j, level),
            control=lambda j: self._control(j, level),
            extend=lambda side: self._extend(side, level),
            unsettled=lambda side, metric: self._unsettled(side, metric, level),
            record=self.claims.append,
            paired=self.declaration.plan == "paired",
            blame=self._blame(level) if self.session.options.bisect and not self.declaration.expect else None,
        )
        want = self._want(level)
        return Measurement(
            judge,
            self.declaration.server,
            trial_values(records, want, self.session.run),
            absence(records, want),
            level=level,
        )

    def _want(self, level: float) -> Want:
        return Want(self.session.suite.workload(self.declaration.workload).fingerprint, level)

    def _records(self, server: str, level: float, boots: int) -> list[BootRecord]:
        """All boots of a config; the same list object grows with later boots."""
        resolved = self.session.suite.server(server)
        self.session.bench.measure(
            resolved,
            self.session.suite.workload(self.declaration.workload),
            level,
            boots=boots,
            trials=self.declaration.trials or self.session.trials,
            test=self.declaration.nodeid,
        )
        return self.session.bench.boots[resolved.fingerprint]

    def _paired(self, level: float, boots: int) -> None:
        """Boot candidate and control alternately (ABBA), so that a drift of the node falls on both."""
        for number, pair in enumerate(verdict.abba(boots), start=1):
            self._pair(pair, level, number)

    def _pair(self, pair: Sequence[str], level: float, number: int) -> None:
        for side in pair:
            name = self.declaration.server if side == "candidate" else str(self.declaration.control)
            self._records(name, level, number)

    def _extend(self, side: str, level: float) -> bool:
        """Take one more boot (of both configs where the claim is against the control)."""
        server = self.session.suite.server(self.declaration.server)
        number = len(self.session.bench.measured(server.fingerprint, self._want(level))) + 1
        if side == "control" and self.declaration.control is not None:
            self._pair(verdict.abba(number)[-1], level, number)
        else:
            self._records(self.declaration.server, level, number)
        return True

    def _blame(self, level: float) -> Callable[[TestJudge, str, str, Callable[[Side], bool | None]], str]:
        """How a judge learns which setting is to blame for a violated claim (``--sglang-bisect``)."""
        session, declaration = self.session, self.declaration
        workload = session.suite.workload(declaration.workload)
        want = self._want(level)

        def blame(judge: TestJudge, side: str, metric: str, violates: Callable[[Side], bool | None]) -> str:
            control = declaration.control if side == "control" else None

            def judged(records: Sequence[BootRecord]) -> bool | None:
                values = trial_values(records, want, session.run)
                if not values(metric):
                    return None
                return violates(Side(judge, "now", "a part of the changes", values, absence(records, want)))

            return session.culprits.of_regression(
                session.suite.server(declaration.server),
                session.suite.server(control) if control is not None else None,
                workload,
                level,
                trials=declaration.trials or session.trials,
                test=declaration.nodeid,
                violates=judged,
            )

        return blame

    def _unsettled(self, side: str, metric: str, level: float) -> list[str]:
        """Why the boots of this session that a claim rests on should not be judged; empty if nothing speaks against."""
        want = self._want(level)
        found: list[str] = []
        for name in (self.declaration.server, *([self.declaration.control] if side == "control" else [])):
            fingerprint = self.session.suite.server(str(name)).fingerprint
            reasons = unsettled(self.session.bench.boots.get(fingerprint, []), want, metric)
            found.extend(f"{name}: {reason}" for reason in reasons)
        return found

    def _baseline(self, judge: TestJudge, level: float) -> Side:
        session, server = self.session, self.declaration.server
        stored = session.stored(server)
        assert session.node_class is not None

        def boots(metric: str) -> list[verdict.Boot]:
            return session.baseline_boots(server, self.declaration.workload, level, metric)

        resolved = session.suite.server(server), session.suite.workload(self.declaration.workload)
        if stored is None or not stored.has(
            config=resolved[0].fingerprint, workload=resolved[1].fingerprint, level=level
        ):
            if session.options.update_baselines:
                return Side(judge, "baseline", "baseline", lambda _m: [], lambda _m: "not stored yet", missing=True)
            if stored is None:
                others = session.store.other_classes(session.node_class, server)
                if others:
                    raise NotComparable(
                        f'the baseline of "{server}" was stored on another node class, so it says nothing about this '
                        f"node:\n  here    {session.node_class.slug}\n  stored  {', '.join(others)}\n"
                        f'Record one for this class with:  pytest "{self.declaration.nodeid}" --update-baselines'
                    )
            why = str(session.store.path(session.node_class, server))
            if stored is not None and stored.stale(config=resolved[0].fingerprint):
                why = f"{why}: what is stored there belongs to an earlier content of this config"
            raise no_baseline(server, level, self.declaration.nodeid, why)
        return Side(judge, "baseline", "baseline", boots, lambda _m: "it was not stored with the baseline")

    def _control(self, judge: TestJudge, level: float) -> Side:
        control = self.declaration.control
        if control is None:
            raise NotDeclared(
                'this test declares no control. Name one on the mark: @pytest.mark.sglang(server="...", control="...")'
            )
        records = self._records(control, level, self.session.budget(self.declaration).first)
        want = self._want(level)
        return Side(
            judge,
            "control",
            f"{control} (control)",
            trial_values(records, want, self.session.run),
            absence(records, want),
        )

    def _noise(self, metric: str, level: float) -> verdict.Noise | None:
        """Noise learned from all other levels of both configs, stored or measured now.

        The level itself is left out: its boots are weighed by the comparison. Counted figures have no noise.
        """
        if metrics.REGISTRY[metric].exact:
            return None
        session = self.session
        workload = session.suite.workload(self.declaration.workload)
        histories: dict[tuple[str, float], list[verdict.Boot]] = {}
        current: dict[tuple[str, float], list[verdict.Boot]] = {}
        for server in filter(None, (self.declaration.server, self.declaration.control)):
            fingerprint = session.suite.server(server).fingerprint
            for known in workload.levels:
                if known == level:
                    continue
                want = Want(workload.fingerprint, known)
                stored = session.baseline_boots(server, self.declaration.workload, known, metric)
                new = trial_values(session.bench.boots.get(fingerprint, []), want, session.run)(metric)
                if stored or new:
                    histories[server, known] = stored or new
                if stored and new:
                    current[server, known] = new
        return verdict.learn_noise(histories, current=current) if histories else None
