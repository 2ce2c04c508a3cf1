"""Many claims in one session: with 40 of them at 5 %, two false alarms are the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import VerdictError

from ._numbers import as_float, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["benjamini_hochberg", "holm"]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values that keep the chance of any false alarm (Holm, Scand. J. Stat. 6, 1979).

    A claim is rejected at level a where its adjusted p-value is at most a.
    """
    order = _order(p_values)
    adjusted = [0.0] * len(order)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values that keep the share of false alarms among the alarms.

    Benjamini and Hochberg, J. R. Stat. Soc. B 57, 1995.
    """
    order = _order(p_values)
    adjusted = [0.0] * len(order)
    smallest = 1.0
    for rank in range(len(order), 0, -1):
        index = order[rank - 1]
        smallest = min(smallest, p_values[index] * len(order) / rank)
        adjusted[index] = float(smallest)
    return tuple(adjusted)


def _order(p_values: Sequence[float]) -> list[int]:
    if not isinstance(p_values, (list, tuple)):
        raise VerdictError(f"p-values come as a list, not as {shorten(p_values)}")
    for index, p in enumerate(p_values):
        figure = as_float(p)
        if figure is None or not 0 <= figure <= 1:
            raise VerdictError(f"p-value {index} is {shorten(p)}, not a number between 0 and 1")
    return sorted(range(len(p_values)), key=lambda index: p_values[index])
