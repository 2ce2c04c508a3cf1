"""Is this server ready, and is it ours? Judged here, on the node, by evidence and never by the log.

Ready means all of: the process that listens on the port is in our process tree (or carries our run's id), the
readiness path answers 200, and ``/server_info`` reports what we launched. A server that failed to bind can warm
up against its neighbour and claim to be ready; a neighbour can answer 200 for it. Neither passes.

Probing is cheap and frequent: `_POLL_S` after a refused connection or an answer of ``/ready``. ``/health`` makes
the server generate a token, so one probe ends before the next begins.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import ports
from .httpget import Response, get

__all__ = ["READY_PATHS", "Readiness", "Ready", "differences", "fetch_server_info"]

READY_PATHS = ("/ready", "/health")
_INFO_PATHS = ("/server_info", "/get_server_info")
_POLL_S = 0.05
_LOOK_S = 1.0
_SLOW_S = 1.0  # an answer that takes longer makes us look whose it would be

Report = Callable[[str, str], None]


class Ready(NamedTuple):
    """A server that is ready: when (ns), how long the decisive probe took (s), its /server_info, who listens."""

    ns: int
    probe_s: float
    server_info: Dict[str, Any]
    listener_pid: int


class Readiness:
    """Waits until a server is ready.

    Args:
        host: where to reach it.
        port: its port.
        ours: the pids that may listen there, looked up anew each time.
        expect: keys and values that ``/server_info`` must report.
        ready_paths: the first that is not 404 decides.
        timeout_s: seconds for one probe.
        headers: sent with each probe.
        report: told each change of state: ``refused``, ``starting``, ``foreign_listener``, ``mismatch``,
            ``ready``, and its detail.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ours: Callable[[], Iterable[int]],
        expect: Dict[str, Any],
        ready_paths: Iterable[str] = READY_PATHS,
        timeout_s: float = 10.0,
        headers: Optional[Dict[str, str]] = None,
        report: Report = lambda state, detail: None,
    ) -> None:
        self._host = host
        self._port = port
        self._ours = ours
        self._expect = expect
        self._paths = list(ready_paths)
        self._timeout_s = timeout_s
        self._headers = headers or {}
        self._report = report
        self._looked = 0.0  # when it was last found out who listens
        self._reported: Optional[Tuple[str, str]] = None

    async def wait(self) -> Ready:
        """Probe until ready; cancel it when the server has died."""
        while True:
            state, detail, ready = await self._probe()
            if (state, detail) != self._reported:
                self._reported = (state, detail)
                self._report(state, detail)
            if ready is not None:
                return ready
            await asyncio.sleep(_POLL_S)

    async def _probe(self) -> Tuple[str, str, Optional[Ready]]:
        began = time.monotonic()
        asking = asyncio.ensure_future(self._ask())
        try:
            await asyncio.wait({asking}, timeout=_SLOW_S)
            if not asking.done() and ports.listener_among(self._port, self._ours()) is None:
                # A stranger that never answers is told before our own patience with a slow server ends.
                return (*self._whose("starting", ""), None)
            response = await asking
        except ConnectionRefusedError:
            return "refused", "", None
        except asyncio.TimeoutError:
            state, detail = self._whose("starting", f"no answer within {self._timeout_s:g} s")
            return state, detail, None
        except (OSError, ValueError) as error:
            state, detail = self._whose("starting", str(error))
            return state, detail, None
        finally:
            asking.cancel()
        ns, probe_s = time.monotonic_ns(), time.monotonic() - began
        unready = ("starting", f"{self._paths[0]} answers {response.status}")
        if response.status != 200 and self._reported == unready and began - self._looked < _LOOK_S:
            # Whose answer it is costs more to find out than the answer: not for every one that says "not yet".
            return (*unready, None)
        self._looked = began
        listener = ports.listener_among(self._port, self._ours())
        if listener is None:
            state, detail = self._whose("starting", "")
            return state, detail, None
        if response.status != 200:
            return (*unready, None)
        return await self._compare(Ready(ns, probe_s, {}, listener))

    async def _compare(self, ready: Ready) -> Tuple[str, str, Optional[Ready]]:
        try:
            info = await fetch_server_info(self._host, self._port, timeout=self._timeout_s, headers=self._headers)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            if self._expect:
                return "mismatch", f"/server_info cannot be read: {str(error) or 'no answer in time'}", None
            info = {}
        wrong = differences(self._expect, info)
        if wrong:
            return "mismatch", "; ".join(wrong), None
        return "ready", "", ready._replace(server_info=info)

    async def _ask(self) -> Response:
        while True:
            response = await get(self._host, self._port, self._paths[0], timeout=self._timeout_s, headers=self._headers)
            if response.status != 404 or len(self._paths) == 1:
                return response
            del self._paths[0]

    def _whose(self, state: str, detail: str) -> Tuple[str, str]:
        """The state, unless the one that answers is not ours."""
        if ports.listener_among(self._port, self._ours()) is not None:
            return state, detail
        return "foreign_listener", f"port {self._port} is answered by {ports.holder_of(self._port)}"


async def fetch_server_info(
    host: str, port: int, *, timeout: float, headers: Optional[Dict[str, str]] = None
) -> Dict[str, Any]:
    """The server's ``/server_info``, or ``/get_server_info`` of older versions.

    Raises:
        OSError, asyncio.TimeoutError: see `httpget.get`.
        ValueError: neither answers 200 with a JSON object.
    """
    for path in _INFO_PATHS:
        response = await get(host, port, path, timeout=timeout, headers=headers)
        if response.status == 404:
            continue
        if response.status != 200:
            raise ValueError(f"{path} answers {response.status}")
        info = json.loads(response.body)
        if not isinstance(info, dict):
            raise ValueError(f"{path} answers with {type(info).__name__}, not an object")  # noqa: TRY004 - as documented
        return info
    raise ValueError("neither /server_info nor /get_server_info exists")


def differences(expect: Dict[str, Any], info: Dict[str, Any]) -> List[str]:
    """In words, where a server reports something else than was launched.

    A key that the server does not report proves nothing either way, unless none of them is reported.
    """
    known = {key: value for key, value in expect.items() if key in info}
    if expect and not known:
        return [f"/server_info reports none of {', '.join(sorted(expect))}"]
    return [
        f"{key} is {info[key]!r}, launched with {value!r}"
        for key, value in sorted(known.items())
        if not _same(value, info[key])
    ]


def _same(left: Any, right: Any) -> bool:
    # A port may be reported as text, a flag as its spelling; true is not 1.
    return bool(left == right and isinstance(left, bool) == isinstance(right, bool)) or str(left) == str(right)
