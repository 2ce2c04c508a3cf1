"""The agent proper: one controller, one run, its orders, and the end of it all."""

from __future__ import annotations

import asyncio
import getpass
import importlib.util
import os
import platform
import signal
import socket
import sys
import time
import traceback
from collections import OrderedDict
from pathlib import Path
from typing import Any, Awaitable, Callable, Coroutine, Dict, List, Optional, Set

from . import facts, orphans, procfs, rundir, strangers
from .boots import Boots
from .checkup import checkup
from .children import Children
from .deadman import DeadMan
from .files import read_part
from .guardian import GuardedSide
from .lease import Lease, LeaseUnavailable, holders, iso_time
from .link import Link
from .outbox import VITAL, Outbox
from .protocol import PROTOCOL, OrderError, Params, decode, encode
from .resume import Relay, listen
from .sweep import carriers, kill_until_gone
from .trials import Trials

__all__ = ["Service"]

_UNGREETED_S = 60.0  # an agent that nobody greets goes away
_REMEMBERED_IDS = 10_000
_ALIVE_S = 2.0  # how often the guardian is told that the loop runs
_TERM_S = 10.0  # what a server has to end in order when we leave

Operation = Callable[[Params], Awaitable[Dict[str, Any]]]


class Service:
    """Runs on an event loop; lines arrive from the link's reader thread."""

    def __init__(self, guardian: Optional[GuardedSide] = None, max_runtime_s: Optional[float] = None) -> None:
        self._until = None if max_runtime_s is None else iso_time(time.time_ns() + int(max_runtime_s * 1e9))
        self._guardian = guardian
        self._outbox = Outbox()
        self._deadman = DeadMan(_UNGREETED_S, grace_s=0.0)
        self._loop = asyncio.get_running_loop()
        self._stopping: Optional[str] = None
        self._stop = asyncio.Event()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._tasks: Set[asyncio.Task[None]] = set()
        self._link: Optional[Link] = None
        self._relay: Optional[Relay] = None
        self._run: Optional[str] = None
        self._run_dir: Optional[Path] = None
        self._nvidia_smi: Optional[List[str]] = None
        self._owner: Dict[str, Any] = {}
        self._lease: Optional[Lease] = None
        self._boots: Optional[Boots] = None
        self._trials: Optional[Trials] = None
        self._operations: Dict[str, Operation] = {
            "hello": self._hello,
            "status": self._status,
            "checkup": checkup,
            "facts": self._facts,
            "lease.acquire": self._acquire,
            "lease.release": self._release,
            "file.read": self._read_file,
            "reap": self._reap,
            "bye": self._bye,
        }

    async def run(self, read_fd: int, write_fd: int) -> int:
        """Serve until told to leave or left alone; returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        self._link = self._new_link(read_fd, write_fd)
        self._link.start_writing()
        self._link.start_reading()
        watch = asyncio.ensure_future(self._watch_controller())
        if self._guardian is not None:
            self._spawn(self._tell_guardian(self._guardian))
            self._loop.add_reader(self._guardian.fileno(), self._on_guardian_gone, self._guardian)
        await self._stop.wait()
        watch.cancel()
        await self._leave()
        return 0

    def stop(self, reason: str) -> None:
        """Begin the ordered end of everything."""
        if self._stopping is None:
            self._stopping = reason
            self._stop.set()

    def _new_link(self, read_fd: int, write_fd: int) -> Link:
        return Link(read_fd, write_fd, self._outbox, on_line=self._on_line, on_end=self._on_link_end)

    def _on_line(self, link: Link, line: bytes) -> None:
        """On a reader's thread: signs of life must not depend on how busy the loop is."""
        if link is not self._link:
            self._on_returning_line(link, line)
            return
        self._deadman.sign_of_life()
        if self._relay is not None:
            self._relay.pass_on(line)
            return
        self._outbox.wait_for_room(timeout=60.0)
        try:
            message = decode(line)
        except OrderError as error:
            self._outbox.put({"id": None, "error": error.as_dict()})
            return
        if message.get("op") == "beat" and "id" not in message:
            return
        self._loop.call_soon_threadsafe(self._accept, message)

    def _on_returning_line(self, link: Link, line: bytes) -> None:
        """The first line of a relay: a hello that resumes makes its link ours."""
        try:
            message = decode(line)
            last_seq = Params(message).integer("last_seq", 0)
        except OrderError:
            link.end()
            return
        if message.get("op") == "hello" and message.get("resume") is True and message.get("run") == self._run:
            self._loop.call_soon_threadsafe(self._take_back, link, message.get("id"), last_seq)
        else:
            link.end()

    def _take_back(self, link: Link, identity: Any, last_seq: int) -> None:
        lost, self._link = self._link, link
        if lost is not None:
            lost.end()
        self._deadman.back()
        missed = link.start_writing(last_seq)
        self._outbox.put({"id": identity, "ok": {**self._identity(), "missed": missed}})

    def _on_link_end(self, link: Link) -> None:
        if link is self._link:
            self._deadman.left()

    async def _accept_relays(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(listener)
            connection.setblocking(True)
            self._new_link(os.dup(connection.fileno()), connection.detach()).start_reading()

    def _accept(self, message: Dict[str, Any]) -> None:
        self._spawn(self._answer(message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Dict[str, Any]) -> None:
        identity = message.get("id")
        if not isinstance(identity, (int, str)):
            self._refuse(None, OrderError("bad_message", "an order needs an id, a number or a string"))
            return
        if identity in self._seen:
            return  # told again after a reconnect; its answer is told again too
        self._seen[identity] = None
        if len(self._seen) > _REMEMBERED_IDS:
            self._seen.popitem(last=False)
        try:
            answer = await self._operation(message.get("op"))(Params(message))
            if self._relay is None:
                self._outbox.put({"id": identity, "ok": answer})
        except OrderError as error:
            self._refuse(identity, error)
        except Exception as error:  # noqa: BLE001 - whatever an order does, the agent goes on and says so
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._refuse(identity, OrderError("internal", f"{type(error).__name__}: {error}", traceback=text))

    def _operation(self, name: Any) -> Operation:
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            raise OrderError("unknown_op", f"this agent has no operation {name!r:.80}")
        if self._run is None and name != "hello":
            raise OrderError("no_hello", f"{name} before hello")
        return operation

    def _refuse(self, identity: Any, error: OrderError) -> None:
        self._outbox.put({"id": identity, "error": error.as_dict()})

    async def _watch_controller(self) -> None:
        while True:
            await asyncio.sleep(min(0.2, self._deadman.ttl_s / 5))
            reason = self._deadman.reason()
            if reason is not None:
                self.stop(reason)
                return

    async def _tell_guardian(self, guardian: GuardedSide) -> None:
        while True:
            guardian.alive()
            await asyncio.sleep(_ALIVE_S)

    def _on_guardian_gone(self, guardian: GuardedSide) -> None:
        self._loop.remove_reader(guardian.fileno())
        self.stop("guardian_gone")

    async def _leave(self) -> None:
        """End everything in order, leave nothing, and only then give back the lease."""
        if self._trials is not None:
            self._trials.stop_all()
        if self._boots is not None:
            await self._boots.stop_all(_TERM_S)
        if self._run is not None:
            run = self._run
            await self._loop.run_in_executor(None, lambda: kill_until_gone(lambda: _ours(run), timeout=10.0))
        self._give_back()
        link = self._link
        if self._relay is not None:
            self._relay.close()
        elif link is not None and not link.ended:
            await self._loop.run_in_executor(None, self._flush, link)
        self._outbox.close()

    def _flush(self, link: Link) -> None:
        if self._outbox.wait_until_sent(timeout=1.0):
            link.written.wait(timeout=1.0)

    async def _hello(self, params: Params) -> Dict[str, Any]:
        wanted = params.integer("protocol")
        if wanted != PROTOCOL:
            raise OrderError("protocol", f"this agent speaks protocol {PROTOCOL}, not {wanted}")
        if self._run is not None:
            raise OrderError("bad_request", "this agent has been greeted before")
        run = params.text("run")
        ttl_s = params.number("ttl_s", 60.0, low=0.5)
        grace_s = params.number("grace_s", 15.0)
        self._run_dir = rundir.make(run)
        self._deadman.ttl_s, self._deadman.grace_s = ttl_s, grace_s
        if params.flag("resume", default=False):
            assert self._link is not None
            self._deadman.grace_s = 0.0
            self._relay = Relay(self._run_dir, self._link)
            self._relay.pass_on(encode(params.as_dict()).rstrip())
            return {}
        self._run = run
        # Null is the one on the PATH; that there is none is told where it matters.
        self._nvidia_smi = params.texts("nvidia_smi", ["nvidia-smi"])
        self._owner = params.mapping("owner", {})
        self._begin(run, self._run_dir)
        self._spawn(self._accept_relays(listen(self._run_dir)))
        return self._identity()

    def _begin(self, run: str, run_dir: Path) -> None:
        """Everything that needs to know whose run this is."""
        if self._guardian is not None:
            self._guardian.run(run)
        self._lease = Lease(self._owner, run)
        children = Children(self._loop)
        self._boots = Boots(
            self._loop,
            children,
            self._emit,
            run=run,
            run_dir=run_dir,
            agents=orphans.stamp(),
            nvidia_smi=self._nvidia_smi,
            on_death=self._on_server_death,
        )
        self._trials = Trials(self._loop, children, self._boots, self._emit, run_dir=run_dir)
        self._operations.update(
            {
                "boot.start": self._boots.start,
                "boot.stop": self._boots.stop,
                "boot.server_info": self._boots.server_info,
                "boot.evidence": self._boots.evidence,
                "trial.start": self._trials.start,
                "trial.cancel": self._trials.cancel,
            }
        )
        rundir.prune(run)

    def _emit(self, event: str, rank: int = VITAL, **fields: Any) -> None:
        self._outbox.put({"event": event, **fields}, rank)

    def _on_server_death(self, boot: str) -> None:
        assert self._trials is not None
        self._trials.on_death(boot)

    def _identity(self) -> Dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "agent": Path(sys.argv[0]).stem,
            "python": platform.python_version(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "user": getpass.getuser(),
            "mono_ns": time.monotonic_ns(),
            "wall_ns": time.time_ns(),
            "run_dir": str(self._run_dir),
            "uvloop": importlib.util.find_spec("uvloop") is not None,
        }

    async def _status(self, params: Params) -> Dict[str, Any]:
        del params
        return {
            "pid": os.getpid(),
            "leases": holders(),
            "boots": self._boots.names() if self._boots is not None else [],
            "orphans": [orphans.describe(one) for one in orphans.find(self._run or "")],
        }

    async def _facts(self, params: Params) -> Dict[str, Any]:
        return await facts.facts(params.texts("pythons", []), self._nvidia_smi)

    async def _acquire(self, params: Params) -> Dict[str, Any]:
        assert self._lease is not None
        is_first = self._lease.held() is None
        gpus = params.optional("gpus")
        if gpus is not None and not (isinstance(gpus, list) and all(type(gpu) is int for gpu in gpus)):
            raise OrderError("bad_request", f"parameter 'gpus' is {gpus!r:.80}; expected GPU indices or null")
        try:
            answer = await self._lease.acquire(
                gpus,
                params.number("wait_s", 0.0),
                params.text("purpose", ""),
                lambda holder: self._emit("lease.waiting", holder=holder),
                until=self._until,
            )
        except LeaseUnavailable as error:
            raise OrderError("lease_unavailable", str(error), holder=error.holder) from None
        except ValueError as error:
            raise OrderError("bad_request", str(error)) from None
        if self._guardian is not None:
            self._guardian.hold(self._lease.locks())
        assert self._boots is not None
        self._boots.gpus = answer["gpus"]
        # The node is ours now, so what dead sessions left on it is in the way and nobody else's.
        answer["reaped"] = await self._loop.run_in_executor(None, orphans.reap, self._run or "")
        if is_first:
            try:
                await self._loop.run_in_executor(None, strangers.refuse, self._nvidia_smi, answer["gpus"])
            except OrderError:
                self._give_back()
                raise
            answer["warnings"] = await self._warnings(answer["gpus"])
        return answer

    async def _warnings(self, gpus: Optional[List[int]]) -> List[str]:
        """What is no reason to refuse, and may spoil what is measured."""
        assert self._boots is not None
        assert self._lease is not None
        found = []
        memory = await self._loop.run_in_executor(None, strangers.unexplained_memory, self._boots.nvidia_smi)
        if memory is not None:
            found.append(memory)
        if gpus is not None:
            found.append(self._lease.sharing())
        return found

    async def _release(self, params: Params) -> Dict[str, Any]:
        del params
        self._give_back()
        return {}

    def _give_back(self) -> None:
        if self._guardian is not None:
            self._guardian.release()
        if self._lease is not None:
            self._lease.release()

    async def _reap(self, params: Params) -> Dict[str, Any]:
        del params
        killed = await self._loop.run_in_executor(None, orphans.reap, self._run or "")
        on_gpus = await self._loop.run_in_executor(None, facts.gpu_processes, self._nvidia_smi)
        sessions, foreign = orphans.live_sessions(on_gpus, holders())
        return {"killed": killed, "sessions": sessions, "foreign": foreign}

    async def _read_file(self, params: Params) -> Dict[str, Any]:
        assert self._run_dir is not None
        return await self._loop.run_in_executor(
            None,
            read_part,
            self._run_dir,
            params.text("path"),
            params.integer("offset", 0),
            params.integer("length", 1024 * 1024, low=1, high=4 * 1024 * 1024),
        )

    async def _bye(self, params: Params) -> Dict[str, Any]:
        del params
        # The answer goes out first; the loop runs this after it.
        self._loop.call_soon(self.stop, "bye")
        return {}


def _ours(run: str) -> List[procfs.Process]:
    """Everything below us, and everything that carries the run's id."""
    processes = procfs.all_processes()
    found = procfs.descendants(processes, [os.getpid()])
    found.update(one.pid for one in carriers(run, processes))
    return [processes[pid] for pid in found]
