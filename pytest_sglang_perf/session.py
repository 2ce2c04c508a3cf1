"""One pytest session: the suite, the plan, the bench, and what is stored. What a test does with it: ``fixtures``.

pytest itself is not imported here; the plugin hands over what it knows.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import __version__, outlook, verdict
from pytest_sglang_perf.baselines import BaselineStore, NodeClass, node_class, url_class
from pytest_sglang_perf.bench import Bench
from pytest_sglang_perf.canary import CanaryRun
from pytest_sglang_perf.culprit import CulpritSearch
from pytest_sglang_perf.errors import (
    ServerCrashed,
    SessionVoid,
    SuiteError,
)
from pytest_sglang_perf.leasing import take_lease
from pytest_sglang_perf.measured import Planned, Want
from pytest_sglang_perf.measurement import Budget
from pytest_sglang_perf.nodes.open import open_node
from pytest_sglang_perf.pairing import Pairing
from pytest_sglang_perf.report.decisions import KEPT
from pytest_sglang_perf.suite import SimNode, Suite, UrlNode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.measured import BootRecord
    from pytest_sglang_perf.options import Options
    from pytest_sglang_perf.report.live import Live
    from pytest_sglang_perf.suite import ResolvedServer, ResolvedWorkload

__all__ = ["PerfSession"]


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
        self._pairings: dict[tuple[str, str], Pairing] = {}
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
            what = "boots or pairs" if any(d.in_pairs for d in self.declarations) else "boots"
            text += f"; up to {most} {what} each while a claim is inconclusive"
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
            for declaration in self.declarations:
                if declaration.measures:
                    self._plan_boots(self._bench, declaration)
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
        gpus = getattr(config, "gpus", None)
        node = open_node(self.node_name, config, run=self.run, environ=self.environ)
        try:
            if node.attached is None:  # a server of others is on a machine of others, and not ours to keep others from
                wait = self.options.lease_wait_s
                take_lease(node, gpus, self.suite.lease_wait if wait is None else wait, self._live)
            pythons = sorted({self.suite.server(name).python for name in self.plan()})
            self.facts = node.client.request("facts", timeout=60.0, pythons=[] if node.simulated else pythons)
        except BaseException:
            node.close()
            raise
        node.gpus = tuple(gpus or (one["index"] for one in self.facts["gpus"])) or None
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
        self._expected = outlook.expected(self, node.time_scale)
        self._live.note(f"plan: {self._expected.line()}")
        if node.seed is not None:
            self._live.note(
                f"simulated node: profile {node.sim_profile}, time x{node.time_scale:g}, "
                f"seed {node.seed} (repeat with SGLANG_PERF_SIM_SEED={node.seed})"
            )
        return bench

    def _plan_boots(self, bench: Bench, declaration: Declaration) -> None:
        """Tell the bench what a test needs, so that no server is stopped before it was measured."""
        workload, first = self.suite.workload(declaration.workload), self.budget(declaration).first
        server = self.suite.server(declaration.server)
        control = self.suite.server(declaration.control) if declaration.control is not None else None
        for level in declaration.levels:
            for config in filter(None, (server, control)):
                bench.plan(config, workload, level, declaration.trials, boots=0 if declaration.in_pairs else first)
            if control is not None and declaration.in_pairs:
                planned = Planned(workload, declaration.trials or self.trials, first)
                self.pairing(server, control).plan(Want(workload.fingerprint, level), planned)

    def pairing(self, candidate: ResolvedServer, control: ResolvedServer) -> Pairing:
        """The pairs of these two configs in this session."""
        key = candidate.fingerprint, control.fingerprint
        return self._pairings.setdefault(key, Pairing(self.bench, candidate, control))

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
                            "asked_for": self._bench.asked_for(record, want),
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
