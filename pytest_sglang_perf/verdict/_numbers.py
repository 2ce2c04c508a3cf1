"""Which numbers may go into a question; everything else is a VerdictError that says what was given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import SupportsFloat, TypeGuard

from pytest_sglang_perf.errors import VerdictError

__all__ = [
    "LARGEST",
    "MOST_BOOTS",
    "SMALLEST",
    "as_float",
    "check_confidence",
    "is_count",
    "is_number",
    "items",
    "number",
    "shorten",
]

#: Figures of servers lie between these: a smaller one is a zero that was rounded, a larger one is no measurement.
SMALLEST, LARGEST = 1e-12, 1e15
#: Boots that somebody may plan for.
MOST_BOOTS = 1000
_SHOWN = 60


def is_number(value: object) -> TypeGuard[SupportsFloat]:
    """Whether this is a real number (numpy's too); True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """Whether this is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def as_float(value: object) -> float | None:
    """The number as a finite float, None if it is none."""
    if not is_number(value):
        return None
    try:
        figure = float(value)
    except OverflowError:  # a whole number beyond 1e308
        return None
    return figure if math.isfinite(figure) else None


def number(name: str, value: object, *, least: float | None = None, below: float = LARGEST) -> float:
    """A finite number above 0, or of at least ``least`` where that is given, and below ``below``.

    Raises:
        VerdictError: It is not; the message has the name, the value and the range.
    """
    figure = as_float(value)
    if figure is None or figure >= below or (figure <= 0 if least is None else figure < least):
        floor = "above 0" if least is None else f"of at least {least:g}"
        raise VerdictError(f"{name} must be a number {floor} and below {below:g}, got {shorten(value)}")
    return figure


def check_confidence(confidence: object) -> float:
    """Raise unless it is a share between a half and one."""
    figure = as_float(confidence)
    if figure is None or not 0.5 < figure < 1:
        raise VerdictError(f"confidence must lie between 0.5 and 1, got {shorten(confidence)}")
    return figure


def items(value: object) -> tuple[object, ...]:
    """The items of a sequence; none of what is no sequence, and none of a string."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def shorten(value: object) -> str:
    """What was given, as a message can bear it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # somebody else's repr, or a whole number too long to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
