"""Two sets of stored boots, level by level and metric by metric: what moved, by how much, and the verdict.

Pure: where the boots come from (baseline files, run files) is the callers' business. The noise of each level is
learned from the other levels of both sides, as in a test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import verdict
from pytest_sglang_perf.claims import Shown
from pytest_sglang_perf.errors import SuiteError, VerdictError
from pytest_sglang_perf.metrics import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_sglang_perf.metrics import Metric

__all__ = [
    "MAIN_METRICS",
    "Change",
    "Key",
    "LevelBoots",
    "changes",
    "chosen_metrics",
    "corrected",
    "counts",
    "noise_of",
    "shown",
]

#: What is shown unless other metrics are asked for: the usual gate, power, and failures.
MAIN_METRICS = (*(m.name for m in REGISTRY.values() if m.margin is not None), "power_draw_per_gpu", "failed_requests")

#: An answer is wrong at most this often, and so are all of them together where they are corrected for their number.
ALPHA = 0.05

#: Below, nothing is a measurement: it is a zero that was rounded, and has no useful logarithm.
_TINY = 1e-12

#: Workload and level; the level is None for what belongs to a boot and to no level, its boot time.
Key = tuple[str, "float | None"]


@dataclass(frozen=True)
class LevelBoots:
    """All boots of one server config at one level of one workload.

    Attributes:
        server: name of the server config; ``config`` its fingerprint.
        workload: name of the workload, "" for what belongs to no level; ``fingerprint`` its content.
        level: concurrency or rate, None for what belongs to no level.
        boots: metric -> its boots, oldest first.
        recorded: when the newest boot ran, as ``2026-11-29T15:04:05Z`` ("" if unknown).
        sglang: version of the newest boot.
    """

    server: str
    config: str
    workload: str
    fingerprint: str
    level: float | None
    boots: Mapping[str, tuple[verdict.Boot, ...]] = field(default_factory=dict)
    recorded: str = ""
    sglang: str = ""

    @property
    def key(self) -> Key:
        return self.workload, self.level


@dataclass(frozen=True)
class Change:
    """One metric at one level on both sides.

    ``status`` is ``holds`` (not worse by more than the margin), ``violated``, ``inconclusive``, or, where nothing can
    be judged, ``no direction`` (the ratio is shown), ``gone``, ``new`` or ``not judged``; ``note`` says why.
    ``ratio`` is new / old.
    """

    workload: str
    level: float | None
    metric: str
    unit: str
    better: str | None
    status: str
    old: Shown | None = None
    new: Shown | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    margin: float | None = None
    more_boots: int | None = None
    p_value: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Builtin types only."""
        data = asdict(self)
        data["interval"] = list(self.interval) if self.interval is not None else None
        return data


