"""What a session is about to spend: the looks it may take, the error of each, the time that stored boots suggest."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from pytest_sglang_perf.baselines import FULL
from pytest_sglang_perf.measurement import Budget
from pytest_sglang_perf.report.figures import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_sglang_perf.session import PerfSession
    from pytest_sglang_perf.suite import ResolvedWorkload

__all__ = ["Expected", "boots_of", "expected", "looks"]


class Expected(NamedTuple):
    """Real seconds that the boots at first, and at most, will probably take, and which configs they leave out."""

    first_s: float
    most_s: float
    unknown: tuple[str, ...]

    def line(self) -> str:
        """As people read it."""
        if not self.most_s:
            return "how long this takes is not known before boots of it are stored"
        text = f"about {seconds(self.first_s)}"
        if self.most_s > self.first_s:
            text += f" at first, {seconds(self.most_s)} at most"
        return text + (f", and what {', '.join(self.unknown)} takes" if self.unknown else "")


def looks(budgets: Iterable[tuple[Budget, bool]]) -> list[str]:
    """One line for each sequential plan among the tests.

    Args:
        budgets: of each test, and whether it compares with stored boots (else with boots of this session).
    """
    lines = []
    for budget, stored in dict.fromkeys(budgets):
        if budget.most > budget.first:
            plan = budget.plan(FULL if stored else 0)
            lines.append(plan.describe() + (f"; with fewer than {FULL} stored the split differs a little" * stored))
    return lines


def expected(session: PerfSession, time_scale: float) -> Expected:
    """The time that the planned boots and trials take, by what is stored of the same configs and levels."""
    first = most = 0.0
    unknown = []
    for name, levels in session.plan().items():
        at_first, at_most = boots_of(session, name)
        times = []
        boot_s = None
        for (workload_name, level), trials in levels.items():
            workload = session.suite.workload(workload_name)
            boot_s = boot_s or _middle(session, name, workload, level, "boot_time")
            rate = _middle(session, name, workload, level, "request_throughput")
            times.append(_requests(workload, level) / rate * trials if rate else None)
        known = [time for time in times if time is not None]
        if boot_s is None or len(known) < len(times):
            unknown.append(name)
            continue
        one = (boot_s + sum(known)) / time_scale
        first, most = first + one * at_first, most + one * at_most
    return Expected(first, most, tuple(unknown))


def boots_of(session: PerfSession, name: str) -> tuple[int, int]:
    """Boots of a config at first and at most: tests share them, but pairs with different partners hardly do."""
    alone, pairings = Budget(0, 0), dict[tuple[str, str], Budget]()
    for declaration in session.declarations:
        names = declaration.server, declaration.control or ""
        if name in names:
            budget = session.budget(declaration)
            if declaration.in_pairs:
                pairings[names] = pairings.get(names, Budget(0, 0)).at_least(budget)
            else:
                alone = alone.at_least(budget)
    first = sum(budget.first * names.count(name) for names, budget in pairings.items())
    most = sum(budget.most * names.count(name) for names, budget in pairings.items())
    return max(alone.first, first), max(alone.most, most)


def _middle(session: PerfSession, server: str, workload: ResolvedWorkload, level: float, metric: str) -> float | None:
    boots = session.baseline_boots(server, workload.name, level, metric)
    return median(value for boot in boots for value in boot.trials) if boots else None


def _requests(workload: ResolvedWorkload, level: float) -> float:
    """Requests of a trial, those before its steady window too."""
    spec = workload.spec(level)
    warmup = spec["warmup"]["requests"]
    return float(spec["requests"] + (level if warmup is None else warmup))
