"""What /proc tells about processes and who listens on a port."""

from __future__ import annotations

import os
import signal
import struct
import time
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

__all__ = [
    "TICKS_PER_S",
    "Process",
    "all_processes",
    "boot_id",
    "command",
    "descendants",
    "exit_code",
    "kill",
    "listening_inodes",
    "lives",
    "owner_uid",
    "process",
    "same_pid_namespace",
    "short_name",
    "since_start_s",
    "socket_holder",
    "variable",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")
_STOPPED = frozenset("Tt")
_LISTEN = b"0A"
_PART = 64 * 1024

_PF_EXITING = 0x4  # include/linux/sched.h: getting shut down


class Process(NamedTuple):
    """A process at one moment. A pid with its start time names a process for as long as the machine is up."""

    pid: int
    ppid: int
    state: str
    start: int  # clock ticks after the machine's start
    cpu_ticks: int  # user and system time of all its threads

    @property
    def dead(self) -> bool:
        """A zombie has ended: all that is left is its exit status."""
        return self.state in _DEAD

    @property
    def stopped(self) -> bool:
        """Stopped by a signal, or held by a debugger."""
        return self.state in _STOPPED


def process(pid: int) -> Optional[Process]:
    """The process with this pid, or None."""
    try:
        return _parse(pid, _read(f"/proc/{pid}/stat"))
    except OSError:
        return None


def all_processes() -> Dict[int, Process]:
    """Every process that we can see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            one = process(int(name))
            if one is not None:
                found[one.pid] = one
    return found


def descendants(processes: Dict[int, Process], roots: Iterable[int]) -> Set[int]:
    """The pids among ``processes`` that descend from ``roots``; the roots are not among them."""
    children: Dict[int, List[int]] = {}
    for one in processes.values():
        children.setdefault(one.ppid, []).append(one.pid)
    found: Set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def lives(pid: int, start: int) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    one = process(pid)
    return one is not None and one.start == start and not one.dead


def exiting(pid: int, start: int) -> bool:
    """Whether exactly this process has begun to end, or has ended.

    A process that holds much GPU memory takes a second or more from its end to the moment when it can be waited for,
    while its sockets are closed at once: its partners fail before it counts as dead.
    """
    try:
        text = _read(f"/proc/{pid}/stat")
        one = _parse(pid, text)
        flags = int(_after_name(text)[6])
    except OSError:
        return True
    return one.start != start or one.dead or bool(flags & _PF_EXITING)


def kill(one: Process, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process, never another that got its pid; returns whether it was there."""
    try:
        handle = os.pidfd_open(one.pid)
    except (AttributeError, OSError):
        handle = -1  # an old kernel; the check below leaves a gap of microseconds
    try:
        if not lives(one.pid, one.start):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(one.pid, number)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def command(pid: int) -> str:
    """Its command line, which may be a title that it gave itself; of a kernel thread or a zombie its name."""
    try:
        words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0 ")
        if words:
            return words.replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return short_name(pid)


def short_name(pid: int) -> str:
    """What the kernel calls it, in at most 15 characters; "" once it is gone."""
    try:
        return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return ""


def variable(pid: int, name: str) -> Optional[str]:
    """An environment variable that it was started with, or None where that cannot be read."""
    prefix = name.encode() + b"="
    try:
        for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
            if entry.startswith(prefix):
                return os.fsdecode(entry[len(prefix) :])
    except OSError:
        pass
    return None


def owner_uid(pid: int) -> Optional[int]:
    """Whose process it is."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def same_pid_namespace(pid: int) -> bool:
    """Whether its pids mean what ours mean."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def exit_code(pid: int) -> Optional[int]:
    """The exit code of a zombie (negative: its signal), or None where the kernel does not tell."""
    try:
        fields = _after_name(_read(f"/proc/{pid}/stat"))
    except OSError:
        return None
    if fields[0] not in _DEAD or len(fields) < 50:
        return None
    status = int(fields[49])
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def since_start_s() -> float:
    """Seconds on the clock that start times count by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What tells one run of this machine from the next."""
    try:
        return _read("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""


def listening_inodes(port: int) -> Dict[str, str]:
    """The sockets that listen on a TCP port in our network namespace: inode to address."""
    found = {}
    suffix = b":%04X" % port
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = _read(table).split(b"\n")[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(suffix):
                found[fields[9].decode()] = _address(fields[1][: -len(suffix)])
    return found


def socket_holder(inodes: Iterable[str], pids: Iterable[int]) -> Optional[int]:
    """The first of these processes that has one of these sockets open, or None (also where we may not look)."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        if any(link in wanted for link in _open_files(pid)):
            return pid
    return None


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def _parse(pid: int, stat: bytes) -> Process:
    fields = _after_name(stat)
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), int(fields[11]) + int(fields[12]))


def _after_name(stat: bytes) -> List[str]:
    # The name is in parentheses and may itself hold spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].decode(errors="replace").split()


def _address(hexadecimal: bytes) -> str:
    # Each group of 32 bits is in the byte order of the machine.
    raw = bytes.fromhex(hexadecimal.decode())
    groups = struct.unpack(f"={len(raw) // 4}I", raw)
    swapped = struct.pack(f">{len(groups)}I", *groups)
    return ".".join(str(byte) for byte in swapped) if len(swapped) == 4 else swapped.hex()


def _read(path: str) -> bytes:
    # Thousands of times a second: a Path and a buffered file would be most of the cost.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = part = os.read(fd, _PART)
        while part:  # /proc may give less than was asked before its end
            part = os.read(fd, _PART)
            data += part
        return data
    finally:
        os.close(fd)
