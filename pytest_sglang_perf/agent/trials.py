"""Trials: a load process beside the server, and the GPUs sampled over the same time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from . import facts, strangers
from .boots import Boots
from .children import Child, Children, exit_text
from .gpu import Sampler
from .outbox import CHATTER, VITAL
from .protocol import OrderError, Params
from .pulse import SILENT_S, Pulse
from .tasks import Tasks

__all__ = ["Trials"]

_HAND_OVER_S = 60.0  # what a cancelled load process has to write what it has
_WATCH_S = 0.5
_HEARS_S = 2.0
_LOOK_S = 30.0
_LONGEST_LINE = 64 * 1024 * 1024
_KEY_VARIABLE = "SGLANG_PERF_API_KEY"


class _Trial:
    """One trial that runs."""

    def __init__(
        self, name: str, boot: Optional[str], child: Child, sampler: Optional[Sampler], pulse: Optional[Pulse]
    ) -> None:
        self.name = name
        self.boot = boot
        self.child = child
        self.sampler = sampler
        self.pulse = pulse
        self.cancelled: Optional[str] = None
        self.frozen: Optional[Dict[str, Any]] = None
        self.refused: Optional[str] = None
        self.strangers: Dict[str, None] = {}


class Trials:
    """The trials of one run.

    Args:
        loop: the running event loop.
        children: starts processes and learns of their end.
        boots: the servers that trials run against.
        emit: ``emit(event, rank, **fields)`` tells the controller.
        run_dir: the run's private folder.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        children: Children,
        boots: Boots,
        emit: Callable[..., None],
        *,
        run_dir: Path,
    ) -> None:
        self._loop = loop
        self._children = children
        self._boots = boots
        self._emit = emit
        self._run_dir = run_dir
        self._running: Dict[str, _Trial] = {}
        self._tasks = Tasks(loop)

    async def start(self, params: Params) -> Dict[str, Any]:
        """``trial.start``: begin a trial; events tell the rest."""
        name = params.text("trial")
        if name in self._running or not name or "/" in name:
            raise OrderError("bad_request", f"trial {name!r:.80} is no new name")
        boot_name = params.optional("boot")
        env = dict(os.environ)
        spec = params.mapping("spec")
        if boot_name is not None:
            boot = self._boots.get(str(boot_name))
            if boot.api_key:
                env[_KEY_VARIABLE] = boot.api_key
                spec["api_key_env"] = _KEY_VARIABLE
        pulse = _pulse(spec) if boot_name is not None else None
        records = self._run_dir / f"trial-{name}.jsonl"
        spec["records_path"] = str(records)
        if params.optional("url"):
            spec.setdefault("url", params.text("url"))
        samples = self._run_dir / f"trial-{name}.gpu.csv"
        sampler = await self._sampler(params.optional("gpu_period_ms"), samples)
        try:
            child = self._spawn(name, env)
        except OSError as error:
            await self._stop_sampler(sampler)
            raise OrderError("spawn_failed", f"cannot start the load process: {error}") from None
        trial = _Trial(name, None if boot_name is None else str(boot_name), child, sampler, pulse)
        self._running[name] = trial
        self._say(trial, spec)
        looks = self._tasks.add(self._look_around(trial, params.number("look_s", _LOOK_S, low=0.1)))
        follow = self._tasks.add(self._follow(trial, records, samples, looks))
        if pulse is not None:
            watch = self._tasks.add(self._watch(trial, pulse))
            follow.add_done_callback(lambda _: watch.cancel())
        if trial.boot is not None and trial.boot not in self._boots.names():
            self._cancel(trial, "server_died")
        return {}

    async def cancel(self, params: Params) -> Dict[str, Any]:
        """``trial.cancel``: end a trial at once; what it has is still told."""
        trial = self._running.get(params.text("trial"))
        if trial is not None:
            self._cancel(trial, params.text("reason", "cancelled"))
        return {}

    def on_death(self, boot: str) -> None:
        """A server died: its trials end now."""
        for trial in self._running.values():
            if trial.boot == boot:
                self._cancel(trial, "server_died")

    def stop_all(self) -> None:
        """End every trial; nobody is left to be told."""
        for trial in self._running.values():
            trial.child.popen.kill()

    def _spawn(self, name: str, env: Dict[str, str]) -> Child:
        path = self._run_dir / f"trial-{name}.stderr"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stderr:
            return self._children.spawn(
                [sys.executable, "-I", sys.argv[0], "load"],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                umask=0o077,
            )

    async def _sampler(self, period_ms: Any, path: Path) -> Optional[Sampler]:
        if period_ms is None:
            return None
        sampler = Sampler(self._boots.nvidia_smi or ["nvidia-smi"], int(period_ms), str(path))
        # The first reading has arrived before the load begins, so that its window is bracketed.
        await self._loop.run_in_executor(None, sampler.start)
        return sampler

    async def _stop_sampler(self, sampler: Optional[Sampler]) -> Optional[str]:
        return await self._loop.run_in_executor(None, sampler.stop) if sampler is not None else None

    def _say(self, trial: _Trial, message: Dict[str, Any]) -> None:
        pipe = trial.child.popen.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it has ended, which is told otherwise
            pipe.write(json.dumps(message).encode() + b"\n")

    def _cancel(self, trial: _Trial, reason: str) -> None:
        if trial.cancelled is None:
            trial.cancelled = reason
            self._say(trial, {"cancel": reason})
            self._loop.call_later(_HAND_OVER_S, self._kill, trial)

    async def _watch(self, trial: _Trial, pulse: Pulse) -> None:
        """End the trial when its server has frozen: nothing will come, and nobody else would notice."""
        assert trial.boot is not None
        while trial.cancelled is None:
            await asyncio.sleep(_WATCH_S)
            try:
                boot = self._boots.get(trial.boot)
            except OrderError:
                return  # it died, which ends the trial otherwise
            trial.frozen = pulse.frozen(time.monotonic_ns(), boot.spoke_ns, self._boots.stopped(boot))
            if trial.frozen is not None:
                self._cancel(trial, "stall")
                self._loop.call_later(_HEARS_S, self._terminate, trial)

    def _terminate(self, trial: _Trial) -> None:
        # Until its load begins, a load process waits for the server, and hears signals only.
        trial.child.signal(signal.SIGTERM)

    def _kill(self, trial: _Trial) -> None:
        if not trial.child.exited.done():
            trial.child.popen.kill()

    async def _look_around(self, trial: _Trial, period_s: float) -> None:
        """Note who else computes on our GPUs: from time to time, and once the load has ended."""
        if trial.boot is None or trial.sampler is None:
            return
        while not trial.child.exited.done():
            await asyncio.wait([trial.child.exited], timeout=period_s)
            processes = await self._loop.run_in_executor(None, facts.gpu_processes, self._boots.nvidia_smi)
            try:
                ours = set(self._boots.get(trial.boot).family.pids())
            except OrderError:
                return  # it died, so nobody can be told from its processes, and there are no figures
            trial.strangers.update(dict.fromkeys(strangers.beside(processes, ours)))

    async def _follow(self, trial: _Trial, records: Path, samples: Path, looks: asyncio.Task[None]) -> None:
        result = await self._read(trial)
        code = await asyncio.shield(trial.child.exited)
        trouble, _ = await asyncio.gather(self._stop_sampler(trial.sampler), looks)
        if result is None:
            result = _no_result(trial, code, self._run_dir / f"trial-{trial.name}.stderr")
        if trial.frozen is not None and result["ended_by"] != "done":
            result["ended_by"], result["frozen"] = "stall", trial.frozen
        for pipe in (trial.child.popen.stdin, trial.child.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        del self._running[trial.name]
        has_samples = trial.sampler is not None and samples.exists()
        self._emit(
            "trial.end",
            VITAL,
            trial=trial.name,
            ns=time.monotonic_ns(),
            result=result,
            records_path=str(records),
            gpu={
                "samples_path": str(samples) if has_samples else None,
                "error": trouble,
                "strangers": list(trial.strangers),
            },
        )

    async def _read(self, trial: _Trial) -> Optional[Dict[str, Any]]:
        """Pass on progress until the output ends; the result is its last word."""
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), trial.child.popen.stdout
        )
        result: Optional[Dict[str, Any]] = None
        try:
            while True:
                line = await reader.readline()
                if not line:
                    return result
                try:
                    message = json.loads(line)
                except ValueError:
                    continue
                if isinstance(message.get("result"), dict):
                    result = message["result"]
                elif isinstance(message.get("error"), dict):
                    trial.refused = str(message["error"].get("message"))
                elif isinstance(message.get("progress"), dict):
                    if trial.pulse is not None:
                        trial.pulse.report(message["progress"])
                    self._emit(
                        "trial.progress", CHATTER, trial=trial.name, ns=time.monotonic_ns(), **message["progress"]
                    )
        finally:
            transport.close()


def _pulse(spec: Dict[str, Any]) -> Optional[Pulse]:
    """What watches the server's progress."""
    if spec.get("tool"):
        return None  # another engine, which does not tell how far it is
    silent_s = (spec.get("limits") or {}).get("silent_s", SILENT_S)
    return Pulse(time.monotonic_ns(), float(silent_s))


def _no_result(trial: _Trial, code: int, stderr: Path) -> Dict[str, Any]:
    """What stands for the result of a load process that ended without one."""
    try:
        said = stderr.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    except OSError:
        said = ""
    message = f"the load process ended without a result ({exit_text(code)})" + (f": {said}" if said else "")
    if trial.refused is not None:
        message = f"the load engine cannot do what the workload asks: {trial.refused}"
    return {
        "valid": False,
        "invalid": [{"check": "load_process", "value": None, "bound": None, "message": message}],
        "window": None,
        "counts": {},
        "errors": {},
        "ended_by": trial.cancelled or "cancelled",
        "audit": {},
        "cached_share": None,
        "requests": 0,
    }
