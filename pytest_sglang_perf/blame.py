"""Which of the settings that a config changes makes it crash or slow: delta debugging over boots.

A boot costs minutes, so the search is optimistic: it halves the changes as if one alone were to blame, and confirms
the last one by itself. Where that fails because several are needed together, it goes on with ddmin (Zeller and
Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28, 2002), remembering every boot. A set
whose outcome cannot be told (an inconclusive measurement, a crash where slowness was looked for) is *unresolved*, as
there: the search goes around it, and says so where it may have missed a smaller set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_sglang_perf.suite import ResolvedServer

__all__ = ["Blame", "Change", "OutOfBudget", "changes", "find", "with_changes"]

T = TypeVar("T")

Change = tuple[str, str]
"""``("args", name)`` or ``("env", name)``: a setting in which two configs differ."""


@dataclass(frozen=True)
class Blame(Generic[T]):
    """What was found.

    Attributes:
        culprits: the smallest failing set that is known.
        tests: how many sets were tried.
        minimal: whether no part of ``culprits`` fails by itself, as far as single omissions tell.
        unresolved: how many sets could not be told to fail or not.
    """

    culprits: tuple[T, ...]
    tests: int
    minimal: bool
    unresolved: int = 0


class OutOfBudget(Exception):
    """The next test would be one too many. A test may raise it as well, where boots are counted elsewhere."""


def find(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool | None], *, budget: int) -> Blame[T]:
    """Find a smallest failing subset of ``items``.

    All of them together are known to fail, and none of them not to.

    Args:
        items: in a fixed order; subsets are given in that order.
        fails: tries one subset; each is tried at most once. None: nobody can tell.
        budget: the most subsets to try.
    """
    known: dict[tuple[T, ...], bool | None] = {(): False, tuple(items): True}
    tests = 0

    def tried(subset: tuple[T, ...]) -> bool | None:
        nonlocal tests
        if subset not in known:
            if tests >= budget:
                raise OutOfBudget
            known[subset] = fails(subset)
            tests += 1
        return known[subset]

    def smallest() -> tuple[T, ...]:
        return min((subset for subset, failed in known.items() if failed), key=len)

    try:
        single = _halve(tuple(items), tried)
        culprits = single if single is not None else _ddmin(smallest(), tried)
    except OutOfBudget:
        culprits, spent = smallest(), True
    else:
        spent = False
    unresolved = sum(failed is None for failed in known.values())
    return Blame(culprits, tests, minimal=len(culprits) == 1 or not (spent or unresolved), unresolved=unresolved)


def _halve(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool | None]) -> tuple[T, ...] | None:
    """Binary search for one culprit; None when no single one fails by itself."""
    while len(items) > 1:
        first, rest = items[: len(items) // 2], items[len(items) // 2 :]
        failed = fails(first)
        if failed is None and not fails(rest):
            return None
        items = first if failed else rest
    return items if fails(items) else None


def _ddmin(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool | None]) -> tuple[T, ...]:
    parts = 2
    while len(items) > 1:
        size = len(items) / parts
        chunks = [items[round(i * size) : round((i + 1) * size)] for i in range(parts)]
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        if smaller is not None:
            items, parts = smaller, 2
            continue
        rests = [tuple(item for item in items if item not in chunk) for chunk in chunks]
        rest = next((r for r in rests if parts > 2 and fails(r)), None)
        if rest is not None:
            items, parts = rest, max(parts - 1, 2)
        elif parts < len(items):
            parts = min(len(items), parts * 2)
        else:
            break
    return items


def changes(parent: ResolvedServer, child: ResolvedServer) -> tuple[Change, ...]:
    """The settings in which ``child`` differs from ``parent``, in a fixed order."""
    found: list[Change] = []
    for part in ("args", "env"):
        before, after = getattr(parent, part), getattr(child, part)
        found += [(part, name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return tuple(found)


def with_changes(
    parent: ResolvedServer, child: ResolvedServer, chosen: Sequence[Change], *, name: str
) -> ResolvedServer:
    """``parent`` with only these of ``child``'s changes."""
    settings: dict[str, dict[str, Any]] = {"args": dict(parent.args), "env": dict(parent.env)}
    for part, key in chosen:
        theirs = getattr(child, part)
        if key in theirs:
            settings[part][key] = theirs[key]
        else:
            settings[part].pop(key, None)
    return replace(child, name=name, args=settings["args"], env=settings["env"])
