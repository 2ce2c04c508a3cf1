"""Charts as inline SVG: for each level its sides with their intervals, one above the other.

With a reference, all is drawn as the change against it, so that levels that differ by a factor of a hundred share an
axis; without one, on a logarithmic axis. Colours come from the page's style sheet, which knows light and dark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from pytest_sglang_perf.report.figures import figure, interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Mark", "Row", "draw", "legend"]

_WIDTH, _LEFT, _RIGHT = 640, 128, 472  # of the drawing; where the axis begins and ends
_LINE, _GAP, _TOP, _FOOT = 17, 9, 6, 30
_LEAST, _MOST = 0.5, 2.0  # ratios beyond are cut off, with an arrow: one wild interval must not flatten the rest
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of a decade, where a tick may stand
_ROOM = 0.02  # an axis never spans less than this to each side: noise must not look like a cliff


@dataclass(frozen=True)
class Mark:
    """One side at one level, in the metric's unit; ``kind`` is ``now``, ``baseline`` or ``control``."""

    kind: str
    label: str
    value: float
    low: float
    high: float
    boots: int


@dataclass(frozen=True)
class Row:
    """One level: what was measured first, then what it is compared with; ``tag`` stands below its name."""

    label: str
    marks: tuple[Mark, ...]
    tag: str = ""

    @property
    def base(self) -> float | None:
        """What changes are relative to: the first reference, if there is one to divide by."""
        return self.marks[1].value if len(self.marks) > 1 and self.marks[1].value > 0 else None

    @property
    def height(self) -> int:
        return max(len(self.marks), 2 if self.tag else 1) * _LINE + _GAP


@dataclass(frozen=True)
class _Axis:
    least: float
    most: float
    ticks: tuple[tuple[float, str], ...]
    scale: Callable[[float], float]

    def x(self, value: float) -> float:
        low, high = self.scale(self.least), self.scale(self.most)
        at = (self.scale(min(max(value, self.least), self.most)) - low) / (high - low)
        return _LEFT + at * (_RIGHT - _LEFT)


def draw(rows: Sequence[Row], *, unit: str, title: str) -> Markup:
    """The chart, as an ``svg`` element with a text alternative."""
    relative = any(row.base is not None for row in rows)
    axis = _change_axis(rows) if relative else _value_axis(rows, unit)
    bottom = _TOP + sum(row.height for row in rows)
    parts: list[Markup] = []
    for at, label in axis.ticks:
        x = axis.x(at)
        kind = "zero" if relative and at == 1 else "grid"
        parts.append(Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(kind, x, x, 2, bottom))
        parts.append(Markup('<text class="tick" x="{:.1f}" y="{}">{}</text>').format(x, bottom + 15, label))
    top = _TOP
    for row in rows:
        parts.append(Markup('<text class="level" x="0" y="{}">{}</text>').format(top + 12, row.label))
        if row.tag:
            parts.append(Markup('<text class="tag" x="0" y="{}">{}</text>').format(top + 12 + _LINE, row.tag))
        for number, mark in enumerate(row.marks):
            y = top + (number + 0.5) * _LINE
            parts.append(_value(mark, y, unit))
            if not relative or row.base is not None:
                parts.append(_mark(mark, axis, row.base if relative and row.base is not None else 1.0, y, unit))
            else:
                alone = f"{interval(mark.low, mark.high, unit)}, no reference"
                parts.append(Markup('<text class="alone" x="{}" y="{}">{}</text>').format(_LEFT, y + 4, alone))
        top += row.height
    height = bottom + _FOOT
    what = "; ".join(_told(row, unit) for row in rows)
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="xMinYMin meet">{}</svg>'
    ).format(_WIDTH, height, f"{title}: {what}", Markup("").join(parts))


def _told(row: Row, unit: str) -> str:
    sides = " against ".join(f"{mark.label} {figure(mark.value, unit)}" for mark in row.marks)
    return f"{row.label}{' ' + row.tag if row.tag else ''}: {sides}"


