"""This machine as a node: the same agent and the same bytes as over SSH, through pipes."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LocalChannel", "LocalTransport"]

_STDERR_KEPT = 64 * 1024
_SLICE = 0.2  # seconds after which a waiting thread looks whether the channel was closed


class LocalTransport:
    """Run the agent on this machine, under our own user.

    Args:
        env: changes to our environment for the agent and everything it starts; None removes a variable.
        shell: what stands in for the login shell.
    """

    def __init__(self, *, env: Mapping[str, str | None] | None = None, shell: str = "/bin/sh") -> None:
        self._env = dict(env or {})
        self._shell = shell

    def open(self, command: str) -> LocalChannel:
        """Run ``command`` through the shell and return a channel to it."""
        env = dict(os.environ)
        for name, value in self._env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return LocalChannel(self._shell, command, env)

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        """A port of this machine is reachable as it is."""
        yield port

    def describe(self) -> str:
        """How a message names this node."""
        return "local"

    def close(self) -> None:
        """Nothing is held beyond the channels."""


class LocalChannel:
    """Pipes to one process of this machine; see `pytest_sglang_perf.nodes.transport.Channel`."""

    def __init__(self, shell: str, command: str, env: dict[str, str]) -> None:
        # A session of its own: Ctrl-C in our terminal must stop the agent in order, not by surprise.
        self._process = subprocess.Popen(
            [shell, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self._stderr = self._process.stderr
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._closing = False
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._errors: deque[bytes] = deque()
        self._exited = threading.Event()
        # Both threads end with the process. They outlive close(): an agent finishes its work after us.
        threading.Thread(target=self._drain_stderr, name="local-stderr", daemon=True).start()
        threading.Thread(target=self._wait, name="local-wait", daemon=True).start()

    def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of ``data``; see the protocol."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with self._send_lock:
            while view:
                if self._closing:
                    raise ConnectionLost("the channel to the local agent is closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ConnectionLost(f"the local agent took nothing for {timeout:g} s")
                if not select.select([], [self._stdin], [], min(left, _SLICE))[1]:
                    continue
                try:
                    view = view[os.write(self._stdin.fileno(), view) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise ConnectionLost(f"the local agent is gone: {error}") from error

    def receive(self, *, timeout: float) -> bytes:
        """The next bytes of standard output; see the protocol."""
        deadline = time.monotonic() + timeout
        with self._receive_lock:
            while not self._closing:
                left = deadline - time.monotonic()
                if select.select([self._stdout], [], [], max(0.0, min(left, _SLICE)))[0]:
                    return os.read(self._stdout.fileno(), 256 * 1024)
                if left <= _SLICE:
                    raise TimeoutError(f"nothing from the local agent for {timeout:g} s")
            raise ConnectionLost("the channel to the local agent is closed")

    def stderr(self) -> str:
        """The last 64 KiB of standard error."""
        return b"".join(self._errors).decode(errors="replace")

    def exit_status(self, *, timeout: float) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        return self._process.returncode if self._exited.wait(timeout) else None

    def close(self) -> None:
        """Close standard input and output; the agent reads that as our leave."""
        self._closing = True
        for lock, pipe in ((self._send_lock, self._stdin), (self._receive_lock, self._stdout)):
            # A file must not be closed under a thread that waits for it; those look up within a slice.
            with lock:
                pipe.close()

    def _drain_stderr(self) -> None:
        kept = 0
        with self._stderr:
            while part := self._stderr.read(4096):
                self._errors.append(part)
                kept += len(part)
                while kept > _STDERR_KEPT:
                    kept -= len(self._errors.popleft())

    def _wait(self) -> None:
        self._process.wait()
        self._exited.set()
