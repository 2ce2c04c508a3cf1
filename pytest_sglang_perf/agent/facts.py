"""What a node is: its processor, memory, kernel, GPUs, who uses those, and the interpreters servers run under.

Every question is bounded in time, and a sick nvidia-smi or interpreter is an answer in words, never an exception.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import pwd
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .command import run

__all__ = ["facts", "gpu_memory_used", "gpu_processes"]

_NVIDIA_SMI_S = 10.0
_PYTHON_S = 20.0
_COMMAND_CHARACTERS = 400
_SECRET = re.compile(r"(?i)(key|token|secret|password)$")

# Where sglang runs from a checkout it has no metadata; its version is then read from its files, not by
# importing it, which takes seconds and may need a GPU.
_PROBE = r"""
import importlib.util, json, os, platform, re
version = None
try:
    from importlib.metadata import PackageNotFoundError, version as version_of
    version = version_of("sglang")
except ImportError:
    spec = importlib.util.find_spec("sglang")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in ("_version.py", "version.py"):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    found = re.search(r'^(?:__version__ = )?(?:version = )?"([0-9][^"]*)"', file.read(), re.M)
            except OSError:
                continue
            version = version or (found.group(1) if found else None)
print("\n" + json.dumps({"version": platform.python_version(), "sglang": version}))
"""


async def facts(pythons: List[str], nvidia_smi: Optional[List[str]]) -> Dict[str, Any]:
    """Everything about this node, within 30 s.

    Args:
        pythons: paths of interpreters to ask for their version and that of their sglang.
        nvidia_smi: the command, as a list of words; None when the node has no GPUs to speak of.

    Returns:
        ``cpu_model``, ``cpus``, ``memory_bytes``, ``kernel``, ``gpus`` [{``index``, ``uuid``, ``name``,
        ``memory_total_mib``, ``power_limit_w``, ``driver``}], ``gpu_error`` (None, or what is wrong with them),
        ``gpu_processes`` (see `gpu_processes`) and ``pythons`` {path: {``version``, ``sglang``, ``error``}}.
    """
    loop = asyncio.get_running_loop()
    wanted = list(dict.fromkeys(pythons))
    # A pool of its own: in the loop's, one question might wait for the next.
    pool = ThreadPoolExecutor(max_workers=3 + len(wanted))
    try:
        machine, gpus, processes, *answers = await asyncio.gather(
            loop.run_in_executor(pool, _machine),
            loop.run_in_executor(pool, _gpus, nvidia_smi),
            loop.run_in_executor(pool, gpu_processes, nvidia_smi),
            *(loop.run_in_executor(pool, _python, path) for path in wanted),
        )
    finally:
        pool.shutdown(wait=False)
    found, error = gpus
    return {
        **machine,
        "gpus": found,
        "gpu_error": error,
        "gpu_processes": processes,
        "pythons": dict(zip(wanted, answers)),
    }


def gpu_processes(nvidia_smi: Optional[List[str]]) -> List[Dict[str, Any]]:
    """Who computes on the GPUs, as far as nvidia-smi tells; blocks for at most 25 s, never raises.

    Returns:
        A list of {``gpu`` (index or None), ``pid``, ``user`` (None where the process is not visible from here,
        as in a container), ``command`` (with the values of secret options left out)}.
    """
    rows, _ = _query(nvidia_smi, "--query-compute-apps=gpu_uuid,pid,process_name", 3)
    if not rows:
        return []
    gpus, _ = _query(nvidia_smi, "--query-gpu=uuid,index", 2)
    index_of = {uuid: _integer(index) for uuid, index in gpus}
    found = []
    for uuid, number, name in rows:
        pid = _integer(number)
        if pid is not None:
            command = _command(pid) or name
            found.append({"gpu": index_of.get(uuid), "pid": pid, "user": _user(pid), "command": command})
    return found


def gpu_memory_used(nvidia_smi: Optional[List[str]]) -> Optional[List[float]]:
    """MiB in use on each GPU, by index; None when that cannot be told. Blocks for at most 12 s, never raises."""
    rows, error = _query(nvidia_smi, "--query-gpu=index,memory.used", 2)
    used = {_integer(index): _number(memory) for index, memory in rows}
    if error is not None or not used:
        return None
    ordered = [used[index] for index in sorted(index for index in used if index is not None)]
    known = [memory for memory in ordered if memory is not None]
    return known if len(known) == len(rows) else None


def _gpus(nvidia_smi: Optional[List[str]]) -> Tuple[List[Dict[str, Any]], Optional[str]]:
    if not nvidia_smi:
        return [], "no nvidia-smi command is set for this node"
    rows, error = _query(nvidia_smi, "--query-gpu=index,uuid,memory.total,power.limit,driver_version,name", 6)
    gpus = [
        {
            "index": _integer(index),
            "uuid": uuid,
            "name": name,
            "memory_total_mib": _number(memory),
            "power_limit_w": _number(limit),
            "driver": driver,
        }
        for index, uuid, memory, limit, driver, name in rows
    ]
    return gpus, error if gpus or error else "nvidia-smi lists no GPU"


def _query(nvidia_smi: Optional[List[str]], query: str, columns: int) -> Tuple[List[List[str]], Optional[str]]:
    """The rows of an answer, and what was wrong; the last column may hold commas, as names do."""
    if not nvidia_smi:
        return [], None
    finished = run([*nvidia_smi, query, "--format=csv,noheader,nounits"], _NVIDIA_SMI_S)
    rows: List[List[str]] = []
    odd: List[List[str]] = []
    for line in finished.out.splitlines():
        cells = [cell.strip() for cell in line.split(",", columns - 1)]
        (rows if len(cells) == columns else odd).append(cells)
    error = finished.trouble("nvidia-smi")
    if error is None and any(line != [""] for line in odd):
        error = "nvidia-smi says: " + "; ".join(", ".join(line) for line in odd)[:400]
    return rows, error


def _integer(text: str) -> Optional[int]:
    return int(text) if text.isdecimal() else None


def _number(text: str) -> Optional[float]:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _user(pid: int) -> Optional[str]:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


def _command(pid: int) -> Optional[str]:
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            words = file.read(65536).rstrip(b"\0").decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    shown = []
    secret_follows = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = name.startswith("-") and _SECRET.search(name) is not None
        shown.append("***" if secret_follows else f"{name}=***" if is_secret and equals else word)
        secret_follows = is_secret and not equals
    text = " ".join("".join(c if c.isprintable() else " " for c in " ".join(shown)).split())
    return text[:_COMMAND_CHARACTERS] or None


def _python(path: str) -> Dict[str, Optional[str]]:
    # From a folder that holds no modules: where the agent happens to run must not be searched for sglang.
    finished = run([path, "-c", _PROBE], _PYTHON_S, cwd="/")
    error = finished.trouble(path)
    if error is None:
        try:
            answer = json.loads(finished.out.strip().rpartition("\n")[2])
            return {"version": answer["version"], "sglang": answer["sglang"], "error": None}
        except (ValueError, KeyError, TypeError):
            error = f"{path} is no Python: it answered {finished.out.strip()[:200]!r}"
    return {"version": None, "sglang": None, "error": error}


def _machine() -> Dict[str, Any]:
    return {
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None:
        # ARM kernels give part numbers only, which lscpu knows the names of.
        found = re.search(r"^Model name:\s*(.+)$", run(["lscpu"], 5.0).out, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()
