"""Boots of servers: launched, followed, declared ready or dead, stopped, and swept.

One :class:`_Boot` for each start of a server; :class:`Boots` carries out the orders about them. Nothing here waits for
a controller, and nothing here reads the log for meaning: that is the other side's business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set

from . import facts, ports, procfs
from .children import Child, Children, exit_text
from .family import Family
from .logtail import Line, LogTail
from .outbox import CHATTER, LOG, VITAL
from .postmortem import PostMortem
from .protocol import OrderError, Params
from .pulse import is_sign_of_life
from .readiness import READY_PATHS, Readiness, fetch_server_info
from .record import Record
from .redact import Redactor
from .secretfiles import SecretFiles
from .sweep import AGENT_VARIABLE, BOOT_VARIABLE, RUN_VARIABLE, kill_until_gone
from .tasks import Tasks
from .watch import Watch, Watched

__all__ = ["Boots"]

_TAIL_S = 0.02  # how late a log line may be noticed
_LINES_A_MESSAGE = 500
_LOOK_S = 0.25  # how often new processes below the server are looked for
_LOOK_SHARE = 50  # times the cost of a look
_SWEEP_S = 15.0
_MEMORY_S = 10.0  # a driver frees the memory of a killed process within seconds
_MEMORY_SLACK_MIB = 256.0

Emit = Callable[..., None]


class _Boot:
    """One server, from its spawn until nothing of it is left."""

    def __init__(
        self,
        name: str,
        child: Child,
        family: Family,
        port: int,
        host: str,
        log: Path,
        secrets: SecretFiles,
        redactor: Redactor,
        evidence: PostMortem,
    ) -> None:
        self.name = name
        self.child = child
        self.family = family
        self.port = port
        self.host = host
        self.log = log
        self.redactor = redactor
        self.evidence = evidence
        self.secrets = secrets
        self.api_key = secrets.api_key
        self.headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self.stopping = False
        self.spoke_ns = time.monotonic_ns()  # when its log last showed a sign of life
        self.sweep = asyncio.Lock()
        self.killed: Set[int] = set()
        self.swept = asyncio.Event()
        self.tasks: List[asyncio.Task[None]] = []
        self.memory_before: Optional[asyncio.Future[Optional[List[float]]]] = None

    @property
    def alive(self) -> bool:
        """Whether the process that we started still runs."""
        return not self.child.exited.done()


class Boots:
    """The servers of one run.

    Args:
        loop: the running event loop.
        children: starts processes and learns of their end.
        emit: ``emit(event, rank, **fields)`` tells the controller.
        run: the run's id, which every process carries in its environment.
        run_dir: the run's private folder.
        agents: who supervises, as ``pid:start`` pairs; what is found without them later is an orphan.
        nvidia_smi: the command line that stands for nvidia-smi.
        on_death: told the name of a boot whose server (or a watched child of it) died.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        children: Children,
        emit: Emit,
        *,
        run: str,
        run_dir: Path,
        agents: str,
        nvidia_smi: Optional[List[str]],
        on_death: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._children = children
        self._emit = emit
        self._run = run
        self._run_dir = run_dir
        self._agents = agents
        self._nvidia_smi = nvidia_smi
        self._on_death = on_death
        self.gpus: Optional[List[int]] = None  # under lease, where that is not all of the node
        self._boots: Dict[str, _Boot] = {}
        self._tasks = Tasks(loop)
        self._record = Record(run_dir, agents)

    # -- orders -----------------------------------------------------------------------------------------------

    async def start(self, params: Params) -> Dict[str, Any]:
        """``boot.start``: launch a server and begin to follow it."""
        name = params.text("boot")
        if name in self._boots or not name or "/" in name:
            raise OrderError("bad_request", f"boot {name!r:.80} was used before in this run, or is no name")
        host = params.text("host", "127.0.0.1")
        port = ports.claim(host, params.integer("port", 0, high=65535))
        files = SecretFiles({str(key): str(value) for key, value in params.mapping("secret_files", {}).items()})
        asked = params.texts("argv")
        if not asked:
            raise OrderError("bad_request", "parameter 'argv' is empty")
        settings = params.mapping("env", {})
        environment = {**os.environ, **settings}
        secrets = [str(environment[key]) for key in params.texts("secret_env", []) if environment.get(key)]
        redactor = Redactor([*secrets, *files.values()])
        files.write(self._run_dir, name)
        places = {"{port}": str(port), "{host}": host, **files.places}
        argv = [places.get(item, item) for item in asked]
        log = self._run_dir / f"boot-{name}.log"
        started_ns = time.monotonic_ns()
        memory = self._loop.run_in_executor(None, facts.gpu_memory_used, self.nvidia_smi)
        try:
            child = self._spawn(argv, settings, name, log, params.optional("cwd"))
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            files.remove()
            raise OrderError("spawn_failed", f"cannot start {argv[:1]}: {error}") from None
        evidence = PostMortem(self._loop, lambda: self.nvidia_smi, redactor, [argv[0], sys.executable])
        family = Family(child, self._children, run=self._run, boot=name, alone=lambda: self._is_alone(name))
        boot = _Boot(name, child, family, port, host, log, files, redactor, evidence)
        boot.memory_before = memory
        self._boots[name] = boot
        self._follow(boot, params)
        return {"pid": child.pid, "host": host, "port": port, "log_path": str(log), "start_ns": started_ns}

    async def stop(self, params: Params) -> Dict[str, Any]:
        """``boot.stop``: begin the ordered stop; events tell of its end."""
        boot = self._boot(params)
        self._begin_stop(boot, params.number("term_s", 10.0))
        return {}

    async def server_info(self, params: Params) -> Dict[str, Any]:
        """``boot.server_info``: ask the server about itself."""
        boot = self._boot(params)
        timeout = params.number("timeout_s", 10.0, low=0.1)
        host = ports.probe_host(boot.host)
        try:
            info = await fetch_server_info(host, boot.port, timeout=timeout, headers=boot.headers)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise OrderError("no_answer", f"/server_info: {str(error) or 'no answer in time'}") from None
        return {"server_info": boot.redactor.structure(info)}

    async def evidence(self, params: Params) -> Dict[str, Any]:
        """``boot.evidence``: what only the node can tell about a server that died or hangs."""
        boot = self._boot(params)
        below = boot.family.everyone()
        return await boot.evidence.report(below, want_stacks=params.flag("stacks", default=False) and bool(below))

    # -- for the other parts of the agent ---------------------------------------------------------------------

    def get(self, name: str) -> _Boot:
        """The boot of this name, alive.

        Raises:
            OrderError: ``no_such_boot``, or ``dead``.
        """
        boot = self._boots.get(name)
        if boot is None:
            raise OrderError("no_such_boot", f"there is no boot {name!r:.80}")
        if not boot.alive:
            raise OrderError("dead", f"the server of boot {name} has ended: {exit_text(boot.child.code)}")
        return boot

    @property
    def nvidia_smi(self) -> Optional[List[str]]:
        """The command that shows the GPUs under lease, and not what others do on theirs."""
        if self.gpus is None:
            return self._nvidia_smi
        return [*(self._nvidia_smi or ["nvidia-smi"]), "-i", ",".join(map(str, self.gpus))]

    def names(self) -> List[str]:
        """The boots whose server runs."""
        return [boot.name for boot in self._boots.values() if boot.alive]

    async def stop_all(self, term_s: float) -> None:
        """Stop every server in order and wait until nothing of any is left."""
        for boot in self._boots.values():
            self._begin_stop(boot, term_s)
        if self._boots:
            waits = [asyncio.ensure_future(boot.swept.wait()) for boot in self._boots.values()]
            await asyncio.wait(waits, timeout=term_s + _SWEEP_S + _MEMORY_S)

    def stopped(self, boot: _Boot) -> List[Dict[str, Any]]:
        """The processes of a server that are stopped or held by a debugger."""
        return [
            {"pid": one.pid, "title": boot.redactor.text(procfs.command(one.pid))[:200], "state": one.state}
            for one in boot.family.stopped()
        ]

    # -- launching --------------------------------------------------------------------------------------------

    def _boot(self, params: Params) -> _Boot:
        boot = self._boots.get(params.text("boot"))
        if boot is None:
            raise OrderError("no_such_boot", f"there is no boot {params.text('boot')!r:.80}")
        return boot

    def _spawn(self, argv: List[str], settings: Dict[str, Any], name: str, log: Path, cwd: Any) -> Child:
        env = dict(os.environ)
        if self.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        for key, value in settings.items():
            if value is None:
                env.pop(key, None)
            else:
                env[key] = str(value)
        # setproctitle, with which sglang names its workers, otherwise overwrites the environment that tells whose
        # they are: neither a later session nor `reap` could find them.
        env.setdefault("SPT_NOENV", "1")
        env.update({RUN_VARIABLE: self._run, BOOT_VARIABLE: name, AGENT_VARIABLE: self._agents})
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            return self._children.spawn(argv, env=env, cwd=cwd, stdout=descriptor, stderr=descriptor)
        finally:
            os.close(descriptor)

    # -- following --------------------------------------------------------------------------------------------

    def _follow(self, boot: _Boot, params: Params) -> None:
        expect = params.mapping("expect", {})
        if expect:
            expect.setdefault("port", boot.port)
        watch = Watch(self._loop, lambda watched, code: self._on_child_death(boot, watched, code))
        readiness = Readiness(
            ports.probe_host(boot.host),
            boot.port,
            ours=boot.family.pids,
            expect=expect,
            ready_paths=params.texts("ready_paths", list(READY_PATHS)),
            timeout_s=params.number("probe_timeout_s", 30.0, low=0.1),
            headers=boot.headers,
            report=lambda state, detail: self._emit(
                "boot.probe", VITAL, boot=boot.name, ns=time.monotonic_ns(), state=state, detail=detail
            ),
        )
        boot.tasks += [self._tasks.add(self._probe(boot, readiness, watch)), self._tasks.add(self._look(boot, watch))]
        self._tasks.add(self._tail(boot, watch))

    async def _probe(self, boot: _Boot, readiness: Readiness, watch: Watch) -> None:
        ready = await readiness.wait()
        if not boot.alive:
            return
        boot.secrets.remove()  # read by now, and wanted by nobody else
        watched = watch.ready(boot.family.below())
        self._keep_record()
        self._emit(
            "boot.ready",
            VITAL,
            boot=boot.name,
            ns=ready.ns,
            probe_s=ready.probe_s,
            server_info=boot.redactor.structure(ready.server_info),
            listener_pid=ready.listener_pid,
            children=[{"pid": one.pid, "title": boot.redactor.text(one.title)} for one in watched],
        )

    async def _look(self, boot: _Boot, watch: Watch) -> None:
        """Find new processes often, and tell once a second how busy the server is."""
        rounds = 0
        while True:
            began = time.monotonic()
            below = boot.family.below()
            self._keep_record()
            own = procfs.process(boot.child.pid)
            boot.evidence.note(below if own is None else [own, *below])
            watch.update(below)
            watch.check()
            if rounds % round(1 / _LOOK_S) == 0:
                ticks = sum(one.cpu_ticks for one in below) + (own.cpu_ticks if own is not None else 0)
                self._emit(
                    "boot.activity",
                    CHATTER,
                    boot=boot.name,
                    ns=time.monotonic_ns(),
                    cpu_s=ticks / procfs.TICKS_PER_S,
                    log_bytes=_size(boot.log),
                    children=len(below),
                )
            rounds += 1
            # On a node with very many processes a look is expensive, and must not disturb what is measured.
            await asyncio.sleep(max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - began)))

    async def _tail(self, boot: _Boot, watch: Watch) -> None:
        """Stream the log until the server has ended, then see to its end."""
        tail = LogTail(str(boot.log), boot.redactor)
        while boot.alive:
            self._tell(boot, tail.read(time.monotonic_ns()))
            await asyncio.wait([asyncio.shield(boot.child.exited)], timeout=_TAIL_S)
        for task in boot.tasks:
            task.cancel()
        watch.close()
        self._on_death(boot.name)
        if not boot.stopping:
            boot.evidence.on_death(boot.family.below())
        self._tell(boot, tail.drain(time.monotonic_ns()))
        self._emit(
            "boot.exit",
            VITAL,
            boot=boot.name,
            ns=time.monotonic_ns(),
            code=boot.child.code,
            after_stop=boot.stopping,
        )
        await self._kill(boot)
        self._tell(boot, tail.drain(time.monotonic_ns()))  # the last words of its children
        tail.close()
        await self._close(boot)

    def _tell(self, boot: _Boot, lines: List[Line]) -> None:
        if any(is_sign_of_life(line.text) for line in lines):
            boot.spoke_ns = lines[-1].ns
        for first in range(0, len(lines), _LINES_A_MESSAGE):
            part = [[line.offset, line.ns, line.text] for line in lines[first : first + _LINES_A_MESSAGE]]
            self._emit("boot.log", LOG, boot=boot.name, lines=part)

    def _on_child_death(self, boot: _Boot, watched: Watched, code: Optional[int]) -> None:
        if boot.stopping or not boot.alive:
            return
        self._emit(
            "boot.child_died",
            VITAL,
            boot=boot.name,
            ns=time.monotonic_ns(),
            pid=watched.pid,
            title=boot.redactor.text(watched.title),
            status=code,
        )
        self._on_death(boot.name)
        boot.evidence.on_death(boot.family.below())

    # -- the end ----------------------------------------------------------------------------------------------

    def _begin_stop(self, boot: _Boot, term_s: float) -> None:
        if boot.stopping:
            return
        boot.stopping = True
        self._tasks.add(self._stop(boot, term_s))

    async def _stop(self, boot: _Boot, term_s: float) -> None:
        # To the parent alone: a signal to the group would make sglang's own teardown look like a crash.
        boot.child.signal(signal.SIGTERM)
        await asyncio.wait([asyncio.shield(boot.child.exited)], timeout=term_s)
        if boot.alive:
            await self._kill(boot)

    async def _kill(self, boot: _Boot) -> None:
        # One sweep at a time: a second one that outlasts it would meet the next server, and take it for a stray.
        async with boot.sweep:
            everyone = boot.family.everyone
            boot.killed |= await self._loop.run_in_executor(None, lambda: kill_until_gone(everyone, timeout=_SWEEP_S))

    async def _close(self, boot: _Boot) -> None:
        """Nothing runs any more: see its GPU memory free, and tell."""
        boot.family.seen = {}
        self._keep_record()
        boot.secrets.remove()
        free = await self._memory_is_free(boot)
        self._emit(
            "boot.swept",
            VITAL,
            boot=boot.name,
            ns=time.monotonic_ns(),
            killed=sorted(boot.killed),
            gpu_memory_free=free,
        )
        boot.swept.set()

    async def _memory_is_free(self, boot: _Boot) -> Optional[bool]:
        assert boot.memory_before is not None
        before = await boot.memory_before
        if before is None:
            return None
        deadline = time.monotonic() + _MEMORY_S
        while True:
            now = await self._loop.run_in_executor(None, facts.gpu_memory_used, self.nvidia_smi)
            if now is None or len(now) != len(before):
                return None
            if all(used <= base + _MEMORY_SLACK_MIB for used, base in zip(now, before)):
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.2)

    def _keep_record(self) -> None:
        seen: Dict[int, int] = {}
        for boot in self._boots.values():
            seen.update(boot.family.recorded())
        self._record.write(seen)

    def _is_alone(self, name: str) -> bool:
        return all(boot.name == name or boot.swept.is_set() for boot in self._boots.values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
