"""Claims about a metric, and what the boots say to them.

Every claim is judged by one interval of the effect, at ``confidence`` (default 90 %, so 5 % on each side):
wholly where the claim is true, it holds; wholly where it is false, it is violated; else nobody can tell yet.
That is non-inferiority by a confidence interval, and for `equivalent` the two one-sided tests of Schuirmann
(J. Pharmacokinet. Biopharm. 15, 1987). A point estimate never decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import numpy as np
from scipy import special

from pytest_sglang_perf.errors import VerdictError

from ._evidence import Evidence, of_difference, of_level
from ._numbers import LARGEST, as_float, check_confidence, number, shorten
from ._pairs import of_pairs
from ._types import Boot, Boots, Estimate, Status, Verdict, as_boots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._noise import Noise

__all__ = [
    "How",
    "at_least",
    "at_least_value",
    "at_most",
    "at_most_value",
    "compare",
    "equivalent",
    "estimate",
    "exact",
]

_MOST_BOOTS = 50
_LIKELY = 0.8
#: An interval that reaches further than this says nothing, whatever its end; and no report can hold infinity.
_WIDEST = math.log(1e15)


class How(TypedDict, total=False):
    """What every claim about two sides may be told.

    Attributes:
        noise: Learned noise of this metric and level; its own boots must not be in it (`learn_noise`).
        confidence: Of the interval; 0.90 unless given.
        paired: ``candidate[i]`` and ``reference[i]`` ran one after the other: True in `abba` order, else the side
            ("reference" or "candidate") that ran first, pair by pair.
        alike: Both sides are one configuration (a gate against its own baseline), so that their boots spread alike;
            true unless given. Say False for a control: another configuration may be noisier.
    """

    noise: Noise | None
    confidence: float
    paired: bool | Sequence[str]
    alike: bool


def compare(
    candidate: Boots, reference: Boots, *, margin: float, better: Literal["higher", "lower"], **how: Unpack[How]
) -> Verdict:
    """Not worse than the reference by more than the margin?

    Args:
        candidate: Boots of what is judged.
        reference: Boots it is judged against.
        margin: Tolerated worsening as a share, 0.05 for 5 %.
        better: Which direction of the metric is good.
        how: ``noise``, ``confidence``, ``paired``, ``alike``: see `How`.

    Raises:
        VerdictError: If the question has no meaning: no boots, values that are not positive, a margin out of
            range.
    """
    if better not in ("higher", "lower"):
        raise VerdictError(f"better must be 'higher' or 'lower', got {better!r}")
    tolerated = number("margin", margin, least=0.0, below=1.0 if better == "higher" else LARGEST)
    if better == "higher":
        return at_least(candidate, reference, 1 - tolerated, **how)
    return at_most(candidate, reference, 1 + tolerated, **how)


def at_least(candidate: Boots, reference: Boots, factor: float, **how: Unpack[How]) -> Verdict:
    """``candidate >= factor * reference``: superiority for factors above 1, non-inferiority below."""
    return _relative(candidate, reference, (number("factor", factor), math.inf), ">=", **how)


def at_most(candidate: Boots, reference: Boots, factor: float, **how: Unpack[How]) -> Verdict:
    """``candidate <= factor * reference``."""
    return _relative(candidate, reference, (0.0, number("factor", factor)), "<=", **how)


def equivalent(candidate: Boots, reference: Boots, *, within: float, **how: Unpack[How]) -> Verdict:
    """No effect beyond ``within`` either way: the ratio lies in 1 - within .. 1 + within."""
    share = number("within", within, below=1.0)
    return _relative(candidate, reference, (1 - share, 1 + share), "within", **how)


def at_least_value(candidate: Boots, limit: float, *, noise: Noise | None = None, confidence: float = 0.90) -> Verdict:
    """``candidate >= limit``, in the metric's unit."""
    return _absolute(candidate, (number("limit", limit), math.inf), ">=", noise, confidence)


def at_most_value(candidate: Boots, limit: float, *, noise: Noise | None = None, confidence: float = 0.90) -> Verdict:
    """``candidate <= limit``, in the metric's unit."""
    return _absolute(candidate, (0.0, number("limit", limit)), "<=", noise, confidence)


