"""What the node itself told about a server that died or hangs, beside its log.

Asked of the agent (``boot.evidence``), shown shortly in the failure and kept whole as a file beside the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import AgentError, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_sglang_perf.nodes.client import AgentClient

__all__ = ["NodeEvidence", "ask"]

#: nvidia-smi has 5 s and py-spy 9 s; a sick node may need both.
ASK_S = 30.0
_STOPPED = frozenset("Tt")
_STATES = {
    "T": "stopped by a signal (SIGSTOP, or a terminal)",
    "t": "held by a debugger",
    "D": "inside the kernel, where no signal reaches it (a driver, a disk)",
}
_FRAME = re.compile(r"^ {4}(\S+ \(.+\))$")
_THREAD = re.compile(r"^Thread \S+ \(([^)]*)\)(?:: \"([^\"]*)\")?")
_FRAMES = 3
_HELPER = "resource_tracker"
_SHOWN = 4


@dataclass(frozen=True)
class NodeEvidence:
    """The agent's answer.

    Attributes:
        kernel_readable: whether the kernel's log could be read; where not, its silence means nothing.
        kernel_log: lines about GPUs and about this server since it was launched.
        gpus: one {nvidia-smi field: text} a GPU; ``gpu_error`` what nvidia-smi complained of.
        processes: {``pid``, ``title``, ``state``, ``waits_in``} of what was left of the server.
        stacks: {``pid``, ``text``, ``error``} of py-spy, where it was asked.
    """

    kernel_readable: bool = False
    kernel_log: tuple[str, ...] = ()
    gpus: tuple[Mapping[str, str], ...] = ()
    gpu_error: str | None = None
    processes: tuple[Mapping[str, Any], ...] = ()
    stacks: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def stopped(self) -> list[str]:
        """The processes that cannot run, in words."""
        return [_state(one) for one in self.processes if one["state"] in _STOPPED]

    def lines(self) -> list[tuple[str, str]]:
        """The part that belongs into a failure: (label, text), the label once for what belongs together."""
        found = [("kernel", text) for text in self.kernel_log[-_SHOWN:]]
        if self.gpus or self.gpu_error:
            found += [("gpus", text) for text in (*_gpu_lines(self.gpus), *filter(None, [self.gpu_error]))]
        for one in self.processes:
            if one["state"] in _STATES:
                waits = f", in {one['waits_in']}" if one.get("waits_in") and one["state"] == "D" else ""
                found.append(("process", _state(one) + waits))
        titles = {one["pid"]: one["title"] for one in self.processes}
        known = [one for one in self.stacks if one["text"]]
        for one in known:
            if _HELPER in titles.get(one["pid"], ""):
                continue
            where = " < ".join(_innermost(one["text"]))
            if where:
                found.append(("stack", f"{_name(titles.get(one['pid'], 'process'))} (pid {one['pid']}): {where}"))
        if self.stacks and not known:
            found.append(("stack", str(self.stacks[0]["error"])))
        return found

    def to_text(self) -> str:
        """All of it, for a file."""
        parts = ["kernel log since the launch" + ("" if self.kernel_readable else " (not readable by this user)")]
        parts += [f"  {line}" for line in self.kernel_log] or ["  nothing about GPUs or this server"]
        parts.append("\nGPUs")
        parts += ["  " + ", ".join(f"{name}={value}" for name, value in gpu.items()) for gpu in self.gpus]
        parts += [f"  {self.gpu_error}"] if self.gpu_error else []
        parts.append("\nprocesses")
        parts += [f"  {one['pid']} {one['state']} {one['waits_in'] or '-'} {one['title']}" for one in self.processes]
        for one in self.stacks:
            parts += [f"\nstack of {one['pid']}", one["text"] or f"  {one['error']}"]
        return "\n".join(parts) + "\n"


def ask(client: AgentClient, boot_id: str, *, stacks: bool) -> NodeEvidence | None:
    """Ask the agent about a boot; None where it cannot say, which must never hide the crash itself."""
    try:
        answer = client.request("boot.evidence", timeout=ASK_S, boot=boot_id, stacks=stacks)
    except (AgentError, ConnectionLost):
        return None
    return NodeEvidence(
        bool(answer["kernel_readable"]),
        tuple(answer["kernel_log"]),
        tuple(answer["gpus"]),
        answer["gpu_error"],
        tuple(answer["processes"]),
        tuple(answer["stacks"]),
    )


def _state(process: Mapping[str, Any]) -> str:
    return f"{process['title'][:60]} (pid {process['pid']}) is {_STATES[process['state']]}"


def _name(title: str) -> str:
    """A title, or of a command line what tells it from others."""
    if title.startswith("sglang::"):
        return title[:40]
    program, _, rest = title.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".strip()[:40]


def _gpu_lines(gpus: tuple[Mapping[str, str], ...]) -> list[str]:
    """One line for GPUs that are alike, with the range of what differs."""
    if not gpus:
        return []

    def span(name: str, unit: str) -> str:
        values = [value for gpu in gpus if (value := _number(gpu.get(name))) is not None]
        if not values:
            return ""
        low, high = min(values), max(values)
        return f"{low:.0f} {unit}" if low == high else f"{low:.0f} to {high:.0f} {unit}"

    shown = [
        f"memory used {span('memory.used', 'MiB')} of {span('memory.total', 'MiB')}",
        f"power {span('power.draw', 'W')} of {span('power.limit', 'W')}",
        f"clock {span('clocks.sm', 'MHz')}",
        span("temperature.gpu", "C"),
    ]
    lines = [f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: " + ", ".join(part for part in shown if part)]
    sick = [(gpu.get("index"), _number(gpu.get("ecc.errors.uncorrected.volatile.total"))) for gpu in gpus]
    return lines + [f"GPU {index}: {errors:.0f} uncorrected memory errors" for index, errors in sick if errors]


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _innermost(text: str) -> list[str]:
    """The innermost frames of the main thread in a py-spy dump, or of the first one."""
    threads: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread is not None:
            current = threads.setdefault(thread[2] or thread[1], [])
        elif frame is not None:
            current.append(frame[1])
    return (threads.get("MainThread") or next(iter(threads.values()), []))[:_FRAMES]
