"""sglang's arguments: one name for each, and how a value becomes a part of the command line."""

from __future__ import annotations

import json
from typing import Any

from pytest_sglang_perf.suite._flags import ALIASES, KNOWN, NEGATABLE, RELEASES
from pytest_sglang_perf.suite._problems import did_you_mean

__all__ = ["ArgumentValue", "canonical", "note_on_unknown", "render"]

ArgumentValue = bool | int | float | str | list[Any] | dict[str, Any] | None


def canonical(name: str) -> str:
    """The one name of an argument: ``tp``, ``tp_size`` and ``tensor-parallel-size`` are all ``tp-size``."""
    dashed = name.replace("_", "-")
    return ALIASES.get(dashed, dashed)


def render(name: str, value: ArgumentValue) -> tuple[str, ...]:
    """The command line items of one argument, under its canonical name.

    true is the bare flag; false and null are nothing, except that false is ``--no-...`` for the few flags
    that have this form; a list is the flag and its values; a mapping is one JSON text.
    """
    flag = f"--{name}"
    if value is None or value is False:
        return (f"--no-{name}",) if value is False and name in NEGATABLE else ()
    if value is True:
        return (flag,)
    if isinstance(value, list):
        return (flag, *(_text(item) for item in value))
    return (flag, _text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(value)


def note_on_unknown(name: str) -> str | None:
    """A remark on a flag that no known release has; not an error, because flags come and go."""
    if canonical(name) in KNOWN or name in KNOWN or name.removeprefix("no-") in NEGATABLE:
        return None
    guess = did_you_mean(name, KNOWN)
    return f"sglang {' and '.join(RELEASES)} have no flag --{name}{guess}"
