"""The canary: one small fixed measurement before and after a session. When it moved, the node moved: nothing counts.

The canary's config never changes within a session, so that a change of its figure is the node's: a neighbour, a fan, a
power limit. Both runs belong to one session; drift between sessions is out of it, and only the noise of boots, learned
from what is stored of the config, stands between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import verdict
from pytest_sglang_perf.errors import SessionVoid, SglangPerfError
from pytest_sglang_perf.measured import Want
from pytest_sglang_perf.report.figures import figure

if TYPE_CHECKING:
    from pytest_sglang_perf.session import PerfSession
    from pytest_sglang_perf.suite.nodes import Canary

__all__ = ["METRIC", "CanaryRun", "void", "voids"]

#: What is watched: the figure that repeats best.
METRIC = "output_throughput"
_WHO = "the canary"


class CanaryRun:
    """The canary of one session.

    ``result`` is in builtin types, for reports: ``status`` is ``started``, ``steady``, ``cannot tell``, ``moved`` or
    ``failed``; ``told`` says it in words.
    """

    def __init__(self, session: PerfSession, written: Canary) -> None:
        self._session = session
        self._written = written
        self._server = session.suite.server(written.server)
        self._workload = session.suite.workload(written.workload)
        level = next(level for level in self._workload.levels if level == written.concurrency)
        self._want = Want(self._workload.fingerprint, level)
        self._before = 0
        self.result: dict[str, Any] = {
            "server": self._server.name,
            "workload": self._workload.name,
            "level": level,
            "margin": written.margin,
        }
        self._tell("started", "the canary ran before the tests and not after them, since the session was cut short")

    def before(self) -> None:
        """Run it before the tests.

        Raises:
            SessionVoid: it could not be measured.
        """
        self._run(self._written.boots, "before the tests")
        self._before = len(self._boots())

    def after(self) -> None:
        """Run it again, judge, and fill in ``result``.

        Raises:
            SessionVoid: the node moved, or the canary could not be measured.
        """
        self._run(len(self._boots()) + self._written.boots, "after the tests")
        boots = self._boots()
        before, after = boots[: self._before], boots[-self._written.boots :]
        found = verdict.canary(before, after, within=self._written.margin, noise=self._noise())
        sides = [verdict.estimate(side).value for side in (before, after)]
        low, high = found.interval
        told = (
            f"canary {self._server.name} at concurrency {self._want.level}: {METRIC} {figure(sides[0], 'tok/s')} before"
            f", {figure(sides[1], 'tok/s')} after, ratio {found.effect:.3f} [{low:.3f} .. {high:.3f}], "
            f"allowed within {self._written.margin:.1%}"
        )
        self.result.update(before=sides[0], after=sides[1], effect=found.effect, interval=[low, high])
        if found.status is verdict.Status.VIOLATED:
            self._tell("moved", f"the node itself moved, so every verdict of this session is void. {told}")
            raise SessionVoid(self.result["told"])
        steady = found.status is verdict.Status.HOLDS
        self._tell("steady" if steady else "cannot tell", told + ("" if steady else f"; {self._advice(found)}"))

    def _run(self, boots: int, when: str) -> None:
        try:
            self._session.measure(self._server, self._workload, self._want.level, boots=boots, test=_WHO)
        except SglangPerfError as error:
            self._tell("failed", f"the canary could not be measured {when}, so nothing of this session counts: {error}")
            raise SessionVoid(self.result["told"]) from error

    def _boots(self) -> list[verdict.Boot]:
        records = self._session.bench.measured(self._server.fingerprint, self._want)
        return [verdict.Boot(record.values(self._want, METRIC), self._session.run) for record in records]

    def _noise(self) -> verdict.Noise | None:
        """From what is stored of the config at all levels: none of those boots is one of the canary's."""
        stored = {
            level: self._session.baseline_boots(self._server.name, self._workload.name, level, METRIC)
            for level in self._workload.levels
        }
        known = {level: boots for level, boots in stored.items() if boots}
        return verdict.learn_noise(known) if known else None

    def _advice(self, found: verdict.Verdict) -> str:
        if found.more_boots:
            return (
                f"it cannot exclude that the node moved; canary.boots: {self._written.boots + found.more_boots} could"
            )
        return "it cannot exclude that the node moved; baselines of its config would tell its noise"

    def _tell(self, status: str, told: str) -> None:
        self.result.update(status=status, told=told)


def voids(canary: dict[str, Any]) -> bool:
    """Whether this result makes every verdict of the session void."""
    return canary.get("status") in {"moved", "failed"}


def void(tests: list[dict[str, Any]], canary: dict[str, Any]) -> None:
    """Take the answers back: in reports every judged claim is inconclusive, with the canary's words first."""
    for test in tests:
        judged = [claim for claim in test["claims"] if claim.get("verdict")]
        for claim in judged:
            claim["status_before_void"], claim["status"] = claim["status"], "inconclusive"
            claim["verdict"]["warnings"].insert(0, f"void: {canary['told']}")
            claim["verdict"]["more_boots"] = None
            claim["explanation"] = [
                f"inconclusive: {claim['text']}",
                *claim["explanation"][1:],
                f"  void: {canary['told']}",
            ]
        if judged:
            test["outcome_before_void"], test["outcome"] = test["outcome"], "inconclusive"
