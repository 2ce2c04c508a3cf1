"""How figures are written for people: three or four significant digits, a unit that fits the size."""

from __future__ import annotations

import math

__all__ = ["estimate", "figure", "interval", "percent", "seconds"]

_SMALLER = {"s": ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))}


def figure(value: float, unit: str) -> str:
    """Write one value with its unit, such as ``1,520 tok/s`` or ``23.4 ms``."""
    number, shown = _scaled((value,), unit)
    return f"{number[0]} {shown}".rstrip()


def interval(low: float, high: float, unit: str) -> str:
    """Write an interval in one unit, such as ``[1,498 .. 1,543] tok/s``."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "[unknown]"
    numbers, shown = _scaled((low, high), unit)
    return f"[{numbers[0]} .. {numbers[1]}] {shown}".rstrip()


def estimate(value: float, low: float, high: float, unit: str) -> str:
    """Write a value with its interval in one unit, such as ``1,520 [1,498 .. 1,543] tok/s``."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{figure(value, unit)} [unknown]"
    numbers, shown = _scaled((value, low, high), unit)
    return f"{numbers[0]} [{numbers[1]} .. {numbers[2]}] {shown}".rstrip()


def percent(ratio: float) -> str:
    """Write a ratio as a change, such as ``-3.2 %``."""
    return f"{(ratio - 1) * 100:+.1f} %"


def seconds(duration: float) -> str:
    """Write a duration for a progress line, such as ``42 s`` or ``3 min 05 s``."""
    if duration < 10:
        return f"{duration:.1f} s"
    if duration < 120:
        return f"{duration:.0f} s"
    return f"{int(duration // 60)} min {int(duration % 60):02d} s"


def _scaled(values: tuple[float, ...], unit: str) -> tuple[list[str], str]:
    largest = max((abs(v) for v in values), default=0.0)
    for least, factor, name in _SMALLER.get(unit, ()):
        if largest >= least:
            return [_number(v * factor) for v in values], name
    return [_number(v) for v in values], "" if unit == "1" else unit


def _number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
