"""What a doctor asks a node: everything that can be looked up without starting a server, within seconds.

Nothing is judged here and nothing is changed; every question is bounded, and what cannot be told is None or a
text that says why.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import kernel_log, lease, orphans, ports, procfs, stacks
from .command import run
from .facts import facts
from .gpu_state import gpu_state
from .protocol import OrderError
from .sglang_source import arguments_of

if TYPE_CHECKING:
    from .protocol import Params

__all__ = ["checkup"]

_NVIDIA_SMI_S = 5.0
_GPU_FIELDS = (
    "index",
    "clocks.max.sm",
    "clocks.sm",
    "temperature.gpu",
    "memory.used",
    "persistence_mode",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_event_reasons.active",
    "power.default_limit",
)


async def checkup(params: Params) -> Dict[str, Any]:
    """Answer the order ``checkup``.

    Params:
        nvidia_smi: argv or None; pythons: interpreters with sglang; models: paths or hub names; ports: to be
        bound on 127.0.0.1; run: this run's id, whose processes are not orphans.

    Returns:
        ``facts`` (see `facts`), ``gpu_state`` [{field: text}], ``sglang`` {python: see `arguments_of`},
        ``models`` {model: {``found``, ``folder``, ``missing`` [..], ``error``}}, ``ports`` {port: None or error},
        ``disks`` {what: {``path``, ``free_bytes``, ``total_bytes``}}, ``memory_available_bytes``,
        ``open_files`` (hard limit), ``leases``, ``orphans`` [{``pid``, ``run``, ``command``}],
        ``dmesg`` {``readable``, ``lines`` (the kernel's seconds in brackets first), ``uptime_s``},
        ``tracing`` {``py_spy`` (path or None), ``obstacle`` (None or why this user may not look into processes)},
        ``wall_ns``.
    """
    nvidia_smi = params.texts("nvidia_smi", []) or None
    pythons = params.texts("pythons", [])
    loop = asyncio.get_running_loop()
    questions: Dict[str, Tuple[Any, ...]] = {
        "gpu_state": (gpu_state, nvidia_smi, _GPU_FIELDS, _NVIDIA_SMI_S),
        "dmesg": (_dmesg,),
        "orphans": (_orphans, params.text("run", "")),
        "models": (_models, params.texts("models", [])),
        "ports": (_ports, params.texts("ports", [])),
        "disks": (_disks,),
        "tracing": (_tracing, pythons),
        "leases": (lease.holders,),
        "memory_available_bytes": (_memory_available,),
        **{f"sglang {python}": (arguments_of, python) for python in pythons},
    }
    # A pool of its own: in the loop's, one slow disk would keep the others waiting.
    pool = ThreadPoolExecutor(max_workers=len(questions))
    try:
        known, *answers = await asyncio.gather(
            _facts(pythons, nvidia_smi), *(loop.run_in_executor(pool, *question) for question in questions.values())
        )
    finally:
        pool.shutdown(wait=False)
    found: Dict[str, Any] = {"facts": known, "sglang": {}}
    for name, answer in zip(questions, answers):
        kind, _, python = name.partition(" ")
        if kind == "sglang":
            found["sglang"][python] = answer
        elif kind == "gpu_state":
            found[name] = answer.gpus
        else:
            found[name] = answer
    found["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found["wall_ns"] = time.time_ns()
    return found


async def _facts(pythons: List[str], nvidia_smi: Optional[List[str]]) -> Dict[str, Any]:
    """`facts`, but a hanging nvidia-smi is found out once and not asked again and again."""
    if nvidia_smi:
        loop = asyncio.get_running_loop()
        listed = await loop.run_in_executor(None, run, [*nvidia_smi, "-L"], _NVIDIA_SMI_S)
        if listed.status is None:
            error = f"nvidia-smi did not answer in time ({_NVIDIA_SMI_S:.0f} s; a sick GPU, or persistence mode is off)"
            return {**await facts(pythons, None), "gpu_error": error}
    return await facts(pythons, nvidia_smi)


def _dmesg() -> Dict[str, Any]:
    log = kernel_log.read()
    lines = kernel_log.notable(log, None, None)[-20:]
    return {"readable": log.readable, "lines": lines, "uptime_s": procfs.since_start_s()}


def _tracing(pythons: List[str]) -> Dict[str, Optional[str]]:
    return {"py_spy": stacks.find_py_spy([*pythons, sys.executable]), "obstacle": stacks.trace_obstacle()}


def _orphans(own_run: str) -> List[Dict[str, Any]]:
    return [orphans.describe(one) for one in orphans.find(own_run)]


def _models(models: List[str]) -> Dict[str, Any]:
    return {model: _model(model) for model in models}


def _model(model: str) -> Dict[str, Any]:
    path = Path(model).expanduser()
    answer: Dict[str, Any] = {"found": False, "folder": None, "missing": [], "error": None}
    try:
        folder: Optional[Path] = path if path.is_dir() else _cached(model)
        if folder is None:
            return answer
        answer.update(found=True, folder=str(folder))
        names = {item.name for item in folder.iterdir()}
        if "config.json" not in names:
            answer["missing"].append("config.json")
        if not any(name.startswith(("tokenizer", "tiktoken")) or name.endswith(".tiktoken") for name in names):
            answer["missing"].append("a tokenizer")
        indexes = [name for name in names if name.endswith(".index.json")]
        shards: set[str] = set()
        for index in indexes:
            shards |= set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
        answer["missing"] += sorted(shards - {name for name in names if (folder / name).exists()})[:20]
        if not shards and not any(name.endswith((".safetensors", ".bin", ".pt", ".gguf")) for name in names):
            answer["missing"].append("weights")
    except (OSError, ValueError, KeyError, TypeError) as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    return answer


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def _cached(model: str) -> Optional[Path]:
    """The newest snapshot of a hub's model in this user's cache."""
    home = Path(os.environ.get("HF_HOME") or _cache() / "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    snapshots = Path(hub) / f"models--{model.replace('/', '--')}" / "snapshots"
    if not snapshots.is_dir():
        return None
    return max((item for item in snapshots.iterdir() if item.is_dir()), key=lambda p: p.stat().st_mtime, default=None)


def _ports(wanted: List[str]) -> Dict[str, Optional[str]]:
    answers: Dict[str, Optional[str]] = {}
    for port in wanted:
        try:
            ports.claim("127.0.0.1", int(port))
            answers[port] = None
        except OrderError as error:
            held = error.kind == "port_in_use"
            holder = ports.Holder(error.details.get("pid"), str(error.details.get("command")))
            answers[port] = f"held by {holder}" if held else str(error)
    return answers


def _disks() -> Dict[str, Any]:
    places = {"cache": str(_cache()), "tmp": tempfile.gettempdir(), "shm": "/dev/shm"}  # noqa: S108 - measured, not written
    found: Dict[str, Any] = {}
    for what, place in places.items():
        path = Path(place)
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        if what != "shm" or Path(place).is_dir():
            found[what] = {"path": place, "free_bytes": usage.free, "total_bytes": usage.total}
    return found


def _memory_available() -> Optional[int]:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
