"""How many tokens go in and come out.

Peers disagree on what a "range ratio" means, so none is offered; say the bounds. Both bounds are inclusive.
``uniform`` from ``low`` to ``high`` is sglang's ``--random-range-ratio r`` with low = max(1, r x N), high = N,
and vLLM's with low = (1 - r) x N, high = (1 + r) x N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Tuple

if TYPE_CHECKING:
    import random
from pathlib import Path

KINDS = {
    "fixed": {"value"},
    "uniform": {"low", "high"},
    "normal": {"mean", "std", "low", "high"},
    "file": {"path"},
}


class Lengths:
    """A distribution of lengths in tokens, drawn from a generator that the caller seeds."""

    __slots__ = ("high", "kind", "low", "mean", "std", "values")

    def __init__(
        self,
        kind: str,
        low: int,
        high: int,
        mean: float = 0.0,
        std: float = 0.0,
        values: Tuple[int, ...] = (),
    ) -> None:
        self.kind = kind
        self.low = low
        self.high = high
        self.mean = mean
        self.std = std
        self.values = values

    @classmethod
    def parse(cls, data: Any) -> Lengths:
        """Read ``{"kind": …}``; a bare whole number is a fixed length.

        Raises:
            ValueError: unknown kind or key, a bound below 1, bounds in the wrong order, an empty file.
        """
        if isinstance(data, int) and not isinstance(data, bool):
            data = {"kind": "fixed", "value": data}
        if not isinstance(data, Mapping) or data.get("kind") not in KINDS:
            raise ValueError("length: expected a kind of {}, got {!r}".format(", ".join(KINDS), data))
        kind = str(data["kind"])
        unknown = sorted(set(data) - KINDS[kind] - {"kind"})
        if unknown:
            raise ValueError("length of kind {}: unknown key {}".format(kind, ", ".join(unknown)))
        if kind == "fixed":
            value = _tokens(data, "value")
            return cls(kind, value, value)
        if kind == "file":
            values = _read(str(data.get("path") or ""))
            return cls(kind, min(values), max(values), values=values)
        if kind == "uniform":
            low, high, mean, std = _tokens(data, "low"), _tokens(data, "high"), 0.0, 0.0
        else:
            mean, std = float(data.get("mean") or 0), float(data.get("std") or 0)
            if not mean >= 1 or not std >= 0:
                raise ValueError(f"normal length: mean of at least 1 and std of at least 0, got {data!r}")
            low = _tokens(data, "low") if data.get("low") is not None else 1
            high = _tokens(data, "high") if data.get("high") is not None else int(mean + 4 * std) + 1
        if high < low:
            raise ValueError(f"length of kind {kind}: high {high} is below low {low}")
        return cls(kind, low, high, mean, std)

    def draw(self, rng: random.Random) -> int:
        """One length. A normal draw outside its bounds is drawn again, then clipped: no spike at the bounds."""
        if self.low == self.high:
            return self.low
        if self.kind == "uniform":
            return rng.randint(self.low, self.high)
        if self.kind == "file":
            return rng.choice(self.values)
        for _ in range(64):
            value = round(rng.gauss(self.mean, self.std))
            if self.low <= value <= self.high:
                return value
        return min(max(round(self.mean), self.low), self.high)


def _tokens(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"length: {key} must be a whole number of at least 1, got {value!r}")
    return value


def _read(path: str) -> Tuple[int, ...]:
    """An empirical file: one whole number a line, blank lines and lines with # left out."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            values = tuple(int(line) for line in lines if line.strip() and not line.startswith("#"))
    except OSError as error:
        raise ValueError(f"length file {path}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"length file {path}: expected one whole number a line") from None
    if not values or min(values) < 1:
        raise ValueError(f"length file {path}: expected at least one length, all of at least 1")
    return values
