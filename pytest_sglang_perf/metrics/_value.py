"""A metric's value, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Absent", "Value"]


@dataclass(frozen=True)
class Absent:
    """This metric cannot be had here; ``reason`` is a sentence for the user."""

    reason: str

    def __str__(self) -> str:
        return f"absent: {self.reason}"

    def __bool__(self) -> bool:
        """False, so that ``if value`` reads as expected; a value of 0.0 is false too, so prefer isinstance."""
        return False


Value = float | Absent