def exact(value: float, relation: Literal["<=", ">=", "==", "<", ">", "!="], limit: float) -> Verdict:
    """A claim about a figure without noise: failed requests, crashes, tokens at temperature 0."""
    for name, given in (("value", value), ("limit", limit)):
        if as_float(given) is None:
            raise VerdictError(f"an exact claim needs finite numbers; the {name} is {shorten(given)}")
    answers = {
        "<=": value <= limit,
        ">=": value >= limit,
        "==": value == limit,
        "<": value < limit,
        ">": value > limit,
        "!=": value != limit,
    }
    if relation not in list(answers):  # whatever was given need not be hashable
        raise VerdictError(f"relation {relation!r} is not known; use one of {', '.join(answers)}")
    true = answers[relation]
    figure = float(value)
    return Verdict(
        status=Status.HOLDS if true else Status.VIOLATED,
        effect=figure,
        interval=(figure, figure),
        method="exact metric, no statistics",
        boots=(1, 0),
        trials=(1, 0),
        warnings=(),
        more_boots=0,
        confidence=1.0,
        bound=(float(limit),),
        relation=relation,
        p_value=1.0 if true else 0.0,
        sides=(figure, None),
    )


def estimate(boots: Boots, *, noise: Noise | None = None, confidence: float = 0.90) -> Estimate:
    """A metric over some boots, with the interval of its long-run mean."""
    check_confidence(confidence)
    mine = as_boots(boots, "measurement")
    evidence = of_level(mine, noise)
    low, high = _interval(evidence, confidence)
    return Estimate(
        value=_exp(evidence.centre),
        interval=(_exp(low), _exp(high)),
        boots=len(mine),
        trials=_trials(mine),
        method=evidence.method,
        warnings=evidence.warnings,
        confidence=float(confidence),
    )


def _relative(
    candidate: Boots,
    reference: Boots,
    region: tuple[float, float],
    relation: str,
    *,
    noise: Noise | None = None,
    confidence: float = 0.90,
    paired: bool | Sequence[str] = False,
    alike: bool = True,
) -> Verdict:
    check_confidence(confidence)
    ours, theirs = as_boots(candidate, "candidate"), as_boots(reference, "reference")
    units = {boot.unit for boot in ours + theirs if boot.unit}
    if len(units) > 1:
        raise VerdictError(f"the sides have different units: {', '.join(sorted(units))}")
    if paired:
        if len(ours) != len(theirs):
            raise VerdictError(
                f"a paired plan needs as many candidate as reference boots, got {len(ours)} and {len(theirs)}"
            )
        evidence = of_pairs(ours, theirs, _first(paired, len(ours)), noise)
    else:
        evidence = of_difference(ours, theirs, noise, alike=alike)
    sides = (_geometric_mean(ours), _geometric_mean(theirs))
    return _judge(evidence, region, relation, confidence, (ours, theirs), sides=sides, paired=bool(paired))


def _first(paired: bool | Sequence[str], pairs: int) -> Sequence[str]:
    """Which side ran first in each pair."""
    if isinstance(paired, bool):
        return ["candidate" if number % 2 else "reference" for number in range(pairs)]
    if len(paired) != pairs or not {"reference", "candidate"}.issuperset(paired):
        raise VerdictError(
            f"paired must be True or name the side that ran first in each of {pairs} pairs ('reference' or "
            f"'candidate'), got {shorten(paired)}"
        )
    return paired


def _absolute(
    candidate: Boots, region: tuple[float, float], relation: str, noise: Noise | None, confidence: float
) -> Verdict:
    check_confidence(confidence)
    ours = as_boots(candidate, "candidate")
    return _judge(of_level(ours, noise), region, relation, confidence, (ours, ()), sides=(_geometric_mean(ours), None))


