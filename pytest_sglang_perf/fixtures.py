"""What tests receive. Kept apart from the plugin so that its imports happen only when a perf test runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import metrics, verdict
from pytest_sglang_perf.errors import NotComparable, NotDeclared
from pytest_sglang_perf.measured import Planned, Want
from pytest_sglang_perf.measurement import Measurement, Side, TestJudge, absence, no_baseline, trial_values
from pytest_sglang_perf.server.attached import AttachedServer
from pytest_sglang_perf.unsettled import unsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_sglang_perf.claims import Claim
    from pytest_sglang_perf.declaration import Declaration
    from pytest_sglang_perf.measured import BootRecord
    from pytest_sglang_perf.pairing import Pair, Pairing
    from pytest_sglang_perf.server.boot import Boot
    from pytest_sglang_perf.session import PerfSession

__all__ = ["ServerHandle", "TestPerf", "serve"]


class ServerHandle:
    """A live server, as the fixture ``sglang_server`` gives it.

    Attributes:
        name: the server config's name.
        url: base URL on 127.0.0.1, forwarded where the node is remote. For a test's own requests; the load of a
            measurement never takes this way.
    """

    def __init__(self, session: PerfSession, declaration: Declaration, boot: Boot | AttachedServer) -> None:
        self._session = session
        self._declaration = declaration
        self._boot = boot
        self.name = boot.server.name

    @property
    def url(self) -> str:
        if isinstance(self._boot, AttachedServer):
            return self._boot.url
        return f"http://127.0.0.1:{self._session.forward(self._boot.port)}"

    @property
    def log(self) -> str:
        """The server's log so far, standard output and error merged."""
        return "\n".join(self._boot.lines)

    @property
    def facts(self) -> dict[str, Any]:
        """What the boot told: capacity, chosen backends, features disabled silently, seconds per phase."""
        return self._boot.facts

    @property
    def children(self) -> tuple[str, ...]:
        """Titles of the processes that are watched, such as ``sglang::scheduler_TP1``, as they were at readiness."""
        return self._boot.children

    @property
    def boot_time(self) -> float:
        """Seconds from spawn to readiness."""
        return float(self._boot.boot_time_s or 0.0)

    def server_info(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """The server's own /server_info, secrets redacted."""
        return self._boot.request_server_info(timeout=timeout)

    def __repr__(self) -> str:
        return f"<sglang server {self.name!r} at {self._boot.url}>"


def serve(session: PerfSession, declaration: Declaration) -> ServerHandle:
    """Return a handle to the declared server, booting it where needed."""
    boot = session.bench.ensure(session.suite.server(declaration.server), test=declaration.nodeid)
    return ServerHandle(session, declaration, boot)


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
        if self.declaration.in_pairs:
            self._take_pairs(level, budget.first)
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
            partnered=(lambda j: self._partnered(j, "now", level)) if self.declaration.in_pairs else None,
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

    def _take_pairs(self, level: float, pairs: int) -> None:
        """Boot server and control in succession, in ABBA order, until there are so many pairs."""
        workload = self.session.suite.workload(self.declaration.workload)
        planned = Planned(workload, self.declaration.trials or self.session.trials, pairs)
        self._pairing().measure(self._want(level), planned, test=self.declaration.nodeid)

    def _pairing(self) -> Pairing:
        suite, declaration = self.session.suite, self.declaration
        return self.session.pairing(suite.server(declaration.server), suite.server(str(declaration.control)))

    def _extend(self, side: str, level: float) -> None:
        """Take one more boot (of both configs where the claim is against the control)."""
        server, control = self.declaration.server, self.declaration.control
        if side != "control" or control is None:
            self._records(server, level, self._taken(server, level) + 1)
        elif self.declaration.in_pairs:
            self._take_pairs(level, len(self._pairing().taken(self._want(level))) + 1)
        else:
            number = 1 + min(self._taken(server, level), self._taken(control, level))
            for turn in verdict.abba(number)[-1]:  # the drift of the node falls on both
                self._records(server if turn == "candidate" else control, level, number)

    def _taken(self, server: str, level: float) -> int:
        """How many boots of a config have measured this level."""
        fingerprint = self.session.suite.server(server).fingerprint
        return len(self.session.bench.measured(fingerprint, self._want(level)))

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
        if self.declaration.in_pairs:
            return self._partnered(judge, "control", level)
        records = self._records(control, level, self.session.budget(self.declaration).first)
        want = self._want(level)
        return Side(
            judge,
            "control",
            f"{control} (control)",
            trial_values(records, want, self.session.run),
            absence(records, want),
        )

    def _partnered(self, judge: TestJudge, side: str, level: float) -> Side:
        """One side of the pairs: the boots that have a neighbour of the other config, and no others."""
        want, run, pairing = self._want(level), self.session.run, self._pairing()
        place = ("now", "control").index(side)

        def having(metric: str) -> list[tuple[Pair, tuple[float, ...]]]:
            found = [(pair, [boot.values(want, metric) for boot in pair.boots]) for pair in pairing.taken(want)]
            return [(pair, values[place]) for pair, values in found if all(values)]

        def boots(metric: str) -> list[verdict.Boot]:
            return [verdict.Boot(trials=values, session=run) for _, values in having(metric)]

        def first(metric: str) -> list[str]:
            return [pair.first for pair, _ in having(metric)]

        def absent(metric: str) -> str:
            return absence([boot for pair in pairing.taken(want) for boot in pair.boots], want)(metric)

        label = f"{self.declaration.control} (control)" if side == "control" else self.declaration.server
        return Side(judge, side, label, boots, absent, first=first)

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
