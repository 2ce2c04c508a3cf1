"""The process above the agent: it does nothing, until the agent is gone.

Whatever happens to the agent (kill -9, a bug, a freeze), the guardian inherits the processes that it started and
kills them. It holds a copy of the lease's locks, so that nobody gets the GPUs before that is done. If the guardian
is killed instead, the agent sees the end of their socket and ends everything in order.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Iterable, List, Optional, Set

from . import procfs
from .procfs import Process
from .sweep import carriers, kill_until_gone

__all__ = ["Guard", "GuardedSide"]

_FROZEN_S = 30.0  # an agent that has not run its loop for this long is killed
_AFTER_TERM_S = 25.0  # what the agent has for its ordered end once the hard ceiling is reached
_SWEEP_S = 10.0
_FAILED = 70


class GuardedSide:
    """The agent's end of the socket between the two."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.setblocking(False)

    def fileno(self) -> int:
        """For an event loop: readable means that the guardian is gone."""
        return self._channel.fileno()

    def run(self, run: str) -> None:
        """Say whose processes are to be swept."""
        self._say(b"run " + run.encode())

    def alive(self) -> None:
        """Say that the event loop runs."""
        self._say(b"alive")

    def hold(self, locks: List[int]) -> None:
        """Let the guardian hold copies of these descriptors until `release`, or until it is done."""
        try:
            socket.send_fds(self._channel, [b"hold"], locks)
        except OSError:
            pass  # the guardian is gone, which the event loop is about to notice

    def release(self) -> None:
        """Let go of what it holds."""
        self._say(b"release")

    def _say(self, message: bytes) -> None:
        try:
            self._channel.send(message)
        except OSError:
            pass


class Guard:
    """The guardian.

    Args:
        channel: our end of the socket.
        agent: the agent's pid, a child of ours.
        max_runtime_s: when to end everything, whatever is going on.
    """

    def __init__(self, channel: socket.socket, agent: int, max_runtime_s: float) -> None:
        self._channel = channel
        self._agent = agent
        self._run: Optional[str] = None
        self._locks: List[int] = []
        self._status: Optional[int] = None
        self._heard = time.monotonic()
        self._ceiling = self._heard + max_runtime_s

    def watch(self) -> int:
        """Wait for the agent's end and leave nothing of it; returns the exit status."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._signal_agent(signal.SIGTERM))
        open_channel = True
        while self._status is None:
            if open_channel:
                if select.select([self._channel], [], [], 0.5)[0]:
                    open_channel = self._listen()
            else:
                time.sleep(0.01)
            self._reap()
            self._enforce_limits()
        kill_until_gone(self._ours, timeout=_SWEEP_S, reap=self._reap)
        for lock in self._locks:
            os.close(lock)
        return self._status if self._status >= 0 else _FAILED

    def _listen(self) -> bool:
        try:
            message, locks, _, _ = socket.recv_fds(self._channel, 4096, 64)
        except OSError:
            return False
        if not message:
            return False
        self._heard = time.monotonic()
        if message.startswith(b"run "):
            self._run = message[4:].decode()
        elif message == b"hold":
            self._locks.extend(locks)
        elif message == b"release":
            for lock in self._locks:
                os.close(lock)
            self._locks = []
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent:
                self._status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        if now > self._ceiling:
            self._signal_agent(signal.SIGTERM)
        if now - self._heard > _FROZEN_S or now > self._ceiling + _AFTER_TERM_S:
            self._signal_agent(signal.SIGKILL)

    def _signal_agent(self, number: int) -> None:
        if self._status is None:
            try:
                os.kill(self._agent, number)
            except OSError:
                pass

    def _ours(self) -> Iterable[Process]:
        processes = procfs.all_processes()
        found: Set[int] = procfs.descendants(processes, [os.getpid()])
        if self._run is not None:
            found.update(one.pid for one in carriers(self._run, processes))
        return [processes[pid] for pid in found if pid in processes]
