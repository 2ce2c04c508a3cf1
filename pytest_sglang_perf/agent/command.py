"""Programs that the agent asks something: they may be missing, hang, talk without end, or outlive their order.

Each runs in a process group of its own and dies with the thread that started it (``PR_SET_PDEATHSIG``). That
wish is made by a wrapper that becomes the program, and not by a ``preexec_fn``, which may deadlock where threads
run; so start a program from a thread that lives as long as the program may.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Dict, NamedTuple, Optional, Sequence, Set

__all__ = ["NOT_STARTED", "Finished", "await_end", "kill_group", "missing", "run", "spawn"]

NOT_STARTED = 127  # as shells say it
_MAX_OUTPUT = 1024 * 1024
_GOING_AWAY_S = 2.0
# Python ignores SIGPIPE, and that would be inherited: a program that talks to nobody has to end.
_WRAPPER = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except Exception:
    pass
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(2, f"cannot run {sys.argv[2]}: {error.strerror}\\n".encode())
    os._exit(127)
"""


_spawned: Set[int] = set()
_starting = threading.Lock()


class Finished(NamedTuple):
    """How a program ended.

    Attributes:
        status: exit status, negative for a signal; None when it did not end in time and was killed.
        out: what it wrote to stdout, as far as it came.
        err: what it wrote to stderr.
    """

    status: Optional[int]
    out: str
    err: str

    def trouble(self, name: str) -> Optional[str]:
        """Why its output cannot be used, in words; None when it can."""
        if self.status == 0:
            return None
        said = " ".join((self.err.strip() or self.out.strip()).split())[:400]
        if self.status == NOT_STARTED and said:
            return said
        how = "did not answer in time" if self.status is None else f"ended with status {self.status}"
        return f"{name} {how}" + (f": {said}" if said else "")


def missing(argv: Sequence[str]) -> Optional[str]:
    """Why this command cannot be started at all, in words; None when it can."""
    if not argv:
        return "no command was given"
    if shutil.which(argv[0]) is None:
        return f"{argv[0]}: no such program on this node"
    return None


def spawn(argv: Sequence[str], *, merge: bool = False, cwd: Optional[str] = None) -> subprocess.Popen[bytes]:
    """Start a program with pipes from its stdout and stderr (``merge``: both in stdout), unbuffered here.

    Raises:
        OSError: it cannot be started.
    """
    with _starting:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WRAPPER, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            start_new_session=True,
        )
        _spawned.add(process.pid)
    return process


def is_ours(pid: int) -> bool:
    """Whether whoever called `spawn` waits for this process, so that nobody else may collect its exit status."""
    # One that is being started exists before its id is known here, and a sweep would take it for a stray.
    with _starting:
        return pid in _spawned


def kill_group(process: subprocess.Popen[bytes], wait_s: float = _GOING_AWAY_S) -> Optional[int]:
    """Kill a spawned program with its group, close its pipes and wait for it.

    Returns:
        Its exit status; None when it is still there, as a process that hangs in a driver is.
    """
    if process.returncode is None:
        # Not reaped yet, so the id is still its own, also when only what it left in its group runs on.
        _kill(process.pid)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        return process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return None


def await_end(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait until a spawned program has ended, without reaping it: its group can still be killed by its id."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while not _has_ended(process.pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)
    return True


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        return


def run(argv: Sequence[str], timeout_s: float, *, cwd: Optional[str] = None) -> Finished:
    """Run a program to its end, or kill it after ``timeout_s`` seconds (and at most 2 more).

    Never raises: a program that cannot be started has status 127 and says so on stderr.
    """
    deadline = time.monotonic() + timeout_s
    absent = missing(argv)
    if absent is not None:
        return Finished(NOT_STARTED, "", absent)
    try:
        process = spawn(argv, cwd=cwd)
    except OSError as error:
        return Finished(NOT_STARTED, "", f"{argv[0]}: {error}")
    texts = {"out": b"", "err": b""}
    try:
        _collect(process, texts, deadline)
        ended = await_end(process, deadline - time.monotonic())
    finally:
        status = kill_group(process)
    out, err = (texts[name].decode("utf-8", "replace") for name in ("out", "err"))
    return Finished(status if ended else None, out, err)


def _collect(process: subprocess.Popen[bytes], texts: Dict[str, bytes], deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("out", process.stdout), ("err", process.stderr)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for key, _ in selector.select(left):
                data = os.read(key.fd, 65536)
                texts[key.data] = (texts[key.data] + data)[:_MAX_OUTPUT]
                if not data:
                    selector.unregister(key.fileobj)
