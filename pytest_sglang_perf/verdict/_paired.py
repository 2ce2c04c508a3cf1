"""Pairs of neighbouring boots: what the node does to both of a pair cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_sglang_perf.errors import VerdictError

from ._claims import compare, equivalent
from ._types import Boot, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._noise import Noise

__all__ = ["abba", "canary", "paired"]


def abba(pairs: int) -> tuple[tuple[Literal["reference", "candidate"], ...], ...]:
    """Order of the boots: reference first in pairs 1, 3, ..., candidate first in pairs 2, 4, ...

    Within every two pairs a steady drift of the node then adds as much to one side as to the other.
    """
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
    if not pairs or any(len(pair) != 2 for pair in pairs):
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
) -> tuple[str, ...]:
    """Reasons to void a session, from a small fixed workload measured before and after it.

    The canary never changes, so a change of it is the node's. Empty means that nothing speaks against the
    session; a canary too noisy to tell is a reason as well, because it guards nothing.
    """
    verdict = equivalent(after, before, within=within, noise=noise)
    low, high = verdict.interval
    if verdict.status is Status.VIOLATED:
        return (
            (
                f"the node itself moved: the canary ran at {verdict.effect:.1%} of its earlier figure"
                f" ({low:.1%} to {high:.1%}, allowed {1 - within:.1%} to {1 + within:.1%})"
            ),
        )
    if verdict.status is Status.INCONCLUSIVE:
        return (f"the canary cannot exclude that the node moved: {low:.1%} to {high:.1%} of its earlier figure",)
    return ()
