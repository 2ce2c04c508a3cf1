"""What a test writes, ``now.output_throughput >= 0.97 * now.baseline.output_throughput``, as statistical statements.

A comparison of two figures makes a :class:`Claim`. Its verdict is computed once, when it is made, and recorded on
the test. In a boolean context only *violated* is false: an inconclusive claim lets the test go on, so that every
claim is heard, and makes the test's outcome inconclusive at the end.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytest_sglang_perf.errors import VerdictError
from pytest_sglang_perf.report.figures import figure, interval, percent

if TYPE_CHECKING:
    from pytest_sglang_perf.metrics import Metric
    from pytest_sglang_perf.verdict import Estimate, SequentialPlan, Verdict

__all__ = ["Claim", "Judge", "Quantity", "Regressions", "Shown"]

_FLIPPED = {">=": "<=", "<=": ">="}
_RANK = {"violated": 0, "inconclusive": 1, "recorded": 2, "holds": 3}


class Judge(Protocol):
    """Computes and records the verdict of a comparison; the session's part of a claim."""

    def judge(self, candidate: Quantity, op: str, reference: Quantity | float, *, within: float | None = None) -> Claim:
        """Return the claim ``candidate op reference``, recorded on the running test.

        ``op`` is ``>=``, ``<=`` or, with ``within``, ``==``.
        """


