"""What the commands print: tables that stay one line a row, also in a pipe, and one JSON document with ``--json``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["STYLES", "emit", "say", "table", "warn"]

#: Colours of words that decide, on terminals that have colours.
STYLES = {
    "holds": "green",
    "violated": "bold red",
    "inconclusive": "yellow",
    "not judged": "yellow",
    "crashed": "bold red",
}


def emit(document: Any) -> None:
    """Write one JSON document to standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def say(text: str = "", style: str = "") -> None:
    """Write one line, never wrapped, never read as markup."""
    Console(file=sys.stdout, highlight=False).print(Text(text, style=style), soft_wrap=True)


def warn(text: str) -> None:
    """Write a remark to standard error, so that it never mixes with what is read by programs."""
    print(text, file=sys.stderr)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), mark: str = "") -> None:
    """Write aligned columns, numbers (``right``) to the right; ``mark`` names the column whose words have colours."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    place = list(header).index(mark) if mark else None
    for number, row in enumerate([header, *rows]):
        cells = [
            cell.rjust(width) if header[i] in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        style = "dim" if number == 0 else STYLES.get(row[place], "") if place is not None else ""
        say("  ".join(cells).rstrip(), style)
