"""Starting and sweeping at the same time."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

from pytest_sglang_perf.agent import boots
from pytest_sglang_perf.agent.boots import Boots
from pytest_sglang_perf.agent.children import Children


async def seen_while_starting(monkeypatch: Any) -> list[bool]:
    children = Children(asyncio.get_running_loop())
    popen = subprocess.Popen
    seen: list[bool] = []
    lookers: list[threading.Thread] = []

    def slow(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        looker = threading.Thread(target=lambda: seen.append(children.is_ours(process.pid)))
        looker.start()  # it has seen the process, which nobody has noted yet
        looker.join(0.05)
        lookers.append(looker)
        return process

    monkeypatch.setattr(subprocess, "Popen", slow)
    child = children.spawn(["sleep", "60"])
    monkeypatch.undo()
    for looker in lookers:
        looker.join(10)
    child.popen.kill()
    await asyncio.wait_for(child.exited, 10)
    return seen


def test_a_server_that_is_being_started_is_ours_for_a_sweep_that_sees_it(monkeypatch: Any) -> None:
    assert asyncio.run(seen_while_starting(monkeypatch)) == [True]


async def sweeps_at_once(monkeypatch: Any) -> int:
    running: list[int] = []
    most = 0

    def slow(_find: Any, *, timeout: float) -> set[int]:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        time.sleep(min(0.05, timeout))
        running.pop()
        return {len(running)}

    monkeypatch.setattr(boots, "kill_until_gone", slow)
    agent: Any = SimpleNamespace(_loop=asyncio.get_running_loop())
    boot: Any = SimpleNamespace(sweep=asyncio.Lock(), killed=set(), family=SimpleNamespace(everyone=None))
    await asyncio.gather(*(Boots._kill(agent, boot) for _ in range(3)))
    assert boot.killed
    return most


def test_a_server_is_swept_once_at_a_time(monkeypatch: Any) -> None:
    assert asyncio.run(sweeps_at_once(monkeypatch)) == 1
