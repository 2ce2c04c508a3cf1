"""Starting processes and learning of their end, on the event loop alone.

A subreaper gets the exit statuses of processes that it never started, so one place collects them all and tells
who is waited for from who was inherited. Everything happens on the loop's thread, so there are no races between
a start and an end; it is also the main thread, to which the kernel ties the parent-death signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import command, prctl, procfs

__all__ = ["Child", "Children", "Completed", "exit_text"]

Stream = Union[int, IO[bytes], None]
_OUTPUT_LIMIT = 16 * 1024 * 1024


class Completed(NamedTuple):
    """A command that ended: code (negative: signal), standard output and standard error."""

    code: int
    stdout: bytes
    stderr: bytes


class Child:
    """A process that we started.

    Attributes:
        pid: its pid, which is also its session.
        start: its start time in clock ticks.
        exited: becomes the exit code (negative: signal).
    """

    def __init__(self, popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.popen = popen
        self.pid = popen.pid
        one = procfs.process(popen.pid)
        self.start = one.start if one is not None else 0
        self.exited: asyncio.Future[int] = loop.create_future()

    @property
    def code(self) -> Optional[int]:
        """The exit code, or None while it runs."""
        return self.exited.result() if self.exited.done() else None

    def signal(self, number: int) -> None:
        """Signal the process alone; no effect once it has ended."""
        if not self.exited.done():
            os.kill(self.pid, number)


class Children:
    """All processes of the agent.

    Args:
        loop: the running event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: Dict[int, Child] = {}
        self._starting = threading.Lock()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def spawn(
        self,
        argv: List[str],
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.DEVNULL,
        stderr: Stream = subprocess.DEVNULL,
        umask: int = -1,
    ) -> Child:
        """Start a process in a session of its own; it is killed when we die.

        Raises:
            OSError: it cannot be started.
        """
        with self._starting:
            popen = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
                umask=umask,
                preexec_fn=prctl.dies_with_us(),  # noqa: PLW1509 - looked up before the fork, calls the kernel only
            )
            child = Child(popen, self._loop)
            self._running[child.pid] = child
        return child

    def is_ours(self, pid: int) -> bool:
        """Whether this is a running process that we started ourselves."""
        # One that is being started exists before it is known here, and a sweep's thread would take it for a stray.
        with self._starting:
            return pid in self._running

    def reap(self) -> None:
        """Collect the exit status of what we started, and of what we inherited as a subreaper.

        By pid, one by one: whoever runs a command in a thread of its own waits for it there.
        """
        for pid, child in list(self._running.items()):
            ended, status = _wait(pid)
            if ended:
                del self._running[pid]
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                child.popen.returncode = code
                child.exited.set_result(code)
        for one in procfs.all_processes().values():
            if one.dead and one.ppid == os.getpid() and one.pid not in self._running and not command.is_ours(one.pid):
                _wait(one.pid)

    async def run(self, argv: List[str], *, timeout: float, env: Optional[Mapping[str, str]] = None) -> Completed:
        """Run a command to its end.

        Raises:
            OSError: it cannot be started.
            asyncio.TimeoutError: it did not end within ``timeout`` seconds, and was killed.
        """
        child = self.spawn(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        readers = [asyncio.ensure_future(self._drain(pipe)) for pipe in (child.popen.stdout, child.popen.stderr)]
        try:
            code = await asyncio.wait_for(asyncio.shield(child.exited), timeout)
            # What inherited the pipes may outlive the command.
            await asyncio.wait(readers, timeout=1.0)
            outputs = [reader.result() if reader.done() else b"" for reader in readers]
            return Completed(code, outputs[0], outputs[1])
        finally:
            child.signal(signal.SIGKILL)
            for reader in readers:
                reader.cancel()

    async def _drain(self, pipe: Optional[IO[bytes]]) -> bytes:
        assert pipe is not None
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        parts: List[bytes] = []
        size = 0
        try:
            while size < _OUTPUT_LIMIT:
                part = await reader.read(65536)
                if not part:
                    break
                parts.append(part)
                size += len(part)
        finally:
            transport.close()
        return b"".join(parts)


def _wait(pid: int) -> Tuple[bool, int]:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False, 0
    return found == pid, status


def exit_text(code: Any) -> str:
    """An exit code in words."""
    if isinstance(code, int) and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
