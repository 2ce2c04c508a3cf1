"""A program that answers like nvidia-smi about the simulated GPUs.

    --query-gpu=FIELDS --format=csv[,noheader][,nounits] [-i LIST] [-l SECONDS | -lms MILLISECONDS]
    --query-compute-apps=FIELDS --format=...
    -L | -q | (nothing: the table)

Times are the machine's own. ``SGLANG_SIM_SMI_FAIL`` orders faults: ``no_driver`` (no NVML, exit 9), ``hang``,
``lost:INDEX`` (that GPU has fallen off the bus), ``falls:INDEX`` (the same once a server runs), ``thermal`` (hardware
slowdown under load), ``foreign:INDEX`` (a stranger's process on that GPU), ``latecomer:INDEX`` (the same once a server
runs there; the machine's first process stands for him), ``stop:LINES`` (looping ends after so many readings, with an
error).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from .gpus import temperature_c
from .settings import read_settings
from .smi_node import IDLE, POWER_CAP, GpuNow, Node, query_fields, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["main"]

_FOREIGN_PID = 4194300  # above any pid that Linux gives out by default, so never one of ours
_LATECOMER_PID = 1  # seen by everybody, and nobody's server


@dataclass(frozen=True)
class _Options:
    mode: str = "table"
    fields: tuple[str, ...] = ()
    header: bool = True
    units: bool = True
    gpus: tuple[str, ...] = ()
    every_s: float | None = None


class _Usage(Exception):
    """The command line is not understood."""


# -- what is printed


def _query(node: Node, options: _Options) -> list[str]:
    table = query_fields(node)
    lines = []
    for state in _chosen(node, options):
        lost = node.fault == "lost" or (node.fault == "falls" and node.servers())
        if lost and state.index == node.fault_index:
            bus = node.bus(state.index)
            lines.append(f"Unable to determine the device handle for GPU{state.index}: {bus}: Unknown Error")
            continue
        values = [table[name](state) for name in options.fields]
        lines.append(", ".join(f"{value} {unit}" if unit and options.units else value for value, unit in values))
    return lines


def _header(node: Node, options: _Options) -> str:
    if options.mode == "apps":
        units = {"used_memory": "MiB", "used_gpu_memory": "MiB"}
        return ", ".join(f"{f} [{units[f]}]" if f in units else f for f in options.fields)
    table, first = query_fields(node), node.gpus()[0]
    names = ((name, table[name](first)[1]) for name in options.fields)
    return ", ".join(f"{name} [{unit}]" if unit else name for name, unit in names)


def _apps(node: Node, options: _Options) -> list[str]:
    chosen = {state.index for state in _chosen(node, options)}
    rows = [
        (index, pid, title, server.reading.memory_used_mib)
        for server in node.servers()
        for index, pid, title in zip(server.gpus, server.pids, server.titles, strict=False)
    ]
    if node.fault == "foreign":
        rows.append((node.fault_index, _FOREIGN_PID, "/usr/bin/somebody-elses-job", 512.0))
    if node.fault == "latecomer" and any(index == node.fault_index for index, *_ in rows):
        rows.append((node.fault_index, _LATECOMER_PID, "/usr/bin/somebody-elses-job", 512.0))
    lines = []
    for index, pid, title, memory in sorted(rows):
        if index not in chosen:
            continue
        values = {
            "timestamp": timestamp(),
            "pid": str(pid),
            "process_name": title,
            "name": title,
            "gpu_uuid": node.uuid(index),
            "gpu_bus_id": node.bus(index),
            "gpu_name": node.profile.gpu.name,
            "used_memory": f"{memory:.0f} MiB" if options.units else f"{memory:.0f}",
        }
        values["used_gpu_memory"] = values["used_memory"]
        lines.append(", ".join(values[name] for name in options.fields))
    return lines


_APP_FIELDS = (
    "timestamp",
    "pid",
    "process_name",
    "name",
    "gpu_uuid",
    "gpu_bus_id",
    "gpu_name",
    "used_memory",
    "used_gpu_memory",
)


def _chosen(node: Node, options: _Options) -> list[GpuNow]:
    states = node.gpus()
    if not options.gpus:
        return states
    found = []
    for name in options.gpus:
        matching = [s for s in states if name in {str(s.index), node.uuid(s.index), node.bus(s.index)}]
        if not matching:
            raise _Usage("No devices were found")
        found += matching
    return sorted(found, key=lambda state: state.index)


def _list(node: Node, options: _Options) -> list[str]:
    return [f"GPU {s.index}: {node.profile.gpu.name} (UUID: {node.uuid(s.index)})" for s in _chosen(node, options)]


def _report(node: Node, options: _Options) -> list[str]:
    gpu = node.profile.gpu
    lines = ["", "==============NVSMI LOG==============", ""]

    def line(depth: int, name: str, value: str | None = None) -> None:
        lines.append(" " * 4 * depth + (name if value is None else f"{name:<{51 - 4 * depth}}: {value}"))

    line(0, "Timestamp", time.strftime("%a %b %e %H:%M:%S %Y"))
    line(0, "Driver Version", gpu.driver)
    line(0, "CUDA Version", gpu.cuda)
    lines.append("")
    line(0, "Attached GPUs", str(gpu.count))
    for state in _chosen(node, options):
        line(0, f"GPU {node.bus(state.index)}")
        line(1, "Product Name", gpu.name)
        line(1, "GPU UUID", node.uuid(state.index))
        line(1, "Performance State", "P8" if state.reasons & IDLE else "P1")
        line(1, "Clocks Event Reasons")
        for name, mask in (("Idle", IDLE), ("SW Power Cap", POWER_CAP), ("HW Slowdown", 0x8)):
            line(2, name, "Active" if state.reasons & mask else "Not Active")
        line(1, "FB Memory Usage")
        line(2, "Total", f"{gpu.memory_mib} MiB")
        line(2, "Used", f"{state.memory_mib:.0f} MiB")
        line(2, "Free", f"{gpu.memory_mib - state.memory_mib:.0f} MiB")
        line(1, "Utilization")
        line(2, "GPU", f"{state.utilization:.0f} %")
        line(1, "Temperature")
        line(2, "GPU Current Temp", f"{temperature_c(gpu, state.power_w):.0f} C")
        line(1, "GPU Power Readings")
        line(2, "Average Power Draw", f"{state.power_w:.2f} W")
        line(2, "Instantaneous Power Draw", f"{state.instant_w:.2f} W")
        line(2, "Current Power Limit", f"{gpu.power_limit_w:.2f} W")
        lines.append("")
    return lines


def _table(node: Node, options: _Options) -> list[str]:
    gpu = node.profile.gpu
    rule = "+" + "-" * 89 + "+"
    title = f"NVIDIA-SMI {gpu.driver}   Driver Version: {gpu.driver}   CUDA Version: {gpu.cuda}   (simulated)"
    lines = [time.strftime("%a %b %e %H:%M:%S %Y"), rule, f"| {title:<87} |", rule]
    for s in _chosen(node, options):
        name = gpu.name.removeprefix("NVIDIA ")[:38]
        power, memory = (
            f"{s.power_w:.0f}W / {gpu.power_limit_w:.0f}W",
            f"{s.memory_mib:.0f}MiB / {gpu.memory_mib}MiB",
        )
        row = f"{s.index:>3}  {name:<38} {power:>12} {memory:>21} {s.utilization:>4.0f}%"
        lines.append(f"| {row:<87} |")
    lines += [rule, f"| {'Processes:':<87} |"]
    apps = _apps(node, _Options(fields=("pid", "process_name", "used_memory"), gpus=options.gpus))
    lines += [f"| {'  ' + app:<87} |" for app in apps or ["No running processes found"]]
    return [*lines, rule]


_PRINTERS = {"gpu": _query, "apps": _apps, "list": _list, "report": _report, "table": _table}


# -- the command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. {message}")


def _parse(words: Sequence[str]) -> _Options:
    parser = _Parser(prog="nvidia-smi", allow_abbrev=False)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--query-gpu")
    what.add_argument("--query-compute-apps")
    what.add_argument("-L", "--list-gpus", action="store_true")
    what.add_argument("-q", "--query", action="store_true")
    parser.add_argument("--format", default="")
    parser.add_argument("-i", "--id", default="")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("-l", "--loop", type=_positive)
    pace.add_argument("-lms", "--loop-ms", type=_positive)
    given = parser.parse_args(list(words))
    query = given.query_gpu or given.query_compute_apps or ""
    form = _words(given.format)
    if query and ("csv" not in form or set(form) - {"csv", "noheader", "nounits"}):
        raise _Usage('"--format=" must be csv, with noheader and nounits if wanted.')
    modes = {"gpu": given.query_gpu, "apps": given.query_compute_apps, "list": given.list_gpus}
    modes |= {"report": given.query, "table": True}
    return _Options(
        mode=next(mode for mode, wanted in modes.items() if wanted),
        fields=_words(query),
        header="noheader" not in form,
        units="nounits" not in form,
        gpus=_words(given.id),
        every_s=given.loop_ms / 1000 if given.loop_ms else given.loop,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _positive(text: str) -> float:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return float(value)


def _check(node: Node, options: _Options) -> None:
    known = query_fields(node) if options.mode == "gpu" else _APP_FIELDS if options.mode == "apps" else ()
    for name in options.fields:
        if name not in known:
            raise _Usage(f'Field "{name}" is not a valid field to query.\n')


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    node = Node(read_settings())
    if node.fault == "no_driver":
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
            "the latest NVIDIA driver is installed and running.\n"
        )
        return 9
    try:
        options = _parse(sys.argv[1:] if words is None else words)
        _check(node, options)
        if node.fault == "hang":
            signal.pause()
        if options.header and options.mode in {"gpu", "apps"}:
            print(_header(node, options))
        with contextlib.suppress(KeyboardInterrupt):
            _loop(node, options)
    except _Usage as error:
        print(error)
        return 6 if "No devices" in str(error) else 2
    return 15 if node.fault in {"lost", "stop"} else 0


def _loop(node: Node, options: _Options) -> None:
    printer = _PRINTERS[options.mode]
    due = time.monotonic()
    readings = 0
    while True:
        sys.stdout.write("".join(f"{line}\n" for line in printer(node, options)))
        sys.stdout.flush()
        readings += 1
        if options.every_s is None or (node.fault == "stop" and readings >= node.fault_index):
            return
        # nvidia-smi keeps its pace and skips what it missed.
        due = max(due + options.every_s, time.monotonic() - options.every_s)
        time.sleep(max(due - time.monotonic(), 0.0))


if __name__ == "__main__":
    sys.exit(main())
