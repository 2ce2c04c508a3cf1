"""What the search asks of a node, on a bench that only pretends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_sglang_perf.culprit import BOOTS, CulpritSearch
from pytest_sglang_perf.errors import ServerCrashed
from pytest_sglang_perf.suite import ResolvedServer

if TYPE_CHECKING:
    from collections.abc import Callable

PARENT = ResolvedServer("base", ("base",), "m", args={"tp-size": 1}, env={})
CHILD = ResolvedServer(
    "changed", ("base", "changed"), "m", args={"tp-size": 1, **{f"f{n}": n for n in range(11)}}, env={"X": "1"}
)


class Suite:
    def server(self, name: str) -> ResolvedServer:
        return {"base": PARENT, "changed": CHILD}[name]


class Live:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Bench:
    """Gives the config itself as what was measured; ``crash`` says which configs do not come up."""

    def __init__(self, crash: Callable[[ResolvedServer], str] = lambda _: "") -> None:
        self.boots = 0
        self._crash = crash

    def ensure(self, server: ResolvedServer, *, test: str) -> None:
        del test
        self._boot(server)

    def crashes(self, server: ResolvedServer, crash_class: str) -> bool:
        self.boots += 1
        return self._crash(server) == crash_class

    def measure(self, server: ResolvedServer, *_: Any, **__: Any) -> Any:
        self._boot(server)
        return [server]

    def _boot(self, server: ResolvedServer) -> None:
        self.boots += 1
        if crash := self._crash(server):
            raise ServerCrashed("x", crash_class=crash, phase="weights", server=server.name)


def search(bench: Bench, live: Live | None = None) -> CulpritSearch:
    return CulpritSearch(bench, Suite(), live or Live())  # type: ignore[arg-type]


def regression(
    bench: Bench, violates: Callable[[Any], bool | None], good: ResolvedServer | None = PARENT, live: Live | None = None
) -> str:
    return search(bench, live).of_regression(
        CHILD,
        good,
        None,  # type: ignore[arg-type]
        8,
        trials=1,
        test="t",
        violates=lambda records: violates(records[0]),
    )


@pytest.mark.parametrize("culprit", [*[f"f{n}" for n in range(11)]])
def test_one_slow_setting_of_twelve(culprit: str) -> None:
    bench, live = Bench(), Live()
    told = regression(bench, lambda server: culprit in server.args, live=live)
    assert told.startswith(f"blame: args.{culprit} (")
    assert told.endswith("base meets it without)")
    assert bench.boots <= BOOTS
    (plan,) = live.notes
    assert plan.startswith("bisecting the regression at concurrency 8 of changed: 12 changes against base, at most ")


def test_an_environment_variable_is_a_setting_too() -> None:
    assert regression(Bench(), lambda server: "X" in server.env).startswith("blame: env.X (")


def test_against_the_baseline_the_parent_is_tried_first() -> None:
    assert regression(Bench(), lambda server: "f3" in server.args, good=None).startswith("blame: args.f3 (")
    bench = Bench()
    told = regression(bench, lambda _: True, good=None)
    assert told == "blame: base, which it extends, violates it as well"
    assert bench.boots == 1


def test_a_set_that_crashes_where_slowness_is_looked_for_is_gone_around() -> None:
    bench = Bench(lambda server: "cuda-oom" if "f0" in server.args and "f7" not in server.args else "")
    told = regression(bench, lambda server: "f9" in server.args)
    assert "args.f9" in told
    assert bench.boots <= BOOTS


def test_inconclusive_boots_are_taken_twice_and_the_budget_holds() -> None:
    bench = Bench()
    told = regression(bench, lambda _: None)
    assert bench.boots == BOOTS
    assert told.endswith("there may be a smaller set: some boots could not tell")


def test_a_crash_and_its_parent() -> None:
    bench = Bench(lambda server: "jit-build-failed" if "f5" in server.args else "")
    crash = ServerCrashed("x", crash_class="jit-build-failed", phase="weights", server="changed")
    assert search(bench).of_crash(CHILD, crash, "t").startswith("  blame   args.f5 (")
    broken = search(Bench(lambda _: "gpu-lost")).of_crash(CHILD, crash, "t")
    assert broken == "  blame   base, which it extends, crashes as well: gpu-lost"
    assert search(bench).of_crash(PARENT, crash, "t") == ""
