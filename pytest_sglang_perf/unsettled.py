"""Why what was measured should not be judged, however narrow its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf import verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_sglang_perf.measured import BootRecord, Want

__all__ = ["reasons", "unsettled"]


def unsettled(records: Sequence[BootRecord], want: Want, metric: str) -> tuple[str, ...]:
    """The reasons, in words; empty if nothing speaks against the boots of one config at one level.

    Args:
        records: Boots of the config in this session.
        want: The level.
        metric: Whose trials are looked at for trend, modes and spread (`verdict.stability`). GPUs that could not run as
            they should speak against every metric.
    """
    return reasons(
        [values for record in records if want in record.trials and (values := record.values(want, metric))],
        [text for record in records for trial in record.trials.get(want, ()) for text in trial.slowed],
    )


def reasons(boots: Sequence[Sequence[float]], slowed: Sequence[str]) -> tuple[str, ...]:
    """The same from trials of one metric per boot, and what the trials say of slowed GPUs."""
    # A figure without a logarithm has no spread to look at; `compare` says so itself.
    usable = bool(boots) and min(min(values) for values in boots) > 0
    return (*dict.fromkeys(slowed), *(verdict.stability(boots) if usable else ()))
