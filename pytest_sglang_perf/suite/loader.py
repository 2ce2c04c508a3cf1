"""Reading a suite file into something that can be asked for nodes, server configs and workloads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.metrics import REGISTRY
from pytest_sglang_perf.suite._problems import Problems, did_you_mean, relative
from pytest_sglang_perf.suite._resolve import resolve_servers
from pytest_sglang_perf.suite._validate import validate
from pytest_sglang_perf.suite._yaml import read_yaml
from pytest_sglang_perf.suite.flags import note_on_unknown
from pytest_sglang_perf.suite.workload import ResolvedWorkload, level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_sglang_perf.suite._yaml import Document
    from pytest_sglang_perf.suite.models import SuiteModel, WorkloadModel
    from pytest_sglang_perf.suite.nodes import LocalNode, SimNode, SshNode, UrlNode
    from pytest_sglang_perf.suite.server import ResolvedServer

    AnyNode = SimNode | LocalNode | SshNode | UrlNode

__all__ = ["Suite", "load_suite", "parse_suite"]

_T = TypeVar("_T")

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Suite:
    """Everything that a suite file says, checked and resolved.

    Attributes:
        path: the suite file.
        default_node: node where none is named, or None.
        default_workload: workload where a mark names none, or None.
        boots: boots of a server config in one session: at first, and at most while a claim is inconclusive.
        trials: trials of each level in a boot.
        precision: half-width of the boot's mean at which its trials end early, as a fraction; None for never.
        lease_wait: seconds to wait for a node in use.
        margins: metric -> the change that matters, as a fraction.
        correction: of the session's regressions for their number: ``holm``, ``bh`` or ``none``.
        nodes, servers, workloads: by name, in the order of the file.
        notes: remarks that are no errors, such as flags that no known sglang has.
    """

    path: Path
    default_node: str | None
    default_workload: str | None
    boots: tuple[int, int]
    trials: int
    lease_wait: float
    margins: Mapping[str, float]
    correction: str = "holm"
    precision: float | None = None
    nodes: Mapping[str, AnyNode] = field(default_factory=dict)
    servers: Mapping[str, ResolvedServer] = field(default_factory=dict)
    workloads: Mapping[str, ResolvedWorkload] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def node(self, name: str | None = None) -> AnyNode:
        """The node of this name, or the default one.

        Raises:
            SuiteError: there is no such node, or no default.
        """
        return self._pick("node", self.nodes, name or self.default_node, "default_node or --sglang-node")

    def server(self, name: str) -> ResolvedServer:
        """The server config of this name.

        Raises:
            SuiteError: there is none.
        """
        return self._pick("server config", self.servers, name, "")

    def workload(self, name: str | None = None) -> ResolvedWorkload:
        """The workload of this name, or the default one.

        Raises:
            SuiteError: there is no such workload, or no default.
        """
        return self._pick("workload", self.workloads, name or self.default_workload, "default_workload or the mark")

    def _pick(self, what: str, known: Mapping[str, _T], name: str | None, by: str) -> _T:
        names = ", ".join(known) or "none"
        if name is None:
            raise SuiteError(f"{relative(self.path)}: no {what} is named; name one by {by}. It has {names}.")
        if name not in known:
            guess = did_you_mean(name, known) or "."
            raise SuiteError(f"{relative(self.path)}: there is no {what} {name!r}{guess} It has {names}.")
        return known[name]


def load_suite(path: Path | str) -> Suite:
    """Read a suite file.

    Raises:
        SuiteError: the file cannot be read, or with every error in it (line, key, found, expected).
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SuiteError(
            f"the suite file {path} cannot be read ({error.strerror}). "
            f"Name another one by --sglang-suite, or write one: nodes, servers and workloads."
        ) from None
    return parse_suite(content, path, name=relative(path))


