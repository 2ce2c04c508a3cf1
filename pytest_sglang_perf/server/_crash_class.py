"""The shape of a crash class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["CrashClass", "Depth", "sglang_issue"]


class Depth(IntEnum):
    """How near to the root a class is. A deeper cause is preferred to whatever it brought about."""

    ROOT = 0
    WRAPPER = 1
    """Reported by the layer around the failure: true, but mostly somebody else's fault."""
    CONSEQUENCE = 2
    """What the rest of the server says when a part of it is gone."""


@dataclass(frozen=True, slots=True)
class CrashClass:
    """One way for a server to end.

    Attributes:
        name: stable, kebab-case; what tests name in ``crash=``.
        cause: one sentence, without the final stop. A named group ``detail`` of the pattern is added to it.
        advice: what to try, most promising first.
        patterns: regular expressions, searched in a message or continuation line. A match is a *candidate*: it
            becomes the diagnosis only when the server did end.
        depth: see `Depth`.
        precursor: is often printed shortly before the traceback it explains, not inside it.
        links: where it was reported or is defined.
    """

    name: str
    cause: str
    advice: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    depth: Depth = Depth.ROOT
    precursor: bool = False
    links: tuple[str, ...] = ()


def sglang_issue(*numbers: int) -> tuple[str, ...]:
    """Addresses of sglang issues (pull requests redirect)."""
    return tuple(f"https://github.com/sgl-project/sglang/issues/{number}" for number in numbers)