def _judge(
    evidence: Evidence,
    region: tuple[float, float],
    relation: str,
    confidence: float,
    boots: tuple[tuple[Boot, ...], tuple[Boot, ...]],
    *,
    sides: tuple[float, float | None],
    paired: bool = False,
) -> Verdict:
    low, high = _interval(evidence, confidence)
    bottom, top = (math.log(edge) if 0 < edge < math.inf else -math.inf if edge == 0 else edge for edge in region)
    chances = [1.0]
    if math.isfinite(bottom):
        chances.append(1 - float(evidence.distribution.below(bottom)))
    if math.isfinite(top):
        chances.append(float(evidence.distribution.below(top)))
    share = caution(len(boots[0]), len(boots[1]), drifting=evidence.drift_sd is not None)
    p_value = min(max(min(chances), 0.0) / share, 1.0)
    outside = high < bottom or low > top
    doubted = outside and p_value > (1 - confidence) / 2
    if low >= bottom and high <= top:
        status = Status.HOLDS
    elif outside and not doubted:
        status = Status.VIOLATED
    else:
        status = Status.INCONCLUSIVE
    more: int | None = 0
    each: int | None = 0
    if doubted and len(boots[0]) == 1:
        more = each = 1  # a second boot is not doubted
    elif status is Status.INCONCLUSIVE:
        more = _more_boots(evidence, bottom, top, confidence, len(boots[0]))
        # A pair is one difference: its second boot is no further degree of freedom.
        each = more if paired else _more_boots(evidence, bottom, top, confidence, *map(len, boots))
    return Verdict(
        status=status,
        effect=_exp(evidence.centre),
        interval=(_exp(low), _exp(high)),
        method=evidence.method,
        boots=(len(boots[0]), len(boots[1])),
        trials=(_trials(boots[0]), _trials(boots[1])),
        warnings=(*([_doubt(len(boots[0]))] if doubted else []), *evidence.warnings),
        more_boots=more,
        more_boots_each=each,
        confidence=float(confidence),
        bound=tuple(float(edge) for edge in region if 0 < edge < math.inf),
        relation=relation,
        p_value=p_value,
        drift_sd=evidence.drift_sd,
        trend=None if evidence.trend is None else _exp(evidence.trend),
        sides=sides,
        balanced=evidence.balanced,
    )


def caution(candidate: int, reference: int, *, drifting: bool) -> float:
    """At which share of the error an accusation is made: below 1 where the calibration shows too many wrong ones.

    A single new boot: where one boot in five is slow by itself, five stored ones are all fast in a third of the cases.
    Many new boots of one session against those of others: the session is one draw, however many boots it has.
    """
    if reference < 2:
        return 1.0  # the stated prior, or no reference
    if candidate == 1:
        return 0.75
    return 0.85 if drifting and candidate > 5 else 1.0


def _doubt(candidate: int) -> str:
    """Why an interval beyond the limit was not enough."""
    if candidate == 1:
        return "a single new boot may be a slow one by itself: a second has to confirm it"
    return "all new boots are of one session, and that may be a slow one by itself: another has to confirm it"


def _interval(evidence: Evidence, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    return float(evidence.distribution.quantile(tail)), float(evidence.distribution.quantile(1 - tail))


def _more_boots(
    evidence: Evidence, bottom: float, top: float, confidence: float, boots: int, reference: int = 0
) -> int | None:
    """Fewest further candidate boots that decide with 80 % probability if the effect is what it looks like.

    Conditional power under the current trend (Jennison and Turnbull 2000, section 10.2), with t quantiles. With a
    number of ``reference`` boots, as many are taken there, and the variance of that side falls likewise; that is so
    where both are of one session, whose drift cancels.
    """
    inside = bottom < evidence.centre < top
    if inside:
        distance = min(evidence.centre - bottom, top - evidence.centre)
    else:
        distance = max(bottom - evidence.centre, evidence.centre - top)
    # The expectation of a variance that few boots tell is far above what it most likely is: by df / (df - 2) where the
    # variance is scaled inverse chi-squared (Gelman et al. 2013, Bayesian Data Analysis, table A.1).
    likely = max(evidence.df - 2, 0.5) / evidence.df
    own, other = likely * evidence.boot_var, likely * evidence.fixed_var
    for more in range(1, _MOST_BOOTS + 1):
        fixed = other * (reference / (reference + more) if reference else 1.0)
        se = math.sqrt(fixed + own / (boots + more))
        moves = math.sqrt(other - fixed + own * (1 / boots - 1 / (boots + more)))
        limit = float(special.stdtrit(evidence.df + more * (2 if reference else 1), 1 - (1 - confidence) / 2))
        if distance >= limit * se + float(special.ndtri(_LIKELY)) * moves:
            return more
    return None


def _geometric_mean(boots: tuple[Boot, ...]) -> float:
    return math.exp(sum(float(np.mean(np.log(boot.trials))) for boot in boots) / len(boots))


def _trials(boots: tuple[Boot, ...]) -> int:
    return sum(len(boot.trials) for boot in boots)


def _exp(log: float) -> float:
    return math.exp(min(max(log, -_WIDEST), _WIDEST))