class Quantity:
    """One metric of one side of a test, perhaps times a factor; made by attribute access on a measurement.

    ``side`` is ``now``, ``baseline`` or ``control``. Comparing makes a :class:`Claim`; ``value`` is the estimate.
    """

    __hash__ = None  # type: ignore[assignment]  # == makes no sense for estimates, so neither does a hash

    def __init__(self, judge: Judge, side: str, key: Any, metric: Metric, factor: float = 1.0) -> None:
        self.judge = judge
        self.side = side
        self.key = key
        self.metric = metric
        self.factor = factor

    def __mul__(self, factor: float) -> Quantity:
        if not _is_number(factor) or not 0 < factor < float("inf"):
            raise VerdictError(f"{self!r} can be multiplied by a positive number, not by {factor!r}")
        return Quantity(self.judge, self.side, self.key, self.metric, self.factor * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Quantity:
        if not _is_number(divisor) or divisor <= 0:
            raise VerdictError(f"{self!r} can be divided by a positive number, not by {divisor!r}")
        return self * (1.0 / divisor)

    def __ge__(self, other: Quantity | float) -> Claim:
        return _claim(self, ">=", other)

    def __le__(self, other: Quantity | float) -> Claim:
        return _claim(self, "<=", other)

    # With estimates there is no difference between "at least" and "more than".
    __gt__ = __ge__
    __lt__ = __le__

    def __eq__(self, other: object) -> NoReturn:
        raise VerdictError(
            "two estimates are never equal. To say that a change has no effect, write "
            "`now.output_throughput.equals(now.control.output_throughput, within=0.03)`"
        )

    def __ne__(self, other: object) -> NoReturn:
        self.__eq__(other)

    def equals(self, other: Quantity, *, within: float) -> Claim:
        """Claim that the two differ by less than ``within`` (a fraction, such as 0.03): "no effect within 3 %"."""
        if not isinstance(other, Quantity) or not 0 < within < 1:  # type: ignore[redundant-expr]  # users' input
            raise VerdictError(f"equals() takes another side's metric and within=0.03, not {other!r}, {within!r}")
        _same_metric(self, other)
        return self.judge.judge(self, "==", other, within=within)

    def __bool__(self) -> NoReturn:
        raise VerdictError(f"{self!r} is an estimate, neither true nor false. Compare it with something")

    @property
    def value(self) -> float:
        """The point estimate times the factor: for printing, never for deciding."""
        return float(self.estimate().value) * self.factor

    def __float__(self) -> float:
        return self.value

    def estimate(self) -> Estimate:
        """The estimate without the factor.

        Raises:
            MetricAbsent: this metric cannot be had here, and why.
        """
        found: Estimate = self.key.estimate(self.metric)
        return found

    def __repr__(self) -> str:
        name = f"{self.side}.{self.metric.name}"
        return name if self.factor == 1.0 else f"{self.factor:g} * {name}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_metric(left: Quantity, right: Quantity) -> None:
    if left.metric.name != right.metric.name:
        raise VerdictError(f"{left!r} and {right!r} are different metrics: there is nothing to compare")


def _claim(left: Quantity, op: str, right: Quantity | float) -> Claim:
    if isinstance(right, Quantity):
        _same_metric(left, right)
        if left.side == right.side and left.key is right.key:
            raise VerdictError(f"{left!r} is compared with itself. Compare with now.baseline or now.control")
        if left.side != "now" and right.side == "now":
            left, op, right = right, _FLIPPED[op], left
        return left.judge.judge(left, op, right)
    if not _is_number(right):
        raise VerdictError(f"{left!r} can be compared with the same metric of another side or with a number")
    return left.judge.judge(left, op, float(right))


@dataclass(frozen=True)
class Shown:
    """One side of a claim as reports show it; builtin types only, because it crosses process borders."""

    label: str
    value: float
    low: float
    high: float
    boots: int
    trials: int

    def line(self, unit: str) -> str:
        count = f"{_count(self.boots, 'boot')}, {_count(self.trials, 'trial')}"
        return f"{figure(self.value, unit):>14}  {interval(self.low, self.high, unit)}  {count}"


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


@dataclass(frozen=True)
class Claim:
    """A comparison with its verdict. False only when violated; `not claim` raises.

    ``bound`` is the asked ratio (candidate to reference), the limit itself where ``reference`` is None, or for ``==``
    the half-width as a fraction. ``blame`` names the setting that ``--sglang-bisect`` found.
    ``against`` is the other side: ``baseline``, ``control``, or nothing for a limit; ``plan`` is the sequential plan as
    it stood after the last look.
    """

    text: str
    metric: str
    unit: str
    op: str
    bound: float
    candidate: Shown
    reference: Shown | None
    verdict: Verdict | None
    status: str
    where: str
    simulated: bool = False
    level: float | None = None
    blame: str = ""
    against: str = ""
    plan: SequentialPlan | None = None

    def __bool__(self) -> bool:
        _refuse_not(sys._getframe(1))  # noqa: SLF001
        return self.status != "violated"

    @property
    def rank(self) -> int:
        """0 for the status that decides a test first."""
        return _RANK[self.status]

    @property
    def more_boots(self) -> int | None:
        """How many more boots would probably decide; against a control, of each side."""
        if self.verdict is None:
            return None
        return self.verdict.more_boots_each if self.against == "control" else self.verdict.more_boots

    def __repr__(self) -> str:
        return f"<{self.status}: {self.text}>"

    def explain(self) -> list[str]:
        """At most seven lines that a person understands at a glance."""
        lines = [f"{self.status}: {self.text}"]
        width = max(len(self.candidate.label), len(self.reference.label) if self.reference else 0)
        lines.append(f"  {self.candidate.label:<{width}} {self.candidate.line(self.unit)}")
        if self.reference is not None:
            lines.append(f"  {self.reference.label:<{width}} {self.reference.line(self.unit)}")
        lines.extend("  " + line for line in self.why())
        return lines[:7]

    def looks(self) -> str:
        """Which look of the plan this is, and what of its error the looks have spent."""
        if self.plan is None:
            return ""
        return (
            f"look {self.plan.taken} of {len(self.plan.looks)}, {self.plan.error_spent() * 100:.1f} of "
            f"{(1 - self.plan.confidence) * 50:.3g} % error spent"
        )

    def _what_would_decide(self) -> str:
        more, of_control = self.more_boots, self.against == "control"
        if more:
            needed = _count(more, "more boot") + (" of each side" if of_control else "")
            return f"{needed} would probably decide: --sglang-boots={self.candidate.boots + more}"
        if self.against == "baseline":
            return (
                "more boots of today would not decide it: too few are stored, or they scatter too much for this margin"
            )
        whose = " of each side" if of_control else ""
        return f"50 more boots{whose} would not decide it: too much noise for this bound, or an effect too near it"

    def why(self) -> list[str]:
        """The interval of the effect, what was asked for, and what would settle it."""
        verdict = self.verdict
        if verdict is None:
            return ["nothing was stored yet, so nothing is judged"]
        low, high = verdict.interval
        if self.reference is None:
            found = f"{interval(low, high, self.unit)}, asked for {self.op} {figure(self.bound, self.unit)}"
        elif self.op == "==":
            found = f"change {percent(low)} .. {percent(high)}, asked for at most ±{self.bound * 100:.3g} %"
        else:
            found = (
                f"ratio {verdict.effect:.3f} [{low:.3f} .. {high:.3f}] ({percent(verdict.effect)}), "
                f"asked for {self.op} {self.bound:.4g}"
            )
        lines = [f"{verdict.confidence * 100:.0f} % interval: {found}"]
        if self.plan is not None and len(self.plan.looks) > 1:
            lines[0] += f" ({self.looks()})"
        if verdict.trend is not None:
            # Of pairs that were begun unevenly a part of it is left; the verdict's own warning says how much.
            whole = ", which ABBA pairs cancel" if verdict.balanced else ""
            lines.append(f"drift of the node: {percent(verdict.trend)} a boot{whole}")
        if self.status == "inconclusive":
            lines.append(self._what_would_decide())
        if self.blame:
            lines.append(self.blame)
        lines.extend(f"note: {warning}" for warning in verdict.warnings[:2])
        return lines


class Regressions(list[Claim]):
    """The claims of the usual set that did not hold, as ``now.regressions()`` returns them.

    Empty, and so false, when nothing regressed: ``assert not now.regressions()``. Inconclusive ones are not in it;
    they are recorded on the test like every claim.
    """

    def __repr__(self) -> str:
        return "no regressions" if not self else "\n".join("\n".join(claim.explain()) for claim in self)


def _refuse_not(frame: Any) -> None:
    """Raise when the truth value is taken by ``not``: the negation of "not violated" is not "violated".

    pytest itself negates results while it explains an assertion; that is not a user's statement.
    """
    if frame.f_globals.get("__name__", "").startswith(("_pytest.", "pytest_sglang_perf.")):
        return
    code = frame.f_code
    following = [i for i in dis.get_instructions(code) if i.offset >= frame.f_lasti][:3]
    names = [i.opname for i in following]
    if "UNARY_NOT" in names[:1] or (names[:1] == ["TO_BOOL"] and "UNARY_NOT" in names[1:2]):
        raise VerdictError(
            "`not` on a claim would turn an inconclusive one into a failure and a violated one into a pass. "
            'Write the opposite comparison, or expect="refuted" on the mark (docs/explanation/claims.md)'
        )