def _mark(mark: Mark, axis: _Axis, base: float, y: float, unit: str) -> Markup:
    value, low, high = mark.value / base, mark.low / base, mark.high / base
    parts = [
        Markup('<line class="span" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
            axis.x(low), axis.x(high), y, y
        )
    ]
    for edge, beyond, way in ((low, low < axis.least, -1), (high, high > axis.most, 1)):
        x = axis.x(edge)
        if beyond:
            points = f"{x - 5 * way:.1f},{y - 4:.1f} {x:.1f},{y:.1f} {x - 5 * way:.1f},{y + 4:.1f}"
            parts.append(Markup('<polyline class="span" points="{}"/>').format(points))
        else:
            parts.append(
                Markup('<line class="span" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                    x, x, y - 3, y + 3
                )
            )
    x = axis.x(value)
    if mark.kind == "now":
        parts.append(Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="4.5"/>').format(x, y))
    elif mark.kind == "baseline":
        points = f"{x - 5:.1f},{y:.1f} {x:.1f},{y - 5:.1f} {x + 5:.1f},{y:.1f} {x:.1f},{y + 5:.1f}"
        parts.append(Markup('<polygon class="dot" points="{}"/>').format(points))
    else:
        parts.append(Markup('<rect class="dot" x="{:.1f}" y="{:.1f}" width="8" height="8"/>').format(x - 4, y - 4))
    told = f"{mark.label}: {figure(mark.value, unit)}, {figure(mark.low, unit)} to {figure(mark.high, unit)}"
    parts.append(Markup("<title>{}</title>").format(f"{told}, {mark.boots} boots"))
    return Markup('<g class="{}">{}</g>').format(mark.kind, Markup("").join(parts))


def _value(mark: Mark, y: float, unit: str) -> Markup:
    return Markup('<text class="value {}" x="{}" y="{:.1f}">{}</text>').format(
        mark.kind, _WIDTH, y + 4, figure(mark.value, unit)
    )


def _change_axis(rows: Sequence[Row]) -> _Axis:
    ratios = [1 - _ROOM, 1 + _ROOM]
    values = [1.0]
    for row in rows:
        base = row.base
        if base is not None:
            for mark in row.marks:
                ratios += [mark.low / base, mark.high / base]
                values.append(mark.value / base)
    least = min(max(_LEAST, min(ratios)), *values)
    most = max(min(_MOST, max(ratios)), *values)
    room = (most - least) * 0.03
    least, most = least - room, most + room
    step = _nice((most - least) / 6)
    first = math.ceil((least - 1) / step)
    last = math.floor((most - 1) / step)
    ticks = tuple((1 + n * step, f"{n * step * 100:+.3g} %" if n else "0") for n in range(first, last + 1))
    return _Axis(least, most, ticks, float)


def _value_axis(rows: Sequence[Row], unit: str) -> _Axis:
    marks = [mark for row in rows for mark in row.marks]
    positive = [mark.low for mark in marks if mark.low > 0]
    if len(positive) < len(marks):  # zeros have no logarithm: a plain axis from 0
        most = max(mark.high for mark in marks) or 1.0
        return _Axis(0.0, most, ((0.0, figure(0.0, unit)), (most, figure(most, unit))), float)
    least, most = min(positive), max(mark.high for mark in marks)
    middle = math.sqrt(least * most)
    least, most = min(least, middle * (1 - _ROOM)) * 0.98, max(most, middle * (1 + _ROOM)) * 1.02
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    found = [m * 10.0**p for p in powers for m in _STEPS if least <= m * 10.0**p <= most]
    found = found[:: math.ceil(len(found) / 4) or 1]
    if len(found) < 2:
        found = [least, most]
    return _Axis(least, most, tuple((value, figure(value, unit)) for value in found), math.log)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999)


def legend(kinds: Sequence[tuple[str, str]]) -> Markup:
    """What each sign stands for."""
    signs = {
        "now": Markup('<circle class="dot" cx="7" cy="7" r="4.5"/>'),
        "baseline": Markup('<polygon class="dot" points="2,7 7,2 12,7 7,12"/>'),
        "control": Markup('<rect class="dot" x="3" y="3" width="8" height="8"/>'),
    }
    items = [
        Markup('<span><svg class="sign" viewBox="0 0 14 14"><g class="{}">{}</g></svg> {}</span>').format(
            kind, signs[kind], escape(label)
        )
        for kind, label in kinds
    ]
    return Markup(" ").join(items)
