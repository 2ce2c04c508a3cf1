"""What sglang decided by itself in the boots of a run: back ends that it chose, features that it switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["KEPT", "decisions"]

#: Facts of a boot that reports keep; all of them are in `pytest_sglang_perf.server.facts`.
KEPT = (
    "backends",
    "disabled",
    "changed",
    "max_total_num_tokens",
    "max_running_requests",
    "decode_without_graph",
    "retractions",
)
_WORDS = {"disabled": "switched off", "changed": "changed", "backends": "chosen"}


def decisions(measured: Iterable[Mapping[str, Any]], kinds: Iterable[str] = tuple(_WORDS)) -> list[str]:
    """Each decision once, with the server config that it was made for; what was switched off comes first."""
    found: dict[str, None] = {}
    entries = list(measured)
    for kind in kinds:
        for one in entries:
            for text in (one.get("facts") or {}).get(kind) or ():
                found.setdefault(f"{one['server']}, {_WORDS[kind]}: {text}")
    return list(found)