def chosen_metrics(names: Sequence[str] | None) -> tuple[str, ...]:
    """The metrics that a command was asked for, the main ones by default.

    Raises:
        SuiteError: there is no such metric; the message guesses what was meant.
    """
    if not names:
        return MAIN_METRICS
    for name in names:
        if name not in REGISTRY:
            import difflib

            close = difflib.get_close_matches(name, list(REGISTRY), n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else f" There are: {', '.join(sorted(REGISTRY))}."
            raise SuiteError(f"no such metric: {name}.{hint}")
    return tuple(dict.fromkeys(names))


def corrected(found: Sequence[Change], how: str) -> list[Change]:
    """Correct the violated claims for the number of claims: ``holm``, ``bh`` (Benjamini-Hochberg), or ``none``.

    A violation that does not survive is inconclusive; its note has both p-values.
    """
    if how == "none":
        return list(found)
    judged = [change for change in found if change.p_value is not None]
    adjust = verdict.holm if how == "holm" else verdict.benjamini_hochberg
    adjusted = dict(zip(map(id, judged), adjust([change.p_value or 0.0 for change in judged]), strict=True))
    return [
        replace(
            change,
            status="inconclusive",
            note=f"p {change.p_value:.2g} alone, {adjusted[id(change)]:.2g} corrected for {len(judged)} claims ({how})",
        )
        if change.status == "violated" and adjusted[id(change)] > ALPHA
        else change
        for change in found
    ]


def counts(found: Iterable[Change]) -> dict[str, int]:
    """How often each status occurs."""
    return dict(Counter(change.status for change in found))


def noise_of(
    metric: str, key: Key, sides: Sequence[Mapping[Key, LevelBoots]], others: Sequence[Mapping[Key, LevelBoots]] = ()
) -> verdict.Noise | None:
    """Noise of a metric at one level, or None where nothing tells it.

    It is learned from all other levels of the sides, whose boots at this level are weighed by the comparison itself,
    and from all levels of ``others``, whose boots are on no side.
    """
    histories = {
        (number, at): level.boots[metric]
        for number, side in enumerate([*sides, *others])
        for at, level in side.items()
        if metric in level.boots and (at != key or number >= len(sides))
    }
    try:
        return verdict.learn_noise(histories) if histories else None
    except VerdictError:
        return None  # a zero or a negative figure somewhere: without logarithms nothing can be learned


def shown(label: str, metric: str, boots: Sequence[verdict.Boot], noise: verdict.Noise | None) -> Shown:
    """One side as reports show it; counted figures, and those without a logarithm, with the range of their trials."""
    values = [value for boot in boots for value in boot.trials]
    if REGISTRY[metric].exact or min(values) < _TINY:
        mean = sum(values) / len(values)
        return Shown(label, float(mean), float(min(values)), float(max(values)), len(boots), len(values))
    found = verdict.estimate(boots, noise=noise)
    low, high = found.interval
    return Shown(label, float(found.value), float(low), float(high), int(found.boots), int(found.trials))


def changes(
    old: Mapping[Key, LevelBoots],
    new: Mapping[Key, LevelBoots],
    *,
    metrics: Sequence[str] = MAIN_METRICS,
    margins: Mapping[str, float] | None = None,
    labels: tuple[str, str] = ("old", "new"),
    others: Sequence[Mapping[Key, LevelBoots]] = (),
) -> list[Change]:
    """Compare two sides of one server config (or of two).

    Args:
        old: the reference: workload and level -> boots.
        new: the candidate.
        metrics: names, in the order in which they are reported.
        margins: tolerated worsening as a fraction, where it differs from the metric's own.
        labels: how the sides are called.
        others: further boots to learn the noise from; none of them may be on a side.

    Returns:
        A change for each metric that a side has at a level that both have; one, with ``note``, for each level that
        only one has.
    """
    found: list[Change] = []
    for key in sorted({*old, *new}, key=_place):
        here, there = old.get(key), new.get(key)
        if here is None or there is None:
            status, only = ("new", there) if here is None else ("gone", here)
            if only is not None and only.level is not None:
                where = labels[1] if here is None else labels[0]
                found.append(Change(*key, "", "", None, status, note=f"only in {where}"))
            continue
        if here.fingerprint != there.fingerprint:
            note = "the workload's content differs between the sides, so its figures say nothing about each other"
            found.append(Change(*key, "", "", None, "not judged", note=note))
            continue
        for name in metrics:
            noise = None if REGISTRY[name].exact else noise_of(name, key, (old, new), others)
            change = _change(REGISTRY[name], key, (old, new), noise, margins or {}, labels)
            if change is not None:
                found.append(change)
    return found


def _place(key: Key) -> tuple[bool, str, float]:
    workload, level = key
    return level is None, workload, level or 0.0


def _change(
    metric: Metric,
    key: Key,
    sides: tuple[Mapping[Key, LevelBoots], Mapping[Key, LevelBoots]],
    noise: verdict.Noise | None,
    margins: Mapping[str, float],
    labels: tuple[str, str],
) -> Change | None:
    boots = [side[key].boots.get(metric.name, ()) for side in sides]
    if not any(boots):
        return None
    old, new = (
        shown(label, metric.name, mine, noise) if mine else None for label, mine in zip(labels, boots, strict=True)
    )
    base = Change(*key, metric.name, metric.unit, metric.better, "not judged", old, new)
    if old is None or new is None:
        where = labels[0] if new is None else labels[1]
        return replace(base, status="gone" if new is None else "new", note=f"only in {where}")
    if metric.exact:
        outcome = verdict.exact(new.high, "<=", old.high)
        note = "" if outcome.status == "holds" else "counted: the worst trial of each side is compared"
        return replace(base, status=outcome.status.value, p_value=float(outcome.p_value), note=note)
    try:
        return _judged(base, boots[1], boots[0], metric, margins.get(metric.name, metric.margin), noise)
    except VerdictError as error:
        return replace(base, note=str(error))
    except OverflowError:
        return replace(base, note="the sides differ beyond all measure: are their units the same?")


def _judged(
    base: Change,
    candidate: Sequence[verdict.Boot],
    reference: Sequence[verdict.Boot],
    metric: Metric,
    wanted: float | None,
    noise: verdict.Noise | None,
) -> Change:
    margin = None
    if metric.better is None or wanted is None:
        outcome = verdict.at_least(candidate, reference, 1.0, noise=noise)
        note = "neither direction is better" if metric.better is None else "this metric has no margin of its own"
        status = "no direction" if metric.better is None else "not judged"
    else:
        margin = noise.margin(wanted) if noise is not None else wanted
        outcome = verdict.compare(candidate, reference, margin=margin, better=metric.better, noise=noise)
        note = "; ".join(outcome.warnings[:1])
        status = outcome.status.value
    low, high = outcome.interval
    return replace(
        base,
        status=status,
        ratio=float(outcome.effect),
        interval=(float(low), float(high)),
        confidence=float(outcome.confidence),
        margin=margin,
        more_boots=outcome.more_boots if margin is not None else None,
        p_value=float(outcome.p_value) if margin is not None else None,
        note=note,
    )
