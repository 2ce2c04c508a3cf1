"""Percentiles, and how many samples one needs before it says anything.

With n independent samples the largest of them lies above the true q-quantile with probability 1 - q**n. The counts
below are where a 99 % confident statement about the quantile becomes possible at all; they are those of MLCommons
Endpoints' early-stopping estimate: p50 11, p90 64, p95 130, p99 662.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._value import Absent, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SAMPLES_NEEDED", "interpolated", "percentile"]

SAMPLES_NEEDED = {50: 11, 90: 64, 95: 130, 99: 662}


def interpolated(ordered: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) of values in ascending order, linear between neighbours (numpy's default)."""
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentile(values: Sequence[float], percent: int, *, samples: int | None = None) -> Value:
    """A percentile, or why there are too few samples for it.

    Args:
        values: in any order; one a request, or many a request (gaps between tokens).
        percent: 50, 90, 95 or 99.
        samples: how many independent samples the values stand for, if not one each. Gaps within a request are
            not independent: there it is the number of requests.
    """
    count = len(values) if samples is None else min(samples, len(values))
    needed = SAMPLES_NEEDED[percent]
    if count < needed:
        return Absent(f"p{percent} needs {needed} steady requests, there were {count}")
    return interpolated(sorted(values), percent / 100)
