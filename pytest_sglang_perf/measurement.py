"""What ``measure()`` returns: the sides of a comparison, and the judge that turns comparisons into claims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import metrics, verdict
from pytest_sglang_perf.claims import Claim, Quantity, Regressions, Shown
from pytest_sglang_perf.errors import MetricAbsent, NoBaseline, NotDeclared
from pytest_sglang_perf.report.figures import figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_sglang_perf.measured import BootRecord, Want

__all__ = ["Measurement", "Side", "TestJudge"]


class Side:
    """One side of a comparison: ``now``, ``baseline`` or ``control``. Metrics are attributes.

    ``boots(metric)`` gives the boots as the verdict package takes them; ``label`` is how reports name the side. Where
    the two sides of one judge have ``first``, boots of the same place are neighbours, and ``first(metric)`` says which
    side each pair began with.
    """

    def __init__(
        self,
        judge: TestJudge,
        side: str,
        label: str,
        boots: Callable[[str], Sequence[verdict.Boot]],
        absent: Callable[[str], str],
        *,
        missing: bool = False,
        first: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        self.judge = judge
        self._boots = boots
        self._absent = absent
        self.first = first
        self.side = side
        self.label = label
        self.missing = missing

    def __getattr__(self, name: str) -> Quantity:
        metric = metrics.REGISTRY.get(name)
        if metric is None:
            raise AttributeError(_unknown_metric(name))
        return Quantity(self.judge, self.side, self, metric)

    def boots(self, metric: str) -> Sequence[verdict.Boot]:
        """The boots of this side for one metric.

        Raises:
            MetricAbsent: no boot has it; the message says why.
        """
        boots = self._boots(metric)
        if not boots and not self.missing:
            raise MetricAbsent(f"{self.side}.{metric} is absent on {self.label}: {self._absent(metric)}")
        return boots

    def estimate(self, metric: metrics.Metric) -> verdict.Estimate:
        """Value and interval of one metric."""
        return verdict.estimate(self.boots(metric.name), noise=self.judge.noise(metric.name))

    def shown(self, metric: str) -> Shown:
        """The estimate as reports show it."""
        if metrics.REGISTRY[metric].exact:
            return self._counted(metric)
        found = verdict.estimate(self.boots(metric), noise=self.judge.noise(metric))
        low, high = found.interval
        return Shown(
            label=self.label,
            value=float(found.value),
            low=float(low),
            high=float(high),
            boots=int(found.boots),
            trials=int(found.trials),
        )

    def _counted(self, metric: str) -> Shown:
        """A counted figure has no interval: the range of the trials stands for it."""
        boots = self.boots(metric)
        values = [value for boot in boots for value in boot.trials]
        return Shown(self.label, sum(values) / len(values), min(values), max(values), len(boots), len(values))

    def __repr__(self) -> str:
        return f"<{self.side}: {self.label}>"


def _unknown_metric(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(metrics.REGISTRY), n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"no such metric: {name!r}.{hint} All of them: {', '.join(sorted(metrics.REGISTRY))}"


class Measurement(Side):
    """All trials of one server config and level in this session.

    Metrics are attributes (``now.output_throughput``); ``baseline`` and ``control`` are the other sides.
    """

    def __init__(
        self,
        judge: TestJudge,
        label: str,
        boots: Callable[[str], Sequence[verdict.Boot]],
        absent: Callable[[str], str],
        *,
        level: float,
    ) -> None:
        super().__init__(judge, "now", label, boots, absent)
        self.level = level

    @property
    def baseline(self) -> Side:
        """Stored boots of the same server config on the same node class.

        Raises:
            NoBaseline: nothing is stored yet; the message has the command that records it.
            NotComparable: what is stored belongs to another node class.
        """
        return self.judge.baseline_side()

    @property
    def control(self) -> Side:
        """The other server config, measured in this session.

        Raises:
            NotDeclared: the mark names no control.
        """
        return self.judge.control_side()

    def regressions(self, **margins: float) -> Regressions:
        """Compare the usual metrics with the baseline; return those that regressed.

        Margins come from the suite (per metric, never below the learned noise) unless given here as fractions.
        Every comparison is recorded on the test; an inconclusive one makes the test inconclusive.
        """
        return self.judge.regressions(self, margins)


@dataclass(frozen=True)
class Budget:
    """Boots (pairs, in a paired plan) at first and at most."""

    first: int
    most: int

    def at_least(self, other: Budget) -> Budget:
        """What serves both."""
        return Budget(max(self.first, other.first), max(self.most, other.most))

    def plan(self, stored: int) -> verdict.SequentialPlan:
        """The looks that this allows, against so many stored boots (0 for none or for pairs).

        The error is spent evenly (Pocock 1977): boots cost minutes, so a large effect should be told after the first.
        """
        return verdict.SequentialPlan(tuple(range(self.first, self.most + 1)), reference=stored, spending="pocock")


class TestJudge:
    """Judges the comparisons of one test, at one level, and keeps them as the test's record."""

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(
        self,
        *,
        where: str,
        level: float,
        simulated: bool,
        budget: Budget,
        noise: Callable[[str], verdict.Noise | None],
        margins: Mapping[str, float],
        baseline: Callable[[TestJudge], Side],
        control: Callable[[TestJudge], Side],
        extend: Callable[[str], None],
        unsettled: Callable[[str, str], Sequence[str]],
        record: Callable[[Claim], None],
        partnered: Callable[[TestJudge], Side] | None = None,
        blame: Callable[[TestJudge, str, str, Callable[[Side], bool | None]], str] | None = None,
    ) -> None:
        self.noise = noise
        self._where = where
        self._level = level
        self._simulated = simulated
        self._budget = budget
        self._margins = margins
        self._baseline = baseline
        self._control = control
        self._extend = extend
        self._unsettled = unsettled
        self._record = record
        self._partnered = partnered
        self._blame = blame
        self._sides: dict[str, Side] = {}

    def baseline_side(self) -> Side:
        if "baseline" not in self._sides:
            self._sides["baseline"] = self._baseline(self)
        return self._sides["baseline"]

    def control_side(self) -> Side:
        if "control" not in self._sides:
            self._sides["control"] = self._control(self)
        return self._sides["control"]

    # -- one claim ------------------------------------------------------------------------------------------

    def judge(self, candidate: Quantity, op: str, reference: Quantity | float, *, within: float | None = None) -> Claim:
        """Compute and record one claim, taking more boots while it is inconclusive and the budget lasts."""
        claim = self._claim(candidate, op, reference, within)
        self._record(claim)
        return claim

    def _claim(self, candidate: Quantity, op: str, reference: Quantity | float, within: float | None) -> Claim:
        side: Side = candidate.key
        metric = candidate.metric
        other: Side | None = reference.key if isinstance(reference, Quantity) else None
        bound = within or (reference.factor if isinstance(reference, Quantity) else reference) / candidate.factor
        if other is not None and other.missing:
            side.boots(metric.name)  # an absent metric is an error, recorded or not
            return self._finished(candidate, op, reference, bound, None, "recorded")
        sides = {side.side, other.side if other is not None else ""}
        further = next((name for name in ("control", "now") if name in sides), None)  # whose boots can still be taken
        if side.side == "now" and other is not None and other.first is not None and other.judge is self:
            assert self._partnered is not None
            side = self._partnered(self)  # boots without a partner say nothing about the difference
        while True:
            plan = self._plan(side, other, metric)
            outcome = self._verdict(side, other, metric, op, bound, plan.confidence_at(plan.taken))
            unsettled = () if metric.exact else self._unsettled(further or "now", metric.name)
            outcome = outcome.unsettled(unsettled)
            # What is unstable is not settled by more of it, and boots cost minutes.
            if outcome.status.value != "inconclusive" or plan.done or unsettled or further is None:
                break
            self._extend(further)
            if self._plan(side, other, metric).taken == plan.taken:
                break  # the boot is not of these sides (of another level, say) or lacks the metric; so would the next
        claim = self._finished(candidate, op, reference, bound, outcome, outcome.status.value, plan, side=side)
        if claim.status == "violated" and other is not None and self._blame is not None:
            confidence = plan.confidence_at(1)

            def violates(part: Side) -> bool | None:
                status = self._verdict(part, other, metric, op, bound, confidence).status.value
                return None if status == "inconclusive" else status == "violated"

            claim = replace(claim, blame=self._blame(self, other.side, metric.name, violates))
        return claim

    def _plan(self, side: Side, other: Side | None, metric: metrics.Metric) -> verdict.SequentialPlan:
        """The plan as it stands at this look; boots that an earlier claim asked for are there to be seen."""
        stored = len(other.boots(metric.name)) if other is not None and other.side == "baseline" else 0
        plan = self._budget.plan(stored)
        have = len(side.boots(metric.name))
        if other is not None and other.side == "control":
            # Claims against the baseline may have asked for more boots of this config, not of the control.
            have = min(have, len(other.boots(metric.name)))
        return replace(plan, taken=min(max(have - self._budget.first, 0) + 1, len(plan.looks)))

    def _verdict(
        self,
        side: Side,
        other: Side | None,
        metric: metrics.Metric,
        op: str,
        bound: float,
        confidence: float,
    ) -> verdict.Verdict:
        boots = side.boots(metric.name)
        noise = self.noise(metric.name)
        if other is None:
            if metric.exact:
                worst = [value for boot in boots for value in boot.trials]
                return verdict.exact(max(worst) if op == "<=" else min(worst), "<=" if op == "<=" else ">=", bound)
            limit = verdict.at_least_value if op == ">=" else verdict.at_most_value
            return limit(boots, bound, noise=noise, confidence=confidence)
        stored = other.boots(metric.name)
        neighbours = side.first is not None and other.first is not None and side.judge is other.judge
        paired = side.first(metric.name) if side.first is not None and neighbours else False
        if op == "==":
            return verdict.equivalent(
                boots,
                stored,
                within=bound,
                noise=noise,
                confidence=confidence,
                paired=paired,
                alike=other.side != "control",
            )
        rule = verdict.at_least if op == ">=" else verdict.at_most
        return rule(
            boots,
            stored,
            bound,
            noise=noise,
            confidence=confidence,
            paired=paired,
            alike=other.side != "control",
        )

    def _finished(
        self,
        candidate: Quantity,
        op: str,
        reference: Quantity | float,
        bound: float,
        outcome: verdict.Verdict | None,
        status: str,
        plan: verdict.SequentialPlan | None = None,
        *,
        side: Side | None = None,
    ) -> Claim:
        metric = candidate.metric
        other: Side | None = reference.key if isinstance(reference, Quantity) else None
        if op == "==":
            text = f"{metric.name} equals {other.side if other else ''} within {bound * 100:.3g} %"
        elif other is not None:
            text = f"{metric.name} {op} {bound:.4g} x {other.side}"
        else:
            text = f"{metric.name} {op} {figure(bound, metric.unit)}"
        return Claim(
            text=f"{text} at concurrency {self._level}",
            metric=metric.name,
            unit=metric.unit,
            op=op,
            bound=float(bound),
            candidate=(side or candidate.key).shown(metric.name),
            reference=other.shown(metric.name) if other is not None and not other.missing else None,
            verdict=outcome,
            status=status,
            where=self._where,
            simulated=self._simulated,
            level=self._level,
            against=other.side if other is not None else "",
            plan=plan,
        )

    # -- the usual set --------------------------------------------------------------------------------------

    def regressions(self, now: Measurement, margins: Mapping[str, float]) -> Regressions:
        baseline = now.baseline
        usual = self._margins or {m.name: m.margin for m in metrics.REGISTRY.values() if m.margin is not None}
        asked = {**usual, **margins}
        found = Regressions()
        for name, margin in asked.items():
            metric = metrics.REGISTRY.get(name)
            if metric is None:
                raise NotDeclared(_unknown_metric(name))
            if metric.better is None:
                raise NotDeclared(f"{name} has no better direction, so it cannot regress: claim a limit instead")
            try:
                now.boots(name)
            except MetricAbsent:
                if name in margins:
                    raise
                continue  # the usual set takes what this node can give
            noise = self.noise(name)
            used = noise.margin(margin) if noise is not None else margin
            quantity = getattr(now, name)
            stored = getattr(baseline, name)
            try:
                claim = (
                    quantity >= (1 - used) * stored if metric.better == "higher" else quantity <= (1 + used) * stored
                )
            except MetricAbsent:
                if name in margins:
                    raise
                continue  # stored before this metric could be had
            if claim.status == "violated":
                found.append(claim)
        return found


def trial_values(records: Sequence[BootRecord], want: Want, session: str) -> Callable[[str], list[verdict.Boot]]:
    """Boots of this session as the verdict package takes them, read anew at each call since boots may be added."""

    def boots(metric: str) -> list[verdict.Boot]:
        found = []
        for record in records:
            values = record.values(want, metric) if want in record.trials else ()
            if values:
                found.append(verdict.Boot(trials=values, session=session))
        return found

    return boots


def absence(records: Sequence[BootRecord], want: Want) -> Callable[[str], str]:
    """Why a metric is absent in all trials."""

    def reason(metric: str) -> str:
        for record in records:
            for trial in record.trials.get(want, ()):
                if metric in trial.absent:
                    return trial.absent[metric]
        return "no trial has it"

    return reason


def no_baseline(server: str, level: float, nodeid: str, where: Any) -> NoBaseline:
    """The outcome of its own for a first run."""
    return NoBaseline(
        f'no baseline is stored for server config "{server}" at concurrency {level} ({where}).\n'
        f'Record it with:  pytest "{nodeid}" --update-baselines'
    )
