"""What a test declares, known at collection: server config, control, workload, levels, expectation.

Plan, cost and selection by change need no run because everything comes from the mark or from parameters;
what was not declared cannot be measured.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import NotDeclared, SuiteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from pytest_sglang_perf.suite import Suite

__all__ = ["Declaration", "declare", "is_perf_test"]

_FIXTURES = frozenset({"sglang_server", "sglang_perf"})
_KEYS = ("server", "control", "workload", "concurrency", "expect", "reason", "crash", "plan", "boots", "trials")
_FROM_PARAMETERS = ("server", "control", "workload", "concurrency")


@dataclass(frozen=True)
class Declaration:
    """The declared side of one test.

    ``levels`` are concurrency levels of the workload; ``measures`` is False for a test that only wants a server up.
    """

    nodeid: str
    path: Path
    line: int
    server: str
    control: str | None
    workload: str
    levels: tuple[float, ...]
    measures: bool
    expect: str | None = None
    reason: str = ""
    crash: str | None = None
    plan: str | None = None
    boots: tuple[int, int] | None = None
    trials: int | None = None
    docs: str = field(default="", compare=False)

    @property
    def in_pairs(self) -> bool:
        """Whether server and control boot in pairs."""
        return self.control is not None and self.plan == "paired"

    def level(self, asked: float | None) -> float:
        """The level that ``measure()`` means.

        Raises:
            NotDeclared: it was not declared, or several were and none was named.
        """
        if asked is not None:
            if asked in self.levels:
                return asked
            raise NotDeclared(
                f"concurrency {asked} was not declared by this test, so it is not in the plan. Declared: "
                f"{_listed(self.levels)}. Add it to the mark: @pytest.mark.sglang(concurrency=[...])"
            )
        if len(self.levels) == 1:
            return self.levels[0]
        raise NotDeclared(
            f"this test declares the levels {_listed(self.levels)}: say which one, as in measure(concurrency="
            f"{self.levels[0]}), or parametrize the test over `concurrency`"
        )


def is_perf_test(item: pytest.Item) -> bool:
    """Whether the test uses this plugin, told without importing anything heavy."""
    return item.get_closest_marker("sglang") is not None or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def declare(item: pytest.Item, suite: Suite) -> Declaration:
    """Read what one test declares and check it against the suite.

    Raises:
        SuiteError: naming the test, the key, the value found and what was expected.
    """
    given = _merge_marks(item)
    where = f"{item.nodeid}: @pytest.mark.sglang"
    server = _name(given, "server", suite.servers, where, what="server config")
    if server is None:
        if len(suite.servers) == 1:
            server = next(iter(suite.servers))
        else:
            raise SuiteError(f'{where}(server="...") is missing. The suite has: {_listed(suite.servers)}')
    control = _name(given, "control", suite.servers, where, what="server config")
    workload = _name(given, "workload", suite.workloads, where, what="workload") or _default_workload(suite, where)
    declared = suite.workload(workload).levels
    levels = _levels(given.get("concurrency"), declared, where, workload)
    expect = _choice(given, "expect", ("refuted", "blocked"), where)
    reason = str(given.get("reason") or "")
    if expect and not reason:
        raise SuiteError(f'{where}(expect="{expect}") needs reason="...": when and why that is expected')
    crash = given.get("crash")
    if crash is not None and expect != "blocked":
        raise SuiteError(f'{where}(crash={crash!r}) only makes sense with expect="blocked"')
    plan = _choice(given, "plan", ("paired", "gate"), where)
    if plan == "paired" and control is None:
        raise SuiteError(f'{where}(plan="paired") needs control="...": the other config of the pairs')
    path, line, _ = item.location
    return Declaration(
        nodeid=item.nodeid,
        path=item.path,
        line=(line or 0) + 1,
        server=server,
        control=control,
        workload=workload,
        levels=levels,
        measures="sglang_perf" in getattr(item, "fixturenames", ()),
        expect=expect,
        reason=reason,
        crash=str(crash) if crash is not None else None,
        plan=plan,
        boots=_boots(given.get("boots"), where),
        trials=_count(given.get("trials"), "trials", where),
        docs=path,
    )


def _merge_marks(item: pytest.Item) -> dict[str, Any]:
    """The closest mark wins, key by key; parameters of the same name win over marks."""
    merged: dict[str, Any] = {}
    for mark in item.iter_markers("sglang"):
        unknown = sorted(set(mark.kwargs) - set(_KEYS))
        if unknown or len(mark.args) > 1:
            word = unknown[0] if unknown else "a second positional argument"
            close = difflib.get_close_matches(word, _KEYS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SuiteError(
                f"{item.nodeid}: @pytest.mark.sglang does not take {word!r}. It takes: {', '.join(_KEYS)}.{hint}"
            )
        if mark.args:
            merged.setdefault("server", mark.args[0])
        for key, value in mark.kwargs.items():
            merged.setdefault(key, value)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    for key in _FROM_PARAMETERS:
        if key in parameters:
            merged[key] = parameters[key]
    return merged


def _name(given: Mapping[str, Any], key: str, known: Mapping[str, object], where: str, *, what: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value in known:
        return value
    close = difflib.get_close_matches(str(value), list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SuiteError(f"{where}({key}={value!r}): no such {what} in the suite.{hint} Known: {_listed(known)}")


def _choice(given: Mapping[str, Any], key: str, choices: tuple[str, ...], where: str) -> str | None:
    value = given.get(key)
    if value is None or value in choices:
        return value
    raise SuiteError(f"{where}({key}={value!r}): expected {' or '.join(repr(c) for c in choices)}")


def _default_workload(suite: Suite, where: str) -> str:
    if suite.default_workload is not None:
        return suite.default_workload
    if len(suite.workloads) == 1:
        return next(iter(suite.workloads))
    raise SuiteError(
        f'{where}(workload="...") is missing and the suite names no default_workload. '
        f"It has: {_listed(suite.workloads)}"
    )


def _levels(value: object, declared: tuple[float, ...], where: str, workload: str) -> tuple[float, ...]:
    if value is None:
        return declared
    asked = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for level in asked:
        if isinstance(level, bool) or not isinstance(level, int | float) or level <= 0:
            raise SuiteError(f"{where}(concurrency={value!r}): expected a level, a number above 0, or several")
        if level not in declared:
            raise SuiteError(
                f"{where}(concurrency={level}): the workload {workload!r} declares {_listed(declared)}. "
                f"Add the level to the workload in the suite file, or use one of these"
            )
    return asked


def _boots(value: object, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    pair = (value, value) if isinstance(value, int) else value
    if (
        isinstance(pair, (tuple, list))
        and len(pair) == 2
        and all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
        and 1 <= pair[0] <= pair[1]
    ):
        return int(pair[0]), int(pair[1])
    raise SuiteError(f"{where}(boots={value!r}): expected a number, or (first, most)")


def _count(value: object, key: str, where: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise SuiteError(f"{where}({key}={value!r}): expected a whole number of at least 1")


def _listed(names: object) -> str:
    return ", ".join(str(name) for name in names)  # type: ignore[attr-defined]
