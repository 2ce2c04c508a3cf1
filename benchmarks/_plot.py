"""A bar chart of the comparison as SVG, by hand: one figure needs no plotting library."""

from __future__ import annotations

import math
from html import escape

WIDTH, LEFT, ROW, TOP = 860, 260, 26, 46
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = {"spread": "#2a6f97", "burst": "#e07a5f"}


def bars(outcome, key, title):
    """``key`` of every client that has it, on a logarithmic axis; two bars a client, spread and burst."""
    names = list(dict.fromkeys(name.partition("/")[2] for name in outcome if "/" in name))
    names = [n for n in names if any(outcome.get(f"{p}/{n}", {}).get(key) for p in COLOURS)]
    values = [outcome[f"{p}/{n}"][key] for n in names for p in COLOURS if outcome.get(f"{p}/{n}", {}).get(key)]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))

    def x(value):
        return LEFT + (WIDTH - LEFT - 90) * math.log(value / low) / math.log(high / low)

    height = TOP + ROW * len(names) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-size="14">{escape(title)}</text>',
    ]
    for place, (pattern, colour) in enumerate(COLOURS.items()):
        out.append(f'<rect x="{LEFT + 90 * place}" y="28" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 14 + 90 * place}" y="37">{pattern}</text>')
    tick = low
    while tick <= high:
        out.append(f'<line x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{height - 26}" stroke="#ddd"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
        tick *= 10
    for row, name in enumerate(names):
        y = TOP + ROW * row
        out.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        for place, (pattern, colour) in enumerate(COLOURS.items()):
            value = outcome.get(f"{pattern}/{name}", {}).get(key)
            if value:
                top = y + 3 + 10 * place
                out.append(
                    f'<rect x="{LEFT}" y="{top}" width="{max(1.0, x(value) - LEFT):.1f}" height="9" fill="{colour}"/>'
                )
                out.append(f'<text x="{x(value) + 4:.1f}" y="{top + 9}" font-size="10">{value:.2g}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
