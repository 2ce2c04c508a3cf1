"""Starts the programs of the simulated node, as a node would; talks to them with the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0


class Node:
    """A folder of state, an environment, and the servers started in it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_SIM")}
        self.environment |= {
            "SGLANG_SIM_PROFILE": "tiny",
            "SGLANG_SIM_STATE": str(folder / "state"),
            "SGLANG_SIM_SEED": "7",
        }
        self.environment |= {f"SGLANG_SIM_{key.upper()}": value for key, value in settings.items()}

    @contextlib.contextmanager
    def server(self, *flags: str, port: int | None = None, ready: bool = True, **env: str):
        """A server started with ``flags``; waits until it is ready unless told not to; kills it in the end."""
        port = port or free_port()
        number = sum(1 for _ in self.folder.glob("server-*.log"))
        log = self.folder / f"server-{number}.log"
        argv = [
            sys.executable,
            "-m",
            "pytest_sglang_perf.sim.server",
            "--model-path",
            "m",
            "--port",
            str(port),
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*argv, *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment | env,
                start_new_session=True,
            )
        server = Server(process, port, log)
        try:
            if ready:
                server.wait_ready()
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)

    def smi(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run nvidia-smi to its end."""
        argv = [sys.executable, "-m", "pytest_sglang_perf.sim.nvidia_smi", *words]
        environment = self.environment | env
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def gpu_figures(self, *fields: str) -> list[list[float]]:
        """Rows of numbers, one a GPU."""
        done = self.smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        return [[float(word) for word in line.split(",")] for line in done.stdout.splitlines()]


class Server:
    """One server process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log_path = log

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    def wait_ready(self) -> None:
        def healthy() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log}"
            try:
                return self.get("/health")[0] == 200
            except OSError:
                return False

        wait_for(healthy, "ready", self)

    def wait_end(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still alive:\n{self.log}") from None

    def wait_log(self, text: str) -> None:
        wait_for(lambda: text in self.log, f"{text!r} in the log", self)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def json(self, path: str) -> Any:
        status, body = self.get(path)
        assert status == 200, (status, body)
        return json.loads(body)

    def generate(self, tokens: list[int], output: int = 16, **more: Any) -> Any:
        params = {"max_new_tokens": output, "temperature": 0, "ignore_eos": True}
        status, body = self.request("POST", "/generate", {"input_ids": tokens, "sampling_params": params, **more})
        assert status == 200, (status, body)
        return json.loads(body)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a streamed answer, parsed; its ``[DONE]`` must be there and is left out."""
        status, data = self.request("POST", path, body | {"stream": True})
        assert status == 200, (status, data)
        events = data.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], events[-2:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def children(self) -> dict[str, int]:
        """Titles and pids of the child processes."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for word in task.read_text().split():
                with contextlib.suppress(OSError):
                    title = Path(f"/proc/{word}/cmdline").read_bytes().rstrip(b"\0").decode()
                    found[title] = int(word)
        return found

    def child(self, title: str) -> int:
        """The pid of a child, which may have to wait for a processor before it takes its title."""
        wait_for(lambda: title in self.children(), title, self)
        return self.children()[title]


def wait_for(condition, what: str, server: Server) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}\n{server.log}"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
