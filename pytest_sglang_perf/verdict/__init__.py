"""Verdicts on claims about a metric: holds, violated, or inconclusive.

Pure functions on numbers: no files, no pytest, no network. The unit of statistics is the boot; trials are
nested in it, requests only describe it. `docs/explanation/verdicts.md` explains all of it to readers without
statistics, and `docs/explanation/calibration.md` shows how often the answers are wrong.

    compare, at_least, at_most, equivalent      candidate against reference
    at_least_value, at_most_value, exact        candidate against a limit
    paired, abba, canary                        pairs of boots on one node
    estimate                                    a figure with its interval
    learn_noise, Noise                          how much the metric varies by itself
    SequentialPlan, TrialPlan                   how much to measure
    holm, benjamini_hochberg                    many claims
    stability                                   reasons not to believe a run
    change_points, slow_drift                   a metric over time
"""

from __future__ import annotations

from ._claims import at_least, at_least_value, at_most, at_most_value, compare, equivalent, estimate, exact
from ._history import ChangePoint, SlowDrift, change_points, slow_drift
from ._learn import learn_noise
from ._multiple import benjamini_hochberg, holm
from ._noise import STATED, Noise
from ._paired import abba, canary, paired
from ._plan import SequentialPlan, TrialPlan
from ._spending import Spending
from ._stability import stability
from ._types import Boot, Boots, Estimate, Status, Verdict

__all__ = [
    "STATED",
    "Boot",
    "Boots",
    "ChangePoint",
    "Estimate",
    "Noise",
    "SequentialPlan",
    "SlowDrift",
    "Spending",
    "Status",
    "TrialPlan",
    "Verdict",
    "abba",
    "at_least",
    "at_least_value",
    "at_most",
    "at_most_value",
    "benjamini_hochberg",
    "canary",
    "change_points",
    "compare",
    "equivalent",
    "estimate",
    "exact",
    "holm",
    "learn_noise",
    "paired",
    "slow_drift",
    "stability",
]
