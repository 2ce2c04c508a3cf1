"""What the kernel logged while a server ran: GPU faults, out-of-memory kills, crashes in native code.

Lines are taken by their place in the log and not by a clock: the stamps of the kernel's own clock drift away from
CLOCK_MONOTONIC over weeks. Who may not read the log learns that, and nothing else.
"""

from __future__ import annotations

import os
import re
from typing import Collection, List, NamedTuple, Optional

from .command import Finished, run

__all__ = ["KernelLog", "last_stamp", "notable", "oom_kills", "read"]

_DEADLINE_S = 2.0
_KEPT = 40
# util-linux and busybox print "[  123.456789] …"; journalctl the same and "host kernel: " behind it.
_STAMPED = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d+)\] (?:\S+ kernel: )?(.*)")
_NOTABLE = re.compile(
    r"NVRM: (?:Xid|GPU at|GPU \S+ .*(?:fallen|lost))|fallen off the bus|SXid|Out of memory: Killed|oom-kill:"
    r"|Memory cgroup out of memory|\bsegfault at |general protection fault|traps: |blocked for more than \d+ seconds"
    r"|\[Hardware Error\]|amdgpu.*(?:ring \S+ timeout|GPU reset|page fault)|EDAC .*\bUE\b"
)
# Lines about one process, which may be anybody's: "Killed process 12 (python3)", "python3[12]: segfault",
# "Xid (PCI…): 31, pid=12, name=python3", "task python3:12 blocked".
_ABOUT = re.compile(
    r"Killed process (?P<pid1>\d+) \((?P<name1>[^)]*)\)"
    r"|task=(?P<name2>[^,]+),pid=(?P<pid2>\d+)"
    r"|(?P<name3>\S+)\[(?P<pid3>\d+)\]:? (?:segfault|general protection|trap)"
    r"|Xid \([^)]*\): (?:13|31|43|45), pid='?(?P<pid4>\d+)'?(?:, name=(?P<name4>[^,]+))?"
    r"|task (?P<name5>\S+):(?P<pid5>\d+) blocked"
)


class KernelLog(NamedTuple):
    """Lines with the seconds of the kernel's clock in front; ``readable`` is false where nobody may look."""

    readable: bool
    lines: List[str]


def read() -> KernelLog:
    """The kernel's log as it is now, oldest line first. Blocks for at most 4 s, never raises."""
    # The newest part: large machines keep more megabytes than are read of a program.
    finished = run(["sh", "-c", "log=$(dmesg) && printf '%s\\n' \"$log\" | tail -n 4000"], _DEADLINE_S)
    if finished.status != 0:  # where dmesg is for root alone, members of systemd-journal may still read the journal
        finished = run(
            ["journalctl", "-k", "-b", "-q", "--no-pager", "-n", "4000", "-o", "short-monotonic"], _DEADLINE_S
        )
    if finished.status != 0 or not finished.out.strip():
        return KernelLog(_empty(finished), [])
    return KernelLog(readable=True, lines=finished.out.splitlines())


def _empty(finished: Finished) -> bool:
    return finished.status == 0 and not finished.err.strip()


def last_stamp(log: KernelLog) -> Optional[float]:
    """Where the log ends now, in seconds of the kernel's clock; None for a log without stamps."""
    for line in reversed(log.lines):
        found = _STAMPED.match(line)
        if found is not None:
            return float(found.group(1))
    return None


def notable(
    log: KernelLog, after: Optional[float], pids: Optional[Collection[int]], names: Collection[str] = ()
) -> List[str]:
    """What may explain a server's end, the newest 40 lines of it.

    Args:
        log: as read now.
        after: `last_stamp` from before the server was started; None takes the whole log.
        pids: of the server, all that were ever seen; None for lines about anybody.
        names: what the kernel calls them (15 characters). In a container the kernel's pids are not ours.

    Returns:
        Lines without those about processes of others.
    """
    found = []
    for line in log.lines:
        stamped = _STAMPED.match(line)
        if stamped is None or (after is not None and float(stamped.group(1)) <= after):
            continue
        if _NOTABLE.search(line) and (pids is None or _may_be_ours(line, pids, names)):
            found.append(f"[{stamped.group(1)}] {stamped.group(2)}"[:400])
    return found[-_KEPT:]


def _may_be_ours(line: str, pids: Collection[int], names: Collection[str]) -> bool:
    about = _ABOUT.search(line)
    if about is None:
        return True
    found = {key[:-1]: value for key, value in about.groupdict().items() if value is not None}
    name = found.get("name", "").strip()
    return int(found["pid"]) in pids or name[:15] in names


def oom_kills() -> Optional[int]:
    """How often the kernel killed in our control group for its memory limit; None where that is not counted."""
    for path in _counters():
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return None


def _counters() -> List[str]:
    """Files of cgroup version 2 and 1 that hold the count, of our own group and as a container sees it."""
    paths = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            for line in file:
                number, controllers, group = line.rstrip("\n").split(":", 2)
                if number == "0":
                    paths.append(os.path.join("/sys/fs/cgroup", group.lstrip("/"), "memory.events"))
                elif "memory" in controllers.split(","):
                    paths.append(os.path.join("/sys/fs/cgroup/memory", group.lstrip("/"), "memory.oom_control"))
    except (OSError, ValueError):
        pass
    return [*paths, "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
