"""Pairs of neighbouring boots: what the node does to both of a pair cancels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pytest_sglang_perf.errors import VerdictError

from ._claims import compare, equivalent
from ._numbers import MOST_BOOTS, is_count, items, number, shorten
from ._types import Boot, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._noise import Noise

__all__ = ["abba", "canary", "paired"]


def abba(pairs: int) -> tuple[tuple[Literal["reference", "candidate"], ...], ...]:
    """Order of the boots: reference first in pairs 1, 3, ..., candidate first in pairs 2, 4, ...

    Within every two pairs a steady drift of the node then adds as much to one side as to the other.
    """
    if not is_count(pairs) or not 1 <= pairs <= MOST_BOOTS:
        raise VerdictError(f"a paired plan has 1 to {MOST_BOOTS} pairs, got {shorten(pairs)}")
    forth: tuple[Literal["reference", "candidate"], ...] = ("reference", "candidate")
    return tuple(forth if index % 2 == 0 else forth[::-1] for index in range(pairs))


def paired(
    pairs: Sequence[tuple[Boot | Sequence[float], Boot | Sequence[float]]],
    *,
    margin: float,
    better: Literal["higher", "lower"],
    noise: Noise | None = None,
    confidence: float = 0.90,
) -> Verdict:
    """`compare` on (candidate, reference) pairs that ran in `abba` order.

    ``trend`` of the verdict is the node's movement per boot; a warning says when an odd number of pairs lets
    part of it into the effect. The other claims take ``paired=True``.
    """
    if not items(pairs) or any(len(items(pair)) != 2 for pair in pairs):
        raise VerdictError("a paired plan needs at least one (candidate, reference) pair of boots")
    return compare(
        [candidate for candidate, _ in pairs],
        [reference for _, reference in pairs],
        margin=margin,
        better=better,
        noise=noise,
        confidence=confidence,
        paired=True,
    )


def canary(
    before: Sequence[Boot | Sequence[float]],
    after: Sequence[Boot | Sequence[float]],
    *,
    within: float,
    noise: Noise | None = None,
) -> Verdict:
    """Did the node itself move? Judged on a small fixed workload that ran before and after the session.

    The canary never changes, so a change of it is the node's: ``violated`` voids the session, and the first
    warning says so. ``inconclusive`` is a canary too noisy to guard anything, as one boot on each side is
    without learned noise.
    """
    share = number("within", within, below=1.0)
    verdict = equivalent(after, before, within=share, noise=noise)
    low, high = verdict.interval
    told = f"the canary ran at {low:.1%} to {high:.1%} of its earlier figure"
    if verdict.status is Status.VIOLATED:
        words = f"the node itself moved: {told}, allowed {1 - share:.1%} to {1 + share:.1%}"
    elif verdict.status is Status.INCONCLUSIVE:
        words = f"the canary cannot exclude that the node moved: {told}"
    else:
        return verdict
    return replace(verdict, warnings=(words, *verdict.warnings))
