"""Judge what a node said about itself: one line per check, each with a reason and a fix.

Pure: `examine` takes what was collected (the agent's greeting, its ``checkup``, the suite's server configs) and
returns checks. Collecting is `pytest_sglang_perf.cli.doctor`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_sglang_perf.suite.server import ResolvedServer

__all__ = ["Check", "Findings", "Status", "examine"]

Status = Literal["ok", "warn", "bad", "skip"]

_GIB = 2**30
_SHM = "/dev/shm"  # noqa: S108 - named, not written
_SKEW_S = 2.0
_SHM_PER_GPU = 1 * _GIB
_DISK_WARN, _DISK_BAD = 20 * _GIB, 2 * _GIB
_OPEN_FILES = 4096
_IDLE_MEMORY_MIB = 1024.0
_HOT_C = 80.0
# Bits of clocks_event_reasons that mean trouble at rest: hardware slowdown, thermal, power brake.
_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80


class Check(NamedTuple):
    """One line of the table. ``fix`` is empty for what is well."""

    what: str
    status: Status
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Findings:
    """What was collected about one node.

    Attributes:
        hello: the agent's greeting.
        checkup: the agent's answer to ``checkup``.
        skew_s: the node's wall clock minus ours; known to within ``round_trip_s``.
        simulated: whether GPUs and server are simulated.
        servers: the server configs to be booted there.
        gpus: the GPU indices of the suite's node, None for all.
    """

    hello: Mapping[str, Any]
    checkup: Mapping[str, Any]
    skew_s: float = 0.0
    round_trip_s: float = 0.0
    simulated: bool = False
    servers: Sequence[ResolvedServer] = ()
    gpus: Sequence[int] | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.checkup["facts"]
        return facts


def examine(findings: Findings) -> list[Check]:
    """All checks, in the order of the table."""
    return [check for examiner in _EXAMINERS for check in examiner(findings)]


def _agent(findings: Findings) -> Iterator[Check]:
    hello = findings.hello
    who = f"{hello.get('user')}@{hello.get('host')}"
    yield Check("agent", "ok", f"runs as {who} under Python {hello.get('python')}")


def _clock(findings: Findings) -> Iterator[Check]:
    skew, doubt = findings.skew_s, findings.round_trip_s
    text = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} ours"
    if abs(skew) - doubt > _SKEW_S:
        yield Check(
            "clock", "warn", text, "Run an NTP client on both; histories of several nodes will look out of order."
        )
    else:
        yield Check("clock", "ok", "agrees with ours")


def _gpus(findings: Findings) -> Iterator[Check]:
    facts = findings.facts
    gpus: list[dict[str, Any]] = facts["gpus"]
    error = facts["gpu_error"]
    if not gpus:
        needed = any(_gpus_needed(server) for server in findings.servers)
        fix = "Install the NVIDIA driver, or pass the GPUs into the container (`--gpus all`)."
        yield Check("gpus", "bad" if needed else "warn", error or "none", fix)
        return
    names = sorted({f"{gpu['name']}" for gpu in gpus})
    text = f"{len(gpus)} x {', '.join(names)}, driver {', '.join(sorted({str(gpu['driver']) for gpu in gpus}))}"
    if error:
        yield Check("gpus", "bad", error, "A GPU does not answer: see dmesg for Xid lines; reset it or reboot.")
    elif len(names) > 1:
        yield Check("gpus", "warn", f"{text}: not all alike", "Name the ones to use with `gpus:` of the node.")
    else:
        yield Check("gpus", "ok", text)
    missing = sorted(set(findings.gpus or ()) - {gpu["index"] for gpu in gpus})
    if missing:
        yield Check(
            "gpus of this node", "bad", f"there is no GPU {missing}", "Correct `gpus:` of the node in the suite."
        )


def _gpus_needed(server: ResolvedServer) -> int:
    args = server.args
    if args.get("device") == "cpu":
        return 0

    def size(name: str) -> int:
        value = args.get(name, 1)
        return value if isinstance(value, int) else 1

    data = 1 if args.get("enable-dp-attention") else size("dp-size")
    nodes = max(1, size("nnodes"))
    return max(1, size("tp-size") * size("pp-size") * data // nodes)


def _gpu_count(findings: Findings) -> Iterator[Check]:
    have = len(findings.gpus) if findings.gpus is not None else len(findings.facts["gpus"])
    for server in findings.servers:
        need = _gpus_needed(server)
        if need > have:
            yield Check(
                f"gpus for {server.name}",
                "bad",
                f"needs {need} (tp x pp x dp), there are {have}",
                "Lower its parallel sizes, or run it on another node.",
            )


def _power(findings: Findings) -> Iterator[Check]:
    gpus = findings.facts["gpus"]
    limits = {gpu["power_limit_w"] for gpu in gpus}
    if not gpus:
        return
    if None in limits:
        yield Check("power limit", "warn", "cannot be read", "Power and energy metrics will be absent.")
        return
    defaults = {_number(state.get("power.default_limit")) for state in findings.checkup["gpu_state"]} - {None}
    text = ", ".join(f"{limit:.0f} W" for limit in sorted(limits))
    if len(limits) > 1:
        fix = "Set the same limit on all: `nvidia-smi -pl WATTS`."
        yield Check("power limit", "warn", f"differs between GPUs: {text}", fix)
    elif defaults and limits != defaults:
        was = ", ".join(f"{limit:.0f} W" for limit in sorted(d for d in defaults if d is not None))
        yield Check(
            "power limit", "warn", f"{text}, not the default of {was}", "Fine if meant; it is part of the node class."
        )
    else:
        yield Check("power limit", "ok", text)


def _gpu_health(findings: Findings) -> Iterator[Check]:
    states = findings.checkup["gpu_state"]
    if not states:
        return
    slowed = [s["index"] for s in states if _hex(s.get("clocks_event_reasons.active")) & _SLOWDOWN]
    hot = [s["index"] for s in states if (_number(s.get("temperature.gpu")) or 0.0) >= _HOT_C]
    if slowed or hot:
        which = sorted({*slowed, *hot})
        yield Check(
            "clocks",
            "bad",
            f"GPU {', '.join(which)} {'slowed down by hardware or heat' if slowed else 'hot at rest'}",
            "Check cooling and power supply; figures measured now would be of the slowdown.",
        )
    else:
        clocks = sorted({state.get("clocks.max.sm", "?") for state in states})
        yield Check("clocks", "ok", f"up to {', '.join(clocks)} MHz, nothing slows them down")
    errors = {s["index"]: s["ecc.errors.uncorrected.volatile.total"] for s in states if _ecc(s)}
    if errors:
        text = ", ".join(f"GPU {index}: {count}" for index, count in errors.items())
        yield Check(
            "ecc", "bad", f"uncorrected memory errors: {text}", "Reset the GPU (`nvidia-smi -r`) or have it replaced."
        )
    elif any((s.get("ecc.errors.uncorrected.volatile.total") or "").isdecimal() for s in states):
        yield Check("ecc", "ok", "no uncorrected errors")
    loose = [s["index"] for s in states if s.get("persistence_mode") == "Disabled"]
    if loose:
        fix = "`nvidia-smi -pm 1`: without it the first process pays for initialising the GPU, each time."
        yield Check("persistence mode", "warn", f"off on GPU {', '.join(loose)}", fix)


def _ecc(state: Mapping[str, str]) -> bool:
    return (_number(state.get("ecc.errors.uncorrected.volatile.total")) or 0) > 0


def _others(findings: Findings) -> Iterator[Check]:
    processes = findings.facts["gpu_processes"]
    ours = findings.gpus
    mine = [p for p in processes if ours is None or p["gpu"] is None or p["gpu"] in ours]
    if mine:
        text = "; ".join(f"GPU {p['gpu']}: pid {p['pid']} of {p['user']}: {str(p['command'])[:60]}" for p in mine[:4])
        yield Check(
            "other GPU processes", "bad", text, "Stop them, or choose other GPUs: they share power, memory and links."
        )
        return
    used = {s["index"]: _number(s.get("memory.used")) or 0.0 for s in findings.checkup["gpu_state"]}
    held = {index: mib for index, mib in used.items() if mib > _IDLE_MEMORY_MIB}
    if held:
        text = ", ".join(f"GPU {index}: {mib:.0f} MiB" for index, mib in held.items())
        fix = "A process that is not visible from here (another container?) or one that died badly holds it."
        yield Check("other GPU processes", "bad", f"none visible, but memory is in use: {text}", fix)
    elif findings.facts["gpus"]:
        yield Check("other GPU processes", "ok", "none")


def _dmesg(findings: Findings) -> Iterator[Check]:
    dmesg = findings.checkup["dmesg"]
    if not dmesg["readable"]:
        fix = "Let this user read it (kernel.dmesg_restrict=0) to have Xid and OOM lines in crash reports."
        yield Check("kernel log", "skip", "not readable", fix)
    elif dmesg["lines"]:
        last = dmesg["lines"][-1]
        stamp, _, text = last.removeprefix("[").partition("] ")
        age_s = dmesg["uptime_s"] - float(stamp)
        fix = "A GPU fault, a crash or an out-of-memory kill since the node was started."
        yield Check(
            "kernel log", "warn", f"{len(dmesg['lines'])} lines, the last {age_s / 3600:.1f} h ago: {text[:120]}", fix
        )
    else:
        yield Check("kernel log", "ok", "no GPU fault, no out-of-memory kill")


def _tracing(findings: Findings) -> Iterator[Check]:
    tracing = findings.checkup["tracing"]
    label = "stacks of a hang"
    if tracing["py_spy"] is None:
        fix = (
            "`pip install py-spy` beside the server's Python, to have the stacks of a server that hangs in its failure."
        )
        yield Check(label, "skip", "py-spy is not installed", fix)
    elif tracing["obstacle"]:
        yield Check(label, "skip", tracing["obstacle"], "`sysctl kernel.yama.ptrace_scope=0`, or run as root.")
    else:
        yield Check(label, "ok", tracing["py_spy"])


def _space(findings: Findings) -> Iterator[Check]:
    disks = findings.checkup["disks"]
    for what, label in (("cache", "disk of the caches"), ("tmp", "temporary files")):
        disk = disks.get(what)
        if disk is None:
            continue
        free = disk["free_bytes"]
        status: Status = "bad" if free < _DISK_BAD else "warn" if free < _DISK_WARN else "ok"
        fix = "" if status == "ok" else f"Make room under {disk['path']}: kernel caches, core dumps, downloads."
        yield Check(label, status, f"{free / _GIB:.0f} GiB free at {disk['path']}", fix)
    shm = disks.get("shm")
    need = _SHM_PER_GPU * max(1, len(findings.facts["gpus"]))
    if shm is None:
        yield Check(_SHM, "bad", "does not exist", "Mount a tmpfs there: NCCL and Python need it.")
    elif shm["free_bytes"] < need and findings.facts["gpus"]:
        text = f"{shm['free_bytes'] / _GIB:.1f} GiB free; NCCL wants about {need / _GIB:.0f} GiB"
        yield Check(
            _SHM, "bad", text, "In a container use --shm-size=32g or --ipc=host; remove nccl-* of dead processes."
        )
    else:
        yield Check(_SHM, "ok", f"{shm['free_bytes'] / _GIB:.1f} GiB free")
    files = findings.checkup["open_files"]
    if 0 <= files < _OPEN_FILES:
        yield Check("open files", "warn", f"limit {files}", "Raise it (`ulimit -n 65536`) for concurrency above 1000.")


def _ports(findings: Findings) -> Iterator[Check]:
    wanted: dict[str, list[str]] = {}
    for server in findings.servers:
        if server.port:
            wanted.setdefault(str(server.port), []).append(server.name)
    answers: dict[str, str | None] = findings.checkup["ports"]
    for port, names in wanted.items():
        error = answers.get(port)
        if error:
            fix = f"`ss -ltnp 'sport = :{port}'` shows who; or leave `port` out, and a free one is taken."
            yield Check(f"port {port}", "bad", f"{error} ({', '.join(names)})", fix)
        else:
            yield Check(f"port {port}", "ok", f"free ({', '.join(names)})")


def _leases(findings: Findings) -> Iterator[Check]:
    holders = findings.checkup["leases"]
    if holders:
        first = holders[0]
        gpus = first.get("gpus")
        what = "the whole node" if gpus is None else f"GPU {', '.join(map(str, gpus))}"
        text = f"{first.get('user')}@{first.get('host')} uses {what} since {first.get('since')}: {first.get('purpose')}"
        yield Check("lease", "warn", text, "Sessions will wait for it (--sglang-lease-wait).")
    else:
        yield Check("lease", "ok", "free")
    orphans = findings.checkup["orphans"]
    if orphans:
        text = "; ".join(f"pid {orphan['pid']}: {orphan['command'][:60]}" for orphan in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        yield Check("orphans", "bad", f"left by earlier runs: {text}{more}", "`sglang-perf reap NODE` kills them.")
    else:
        yield Check("orphans", "ok", "none")


def _pythons(findings: Findings) -> Iterator[Check]:
    if findings.simulated:
        yield Check("sglang", "skip", "simulated")
        return
    for python, answer in findings.facts["pythons"].items():
        label = f"sglang of {python}"
        if answer["error"]:
            yield Check(
                label, "bad", answer["error"], "Set `python:` of the server config to the interpreter that has sglang."
            )
        elif answer["sglang"] is None:
            fix = f"Install sglang there, or set `python:` to another interpreter than {python}."
            yield Check(label, "bad", f"Python {answer['version']} without sglang", fix)
        else:
            yield Check(label, "ok", f"{answer['sglang']} on Python {answer['version']}")


def _flags(findings: Findings) -> Iterator[Check]:
    if findings.simulated:
        return
    for server in findings.servers:
        if server.command is not None:
            continue
        source = findings.checkup["sglang"].get(server.python)
        label = f"flags of {server.name}"
        if source is None or source["arguments"] is None:
            yield Check(label, "skip", (source or {}).get("error") or "sglang's source was not found")
            continue
        yield from _flags_of(label, server, source)


def _flags_of(label: str, server: ResolvedServer, source: Mapping[str, Any]) -> Iterator[Check]:
    known = set(source["arguments"])
    used = [*server.args, *server.secret_args]
    unknown = [name for name in used if name not in known and name.removeprefix("no-") not in known]
    replaced = {name: source["replaced"][f"--{name}"] for name in used if f"--{name}" in source["replaced"]}
    unread = [name for name in used if name in set(source["unread"] or ())]
    if unknown:
        flags = ", ".join(f"--{name}" for name in unknown)
        near = [f"--{name}" for flag in unknown for name in get_close_matches(flag, known, n=2, cutoff=0.7)]
        hint = f"It knows {', '.join(near)}. " if near else ""
        fix = f"{hint}The server would refuse to start: look for the new name in this release's --help."
        yield Check(label, "bad", f"this sglang does not know {flags}", fix)
    if unread:
        flags = ", ".join(f"--{name}" for name in unread)
        yield Check(label, "warn", f"nothing in this sglang reads {flags}", "It cannot have an effect: leave it out.")
    if replaced:
        text = ", ".join(f"--{old} is now {new}" for old, new in replaced.items())
        yield Check(label, "warn", f"deprecated: {text}", "Use the new flag; the old one will go.")
    if not (unknown or unread or replaced):
        yield Check(label, "ok", f"all {len(used)} known")


def _models(findings: Findings) -> Iterator[Check]:
    if findings.simulated:
        return
    for model, answer in findings.checkup["models"].items():
        label = f"model {model}"
        dummy = all(s.args.get("load-format") == "dummy" for s in findings.servers if s.model == model)
        missing = [what for what in answer["missing"] if not (dummy and (what == "weights" or "safetensors" in what))]
        if answer["error"]:
            yield Check(label, "bad", answer["error"], "Its files cannot be read by this user.")
        elif not answer["found"] and model.startswith(("/", "~", ".")):
            yield Check(label, "bad", "there is no such folder", "Correct the path, or copy the model to the node.")
        elif not answer["found"]:
            fix = "It would be downloaded at the first boot: `hf download` it before, and count that out of boot times."
            yield Check(label, "warn", "not in this user's Hugging Face cache", fix)
        elif missing:
            yield Check(
                label, "bad", f"incomplete: {', '.join(missing[:5])}", f"Download it again to {answer['folder']}."
            )
        else:
            yield Check(label, "ok", f"in {answer['folder']}")


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _hex(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0


_EXAMINERS: tuple[Callable[[Findings], Iterator[Check]], ...] = (
    _agent,
    _clock,
    _leases,
    _gpus,
    _gpu_count,
    _power,
    _gpu_health,
    _others,
    _dmesg,
    _tracing,
    _space,
    _ports,
    _pythons,
    _flags,
    _models,
)
