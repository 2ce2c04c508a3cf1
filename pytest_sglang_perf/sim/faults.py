"""Faults that a test orders through ``SGLANG_SIM_FAIL``, several parted by commas.

crash:PHASE             an exception in that phase of the boot (a name of ``boot.PHASES``)
hang:PHASE              that phase never ends
oom_under_load:N        out of CUDA memory once N requests run at once
die_under_load:N        the first scheduler process is killed when request N arrives
error_after_200[:N]     every Nth request (default: each) ends with an error event in its stream
frozen[:N]              after N requests (default 0) nobody gets another token, and /server_info hangs
garbage                 every answer is the same token over and over
nan                     every answer ends with the NaN detector's word after a few tokens
port_false_ready        what happens on a taken port, whether the port is taken or not
slow_exit               SIGTERM is heard and nothing comes of it
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Faults", "parse_faults"]

_NUMBERED = {"oom_under_load": None, "die_under_load": None, "error_after_200": 1, "frozen": 0}
_PLAIN = {"garbage", "nan", "port_false_ready", "slow_exit"}
_PHASED = {"crash", "hang"}


@dataclass(frozen=True)
class Faults:
    """What is to go wrong."""

    crash: str | None = None
    hang: str | None = None
    oom_under_load: int | None = None
    die_under_load: int | None = None
    error_after_200: int | None = None
    frozen: int | None = None
    garbage: bool = False
    nan: bool = False
    port_false_ready: bool = False
    slow_exit: bool = False


def parse_faults(text: str, phases: tuple[str, ...]) -> Faults:
    """Read ``SGLANG_SIM_FAIL``.

    Raises:
        SystemExit: it has no meaning; lists what would.
    """
    values: dict[str, str | int | bool | None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition(":")
        if name in _PHASED:
            if value not in phases:
                raise SystemExit(f"SGLANG_SIM_FAIL={text}: {name}:PHASE, where PHASE is one of {', '.join(phases)}")
            values[name] = value
        elif name in _NUMBERED and (value.isdecimal() or (not value and _NUMBERED[name] is not None)):
            values[name] = int(value) if value else _NUMBERED[name]
        elif name in _PLAIN and not value:
            values[name] = True
        else:
            known = [f"{n}:PHASE" for n in _PHASED] + [f"{n}:N" for n in _NUMBERED] + sorted(_PLAIN)
            raise SystemExit(f"SGLANG_SIM_FAIL={text}: {item!r} is none of {', '.join(known)}")
    return Faults(**values)  # type: ignore[arg-type]  # each name has the type of its group above
