"""The right to use a node's GPUs alone: a kernel lock, so that it ends with its holder, however that ends.

One file stands for the node and one for each GPU. The whole node is the node's file locked exclusively; a subset of
the GPUs is the node's file locked shared and each of those GPUs' files exclusively. Beside them lie files that say
who holds and who waits (`livefiles`). They inform; only the locks decide.

Waiting is in order of arrival among those whose wishes overlap, so nobody starves. A waiter that does not move
(stopped, or its machine suspended) loses its place while it does not.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pwd
import secrets
import time
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Optional

from . import livefiles

__all__ = ["Lease", "LeaseUnavailable", "folder_path", "holders", "iso_time"]

_DEFAULT_FOLDER = "/tmp/sglang-perf-lease"  # noqa: S108 - shared on purpose; livefiles trusts nothing in it
_NODE = "node.lock"
_HOLDS, _WAITS = "holds-", "waits-"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_UNMOVED_S = 3.0
# Who looks whether a lock is free has it for some microseconds: that is no reason to give up.
_GLANCE_S = 0.2


class LeaseUnavailable(Exception):
    """The lease was not to be had in time, or the folder of leases cannot be used.

    Attributes:
        holder: who has it {``user``, ``host``, ``pid``, ``run``, ``since``, ``purpose``, ``gpus``, …}; empty
            when that is not known.
    """

    def __init__(self, holder: Dict[str, Any], message: Optional[str] = None) -> None:
        super().__init__(message or f"the lease was not free in time: {_described(holder)}")
        self.holder = holder


def _described(holder: Dict[str, Any]) -> str:
    if not holder:
        return "somebody has it who does not say who"
    gpus = holder.get("gpus")
    what = "the whole node" if gpus is None else "GPU " + ", ".join(map(str, gpus))
    who = f"{holder.get('user')}@{holder.get('host')} (pid {holder.get('pid')})"
    does = "waits before us for" if holder.get("waiting") else "uses"
    until = f", until {holder['until']} at most" if holder.get("until") else ""
    return f"{who} {does} {what} since {holder.get('since')}{until}: {holder.get('purpose')}"


def folder_path() -> str:
    """Where leases are kept on this node; ``SGLANG_PERF_LEASE_DIR`` moves it."""
    return os.environ.get("SGLANG_PERF_LEASE_DIR") or _DEFAULT_FOLDER


def holders(folder: Optional[str] = None) -> List[Dict[str, Any]]:
    """Who holds leases on this node, the longest first; never raises, and makes nothing.

    Each is {``user``, ``host``, ``pid`` (of the controller, as it says), ``run``, ``since`` (ISO time), ``purpose``,
    ``gpus`` (None: the whole node), ``until``, ``node_user`` and ``agent_pid`` (on the node), ``waiting``}.
    """
    try:
        descriptor = livefiles.open_folder(folder or folder_path(), make=False)
    except OSError:
        return []
    try:
        found = [item.content for item in livefiles.alive(descriptor, _HOLDS) if item.content]
        return sorted((holder for holder in found if _is_held(descriptor, holder)), key=lambda h: str(h.get("since")))
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _is_held(folder: int, holder: Dict[str, Any]) -> bool:
    gpus = holder.get("gpus")
    names = [_NODE] if gpus is None else [_gpu_file(index) for index in gpus]
    return all(livefiles.is_locked(folder, name) for name in names)


def _gpu_file(index: int) -> str:
    return f"gpu-{index}.lock"


class Lease:
    """One session's lease; not for use from several tasks at once.

    Args:
        owner: {``user``, ``host``, ``pid``} of the controller.
        run: its run id.
        folder: where leases are kept; `folder_path` by default.
    """

    def __init__(self, owner: Dict[str, Any], run: str, *, folder: Optional[str] = None) -> None:
        self._owner = {name: owner.get(name) for name in ("user", "host", "pid")}
        self._run = run
        self._path = folder or folder_path()
        self._locks: List[int] = []
        self._info: Optional[Dict[str, Any]] = None
        self._since_wall_ns = 0
        self._token = ""

    def held(self) -> Optional[Dict[str, Any]]:
        """What others read about this lease (see `holders`), or None when it is not held."""
        return None if self._info is None else dict(self._info)

    async def acquire(
        self,
        gpus: Optional[List[int]],
        wait_s: float,
        purpose: str,
        on_waiting: Callable[[Dict[str, Any]], None],
        until: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Take the lease, waiting up to ``wait_s`` seconds for it.

        Args:
            gpus: indices; None for the whole node.
            wait_s: 0 tries once.
            purpose: for others to read.
            on_waiting: called with the holder when it is first seen and when it changes.
            until: when it is meant to be given back, for others to read (ISO time).

        Returns:
            {``gpus``, ``since_wall_ns``}.

        Raises:
            LeaseUnavailable: it was not to be had in time.
            ValueError: no GPU, or one that cannot be; or another lease is held.
        """
        wanted = None if gpus is None else sorted(set(gpus))
        if wanted is not None and (not wanted or wanted[0] < 0):
            raise ValueError(f"GPU indices {gpus!r}: expected at least one, none negative")
        if self._info is not None and self._info["gpus"] != wanted:
            raise ValueError(f"a lease on GPUs {self._info['gpus']} is held; release it first")
        if self._info is None:
            info = self._describe(wanted, purpose, until)
            try:
                await self._wait(info, wait_s, on_waiting)
            except OSError as error:
                text = f"the folder of leases cannot be used: {error}; SGLANG_PERF_LEASE_DIR names another"
                raise LeaseUnavailable({}, text) from None
        assert self._info is not None
        return {"gpus": wanted, "since_wall_ns": self._since_wall_ns}

    def locks(self) -> List[int]:
        """The descriptors that hold the lease: whoever has copies of them holds it as well, until `release`."""
        return list(self._locks)

    def sharing(self) -> str:
        """What a lease on some GPUs does not give, and with whom that is shared right now."""
        others = [one for one in holders(self._path) if one.get("run") != self._run]
        shared = "the node's power, memory and links are shared"
        if not others:
            return f"a lease on some GPUs only: {shared} with whoever takes the others"
        return f"a lease on some GPUs only: {shared} now, since " + "; ".join(map(_described, others))

    def release(self) -> None:
        """Give the lease back, if it is held, also where copies of its descriptors are open."""
        locks, self._locks, self._info = self._locks, [], None
        if locks:
            livefiles.withdraw(self._path, self._name(_HOLDS), locks.pop())
        for lock in locks:
            livefiles.unlock(lock)

    def _describe(self, wanted: Optional[List[int]], purpose: str, until: Optional[str]) -> Dict[str, Any]:
        self._token = f"{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
        info = {
            **self._owner,
            "run": self._run,
            "since": iso_time(),
            "purpose": purpose,
            "gpus": wanted,
            "until": until,
            "node_user": _user(),
            "agent_pid": os.getpid(),
            "waiting": True,
        }
        return {name: livefiles.plain(value) for name, value in info.items()}

    def _name(self, prefix: str) -> str:
        return f"{prefix}{self._token}"

    async def _wait(self, info: Dict[str, Any], wait_s: float, on_waiting: Callable[[Dict[str, Any]], None]) -> None:
        began = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        told: Optional[Dict[str, Any]] = None
        folder = livefiles.open_folder(self._path, make=True)
        ticket = -1
        try:
            ticket = livefiles.publish(folder, self._name(_WAITS), info)
            while True:
                waited_s = time.monotonic() - began
                os.utime(ticket)
                ahead = self._ahead(folder, info["gpus"])
                if ahead is None and self._try(folder, info):
                    return
                blocker = self._blocker(folder, info["gpus"]) or ahead
                if blocker is not None and blocker != told:
                    told = blocker
                    pause_s = _FIRST_PAUSE_S  # where leases change hands quickly, look often
                    on_waiting(dict(blocker))
                if waited_s >= wait_s and (blocker is not None or waited_s >= _GLANCE_S):
                    raise LeaseUnavailable(blocker or told or {})
                await asyncio.sleep(max(_FIRST_PAUSE_S, min(pause_s, wait_s - waited_s)))
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)
        finally:
            if ticket >= 0:
                livefiles.withdraw(self._path, self._name(_WAITS), ticket)
            os.close(folder)

    def _try(self, folder: int, info: Dict[str, Any]) -> bool:
        gpus = info["gpus"]
        wishes = [(_NODE, fcntl.LOCK_EX if gpus is None else fcntl.LOCK_SH)]
        wishes += [(_gpu_file(index), fcntl.LOCK_EX) for index in gpus or ()]
        locks: List[int] = []
        try:
            for name, kind in wishes:
                lock = livefiles.try_lock(folder, name, kind)
                if lock is None:
                    return False
                locks.append(lock)
            if not livefiles.is_at(folder, self._path):
                raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", self._path)
            since_ns = time.time_ns()
            held = {**info, "since": iso_time(since_ns), "waiting": False}
            locks.append(livefiles.publish(folder, self._name(_HOLDS), held))
            self._locks, locks = locks, []
            self._info, self._since_wall_ns = held, since_ns
            return True
        finally:
            for lock in locks:
                livefiles.unlock(lock)

    def _ahead(self, folder: int, wanted: Optional[List[int]]) -> Optional[Dict[str, Any]]:
        """Who came before us, waits for some of the same, and is awake."""
        for waiter in livefiles.alive(folder, _WAITS):
            if waiter.name >= self._name(_WAITS):
                return None
            if waiter.content and waiter.age_s < _UNMOVED_S and _overlap(waiter.content.get("gpus"), wanted):
                return waiter.content
        return None

    @staticmethod
    def _blocker(folder: int, wanted: Optional[List[int]]) -> Optional[Dict[str, Any]]:
        holding = [item.content for item in livefiles.alive(folder, _HOLDS) if item.content]
        in_the_way = [holder for holder in holding if _overlap(holder.get("gpus"), wanted)]
        return min(in_the_way, key=lambda holder: str(holder.get("since")), default=None)


def _overlap(one: Optional[List[int]], other: Optional[List[int]]) -> bool:
    return one is None or other is None or not set(one).isdisjoint(other)


def iso_time(wall_ns: Optional[int] = None) -> str:
    """A wall-clock time (now by default) as leases write it."""
    seconds = (time.time_ns() if wall_ns is None else wall_ns) / 1e9
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