def parse_suite(
    content: bytes, path: Path, *, name: str, read_file: Callable[[Path], bytes] = Path.read_bytes
) -> Suite:
    """Make a suite of a file's content, which need not be what is on the disk now.

    Args:
        content: the file's bytes.
        path: where the file is or was; files that it refers to are relative to it.
        name: how errors name the file.
        read_file: reads a file that the suite refers to.

    Raises:
        SuiteError: with every error in it.
    """
    problems = Problems(name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SuiteError(
            f"{name}:{line}: not UTF-8 text (byte {content[error.start]:#04x}); save it as UTF-8"
        ) from None
    document = read_yaml(text, name)
    model = validate(document, problems)
    if model is None:
        problems.raise_if_any()
        raise AssertionError("no model without a problem")
    servers = resolve_servers(model.servers, document, problems)
    workloads = {
        key: _workload(key, written, path, document, problems, read_file) for key, written in model.workloads.items()
    }
    _check_references(model, document, problems)
    _check_canaries(model, workloads, document, problems)
    problems.raise_if_any()
    return Suite(
        path=path,
        default_node=model.default_node or _only(model.nodes),
        default_workload=model.default_workload or _only(model.workloads),
        boots=(model.boots[0], model.boots[1]),
        trials=model.trials,
        lease_wait=model.lease_wait,
        margins=model.margins,
        correction=model.correction,
        precision=model.precision,
        nodes=model.nodes,
        servers=servers,
        workloads=workloads,
        notes=tuple(_notes(model, document, name)),
    )


def _only(named: Mapping[str, object]) -> str | None:
    return next(iter(named)) if len(named) == 1 else None


def _check_references(model: SuiteModel, document: Document, problems: Problems) -> None:
    _check_margins(model, document, problems)
    for key, known in (("default_node", model.nodes), ("default_workload", model.workloads)):
        name = getattr(model, key)
        if name is not None and name not in known:
            guess = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}"
            problems.add(
                f"{name!r} is not among {key.removeprefix('default_')}s{guess}",
                place=document.place((key,)),
                path=(key,),
            )


def _check_canaries(
    model: SuiteModel, workloads: Mapping[str, ResolvedWorkload], document: Document, problems: Problems
) -> None:
    for node, written in model.nodes.items():
        canary = getattr(written, "canary", None)
        if canary is None:
            continue
        at = ("nodes", node, "canary")
        workload: str | None = canary.workload or model.default_workload or _only(workloads)
        for key, value, known in (("server", canary.server, model.servers), ("workload", workload, workloads)):
            if value not in known:
                guess = did_you_mean(value or "", known) or f"; there are {', '.join(known) or 'none'}"
                problems.add(
                    f"{value!r} is not among the {key}s{guess}", place=document.place((*at, key)), path=(*at, key)
                )
        levels_known = workloads[workload].levels if workload is not None and workload in workloads else None
        if levels_known is not None and level_of(canary.concurrency) not in levels_known:
            levels = ", ".join(map(str, levels_known))
            problems.add(
                f"{canary.concurrency:g} is not a level of {workload!r}; it has {levels}",
                place=document.place((*at, "concurrency")),
                path=(*at, "concurrency"),
            )


def _check_margins(model: SuiteModel, document: Document, problems: Problems) -> None:
    for name in model.margins:
        metric = REGISTRY.get(name)
        message = ""
        if metric is None:
            message = f"there is no metric {name!r}{did_you_mean(name, REGISTRY) or '; see docs/reference/metrics.md'}"
        elif metric.exact:
            message = "is counted exactly, and needs no margin"
        elif metric.better is None:
            energy = "; gate energy_per_token" if name.startswith("power_") else ""
            message = f"has no better direction, so that it cannot regress{energy}"
        if message:
            problems.add(message, place=document.place(("margins", name)), path=("margins", name))


def _workload(
    name: str,
    written: WorkloadModel,
    path: Path,
    document: Document,
    problems: Problems,
    read_file: Callable[[Path], bytes],
) -> ResolvedWorkload:
    at = ("workloads", name)
    files: dict[str, tuple[str, str]] = {}
    for key in ("arrival", "input_len", "output_len"):
        file = getattr(getattr(written, key), "path", None)
        if file is None:
            continue
        full = path.parent / file
        try:
            files[file] = (str(full.resolve()), hashlib.sha256(read_file(full)).hexdigest())
        except OSError as error:
            where = (*at, key, "path")
            problems.add(
                f"the file {file!r} cannot be read ({error.strerror or error}); it is relative to the suite",
                place=document.place(where),
                path=where,
            )
    resolved = ResolvedWorkload(name=name, written=written, files=files)
    if isinstance(written.requests, dict):
        for level in written.requests:
            if level_of(level) not in resolved.levels:
                where = (*at, "requests", level)
                problems.add(
                    f"{level} is not a level of this workload; it has {', '.join(map(str, resolved.levels))}",
                    place=document.place(where),
                    path=where,
                )
    return resolved


def _notes(model: SuiteModel, document: Document, name: str) -> list[str]:
    notes = []
    for server, written in model.servers.items():
        for key in written.args:
            note = note_on_unknown(key)
            if note:
                place: Any = document.place(("servers", server, "args", key))
                notes.append(f"{name}:{place.line}: servers.{server}.args.{key}: {note}")
        if written.host is not None and written.host not in _LOOPBACK:
            place = document.place(("servers", server, "host"))
            notes.append(
                f"{name}:{place.line}: servers.{server}.host: on {written.host} everybody who reaches the node can use "
                "this server, and disturb what is measured; 127.0.0.1, the default, needs no other"
            )
    return notes
