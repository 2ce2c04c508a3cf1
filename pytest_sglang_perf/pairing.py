"""Pairs of neighbouring boots of two server configs, for tests with a paired plan.

What a node does to both boots of a pair cancels only where nothing ran between them. So a pair is two boots in
succession, in ABBA order; a boot that is there already serves as the first of a pair while its server still runs, and
never as the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_sglang_perf.bench import Bench
    from pytest_sglang_perf.measured import BootRecord, Planned, Want
    from pytest_sglang_perf.suite import ResolvedServer

__all__ = ["Pair", "Pairing"]


class Pair(NamedTuple):
    """Two boots, one right after the other; ``first`` is "candidate" or "reference", as `verdict` names the sides."""

    candidate: BootRecord
    control: BootRecord
    first: str

    @property
    def boots(self) -> tuple[BootRecord, BootRecord]:
        """Both, the candidate's before the control's."""
        return self.candidate, self.control


class Pairing:
    """The pairs of one candidate and one control on a bench; a level is in all of them or in some."""

    def __init__(self, bench: Bench, candidate: ResolvedServer, control: ResolvedServer) -> None:
        self._bench = bench
        self._sides = {"candidate": candidate, "reference": control}
        self._pairs: list[Pair] = []
        self._planned: dict[Want, Planned] = {}
        self._to_come: dict[Want, Planned] = {}

    def plan(self, want: Want, planned: Planned) -> None:
        """Note that a selected test needs this level, in its first ``planned.boots`` pairs."""
        known = self._planned.get(want, planned)
        self._planned[want] = self._to_come[want] = planned._replace(
            trials=max(known.trials, planned.trials), boots=max(known.boots, planned.boots)
        )

    def taken(self, want: Want) -> list[Pair]:
        """The pairs that have measured this level, in order."""
        return [pair for pair in self._pairs if all(want in boot.trials for boot in pair.boots)]

    def measure(self, want: Want, planned: Planned, *, test: str) -> list[Pair]:
        """Make sure that ``planned.boots`` pairs have measured this level, and return them.

        Raises:
            ServerCrashed, CrashedUnderLoad, TrialInvalid, NodeError: as of `Bench.measure`, of either config.
        """
        self._to_come.pop(want, None)
        for server in self._sides.values():
            self._bench.check(server, want, test=test)
        running = self._bench.running
        if running is not None and self._paired(running) and want in running.wanted and want not in running.trials:
            # The last boot of the pairs so far: it still has this level before it.
            server = next(side for side in self._sides.values() if side.fingerprint == running.fingerprint)
            self._bench.take(server, want, planned, test=test, fresh=False)
        while len(have := self.taken(want)) < planned.boots:
            # Reference, candidate, candidate, reference: whatever pairs this level has, the next begins the other way.
            candidate_first = bool(have) and have[-1].first == "reference"
            self._take("candidate" if candidate_first else "reference", want, planned, test)
        return have

    def _take(self, first: str, want: Want, planned: Planned, test: str) -> None:
        second = "reference" if first == "candidate" else "candidate"
        # Levels that later tests will ask of this pairing cost seconds now and two boots then.
        levels = {want: planned, **self._to_come}
        asked = {level for level in levels if self._is_asked(level)}
        boots = {}
        for side in (first, second):
            server = self._sides[side]
            fresh = side == second or not self._serves(server)
            record = boots[side] = self._bench.take(server, want, planned, test=test, fresh=fresh)
            record.wanted.update(levels)
            record.asked |= asked
        self._pairs.append(Pair(boots["candidate"], boots["reference"], first))

    def _is_asked(self, want: Want) -> bool:
        """Whether the next pair of this level was asked for before anything was measured."""
        planned = self._planned.get(want)
        return planned is not None and len(self.taken(want)) < planned.boots

    def _serves(self, server: ResolvedServer) -> bool:
        """Whether the server that runs now can be the first of a new pair."""
        running = self._bench.running
        return running is not None and running.fingerprint == server.fingerprint and not self._paired(running)

    def _paired(self, record: BootRecord) -> bool:
        return any(record is boot for pair in self._pairs for boot in pair.boots)
