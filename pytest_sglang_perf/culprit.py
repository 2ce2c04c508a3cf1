"""``--sglang-bisect``: which of a config's settings is to blame for its crash, or for a claim that it violates.

The search itself is `pytest_sglang_perf.blame`; here is what it asks of the node: boots for a crash, boots with the
claim's own verdict for a regression. Plan and budget are shown before, and what was found is told with the failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf import blame
from pytest_sglang_perf.errors import ServerCrashed, TrialInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_sglang_perf.bench import Bench
    from pytest_sglang_perf.blame import Blame, Change
    from pytest_sglang_perf.measured import BootRecord
    from pytest_sglang_perf.report.live import Live
    from pytest_sglang_perf.suite import ResolvedServer, ResolvedWorkload, Suite

__all__ = ["BOOTS", "CulpritSearch"]

#: Boots that one search may take, besides one of the config without the changes; one of twelve is found in five.
BOOTS = 8


class CulpritSearch:
    """Looks for culprits on one node.

    Args:
        bench: boots and measures.
        suite: knows the configs that others extend.
        live: is told the plan.
    """

    def __init__(self, bench: Bench, suite: Suite, live: Live) -> None:
        self._bench = bench
        self._suite = suite
        self._live = live

    def of_crash(self, server: ResolvedServer, error: ServerCrashed, test: str) -> str:
        """What makes a config crash that its parent does not have, in a line for the failure; "" without a parent."""
        parent = self._parent(server)
        if parent is None:
            return ""
        differing = self._announce(parent, server, "the crash")
        try:
            self._bench.ensure(parent, test=test)
        except ServerCrashed as of_parent:
            return f"  blame   {parent.name}, which it extends, crashes as well: {of_parent.crash_class}"
        found = blame.find(
            differing,
            lambda chosen: self._bench.crashes(_part(parent, server, chosen), error.crash_class),
            budget=BOOTS,
        )
        return f"  blame   {_told(found, found.tests, f'{parent.name} boots without')}"

    def of_regression(
        self,
        server: ResolvedServer,
        good: ResolvedServer | None,
        workload: ResolvedWorkload,
        level: float,
        *,
        trials: int,
        test: str,
        violates: Callable[[Sequence[BootRecord]], bool | None],
    ) -> str:
        """What makes a config violate a claim.

        Args:
            server: the config that violates it.
            good: a config known to meet it (the control); None for the one that ``server`` extends, which is tried.
            workload: what is measured, at ``level``.
            level: the concurrency of the claim.
            trials: of each boot.
            test: who asks.
            violates: judges the boots of a config by the claim: True, False, or None where that is inconclusive.

        Returns:
            A line for the claim's explanation; "" where there is nothing to search among.
        """
        parent = good or self._parent(server)
        if parent is None or not blame.changes(parent, server):
            return ""
        differing = self._announce(parent, server, f"the regression at concurrency {level:g}")

        def outcome(config: ResolvedServer, boots: int) -> bool | None:
            try:
                return violates(self._bench.measure(config, workload, level, boots=boots, trials=trials, test=test))
            except (ServerCrashed, TrialInvalid):
                return None  # another trouble than the one that is looked for

        spent = 0

        def fails(chosen: tuple[Change, ...]) -> bool | None:
            nonlocal spent
            config = _part(parent, server, chosen)
            found = None
            for boots in (1, 2):  # a second boot where one cannot tell
                if spent >= BOOTS:
                    raise blame.OutOfBudget
                spent += 1
                found = outcome(config, boots)
                if found is not None:
                    break
            return found

        if good is None and outcome(parent, 1):
            return f"blame: {parent.name}, which it extends, violates it as well"
        found = blame.find(differing, fails, budget=BOOTS)
        return f"blame: {_told(found, spent, f'{parent.name} meets it without')}"

    def _parent(self, server: ResolvedServer) -> ResolvedServer | None:
        if len(server.chain) < 2 or server.chain[-1] != server.name:
            return None
        parent = self._suite.server(server.chain[-2])
        return parent if blame.changes(parent, server) else None

    def _announce(self, parent: ResolvedServer, server: ResolvedServer, what: str) -> tuple[Change, ...]:
        differing = blame.changes(parent, server)
        self._live.note(
            f"bisecting {what} of {server.name}: {len(differing)} changes against {parent.name}, "
            f"at most {BOOTS} boots and one of {parent.name}"
        )
        return differing


def _part(parent: ResolvedServer, server: ResolvedServer, chosen: Sequence[Change]) -> ResolvedServer:
    return blame.with_changes(parent, server, chosen, name=f"{server.name}~{len(chosen)}")


def _told(found: Blame[Change], boots: int, otherwise: str) -> str:
    culprits = ", ".join(f"{part}.{name}" for part, name in found.culprits)
    text = f"{culprits} ({boots} boots; {otherwise})"
    if found.minimal:
        return text
    why = "some boots could not tell" if found.unresolved else "the budget ended"
    return f"{text}; there may be a smaller set: {why}"
