"""When the requests of an open pattern should be sent, whatever the server does.

All patterns start from gaps of mean 1 and stretch them by the inverse of the cumulative rate, so that a linear ramp
works for each of them: during the ramp the rate grows in proportion to time, and Λ(t) = R t² / (2 ramp).
"""

from __future__ import annotations

import csv
import json
import math
import random
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ._spec import Arrival, Spec, SpecError

Lengths = Optional[Tuple[int, int]]
Due = Tuple[float, Lengths]

_ARRIVAL_KEYS = (("arrival_s", 1.0), ("timestamp", 1e-3), ("TIMESTAMP", 1.0))
_INPUT_KEYS = ("input_len", "input_length", "ContextTokens")
_OUTPUT_KEYS = ("output_len", "output_length", "GeneratedTokens")


def schedule(spec: Spec) -> Iterator[Due]:
    """Seconds from the start of each request, ascending, and its lengths if the pattern fixes them.

    Raises:
        SpecError: the trace cannot be read.
    """
    arrival = spec.arrival
    if arrival.kind == "trace":
        yield from read_trace(arrival.path)
    elif arrival.kind == "burst":
        number = 0
        while True:
            for _ in range(arrival.size):
                yield number * arrival.period_s, None
            number += 1
    else:
        unit = 0.0
        gaps = _gaps(arrival, random.Random(spec.seed))
        while True:
            yield _stretch(unit, arrival.rate, spec.ramp_s), None
            unit += next(gaps)


def _gaps(arrival: Arrival, rng: random.Random) -> Iterator[float]:
    shape = {"constant": math.inf, "poisson": 1.0}.get(arrival.kind, arrival.burstiness)
    while True:
        yield 1.0 if math.isinf(shape) else rng.gammavariate(shape, 1.0 / shape)


def _stretch(unit: float, rate: float, ramp_s: float) -> float:
    in_ramp = rate * ramp_s / 2
    if unit < in_ramp:
        return math.sqrt(2 * ramp_s * unit / rate)
    return ramp_s + (unit - in_ramp) / rate


def read_trace(path: str) -> List[Tuple[float, Tuple[int, int]]]:
    """A trace: JSON lines or CSV with a header.

    Columns ``arrival_s,input_len,output_len``; those of Mooncake (``timestamp`` in milliseconds, ``input_length``,
    ``output_length``) and of Azure (``TIMESTAMP`` as date and time, ``ContextTokens``, ``GeneratedTokens``) are
    understood. Times are taken relative to the first.

    Raises:
        SpecError: the file is missing, empty, or a line lacks a column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"arrival.path: {path}: {error.strerror}") from None
    lines = [line for line in text.splitlines() if line.strip()]
    rows: List[Dict[str, Any]]
    try:
        rows = (
            [json.loads(line) for line in lines] if lines and lines[0].startswith("{") else list(csv.DictReader(lines))
        )
        found = sorted(_row(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"arrival.path: {path} is not a trace of arrival_s, input_len, output_len: {error!r}") from None
    if not found:
        raise SpecError(f"arrival.path: {path} holds no request")
    zero = found[0][0]
    return [(at - zero, lengths) for at, lengths in found]


def _row(row: Dict[str, Any]) -> Tuple[float, Tuple[int, int]]:
    for key, unit in _ARRIVAL_KEYS:
        if key in row:
            value = row[key]
            at = _moment(value) if key == "TIMESTAMP" else float(value) * unit
            lengths = int(_first(row, _INPUT_KEYS)), int(_first(row, _OUTPUT_KEYS))
            if min(lengths) < 1:
                raise ValueError(f"lengths must be at least 1, got {lengths}")
            return at, lengths
    raise KeyError("arrival_s")


def _moment(value: str) -> float:
    """Azure writes seven digits after the second; Python reads six."""
    head, dot, fraction = value.partition(".")
    return datetime.fromisoformat(head).timestamp() + (float("0." + fraction) if dot else 0.0)


def _first(row: Dict[str, Any], keys: Tuple[str, ...]) -> Any:
    for key in keys:
        if row.get(key) not in (None, ""):
            return row[key]
    raise KeyError(keys[0])
