"""``sglang-perf doctor NODE``: is this node fit to measure on, and what to do where it is not."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import AgentError, HostKeyError, NodeError, NodeSetupError, NodeUnreachable
from pytest_sglang_perf.nodes.doctor import Check, Findings, examine
from pytest_sglang_perf.nodes.open import open_node
from pytest_sglang_perf.suite import LocalNode, SimNode, UrlNode, load_suite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_sglang_perf.nodes.open import OpenNode
    from pytest_sglang_perf.suite import ResolvedServer, SshNode, Suite

__all__ = ["check_node", "main"]

_CHECKUP_S = 30.0
_SUITES = ("sglang-perf.yaml", "perf_tests/sglang-perf.yaml")
_MARKS = {"ok": "ok  ", "warn": "warn", "bad": "BAD ", "skip": "-   "}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when nothing is bad, 1 when something is, 2 for a wrong command line or suite."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf doctor",
        description="Look a node over before measuring on it: the way there, GPUs, who else uses them, sglang, flags, "
        "models, space, leases. Starts no server and changes nothing. Exit status: 0 fit, 1 not.",
    )
    parser.add_argument("node", nargs="?", metavar="NODE", help="a node of the suite; its default one without")
    parser.add_argument("--suite", metavar="FILE", help="default: sglang-perf.yaml here or in perf_tests/")
    parser.add_argument("--server", action="append", metavar="NAME", help="check only for this server config")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    suite = load_suite(_suite_path(options.suite))
    node = suite.node(options.node)
    name = options.node or suite.default_node or ""
    if isinstance(node, UrlNode):
        parser.error(f"{name} is a server that somebody else started; there is no node to look at")
    names = options.server or list(suite.servers)
    servers = [suite.server(server) for server in names]
    start = time.monotonic()
    checks = check_node(name, node, servers, environ=os.environ)
    seconds = time.monotonic() - start
    bad = any(check.status == "bad" for check in checks)
    if options.json:
        rows = [check._asdict() for check in checks]
        print(json.dumps({"node": name, "fit": not bad, "seconds": round(seconds, 2), "checks": rows}))
    else:
        print(render(name, suite, checks, seconds))
    return int(bad)


def check_node(
    name: str,
    node: SimNode | LocalNode | SshNode,
    servers: Sequence[ResolvedServer],
    *,
    environ: Mapping[str, str],
) -> list[Check]:
    """Go there, ask and judge. A node that cannot be reached is a check that is bad, not an error."""
    run = uuid.uuid4().hex
    try:
        opened = open_node(name, node, run=run, environ=environ, ttl_s=30.0, grace_s=0.0)
    except NodeError as error:
        return [_not_reached(error)]
    try:
        way = Check("way", "ok", f"{opened.transport.describe()}, agent started")
        return [way, *examine(_collect(opened, node, servers, run))]
    except (AgentError, NodeError) as error:
        return [Check("agent", "bad", str(error), "Run doctor again; if it stays, report it with this message.")]
    finally:
        opened.close()


def _collect(
    opened: OpenNode, node: SimNode | LocalNode | SshNode, servers: Sequence[ResolvedServer], run: str
) -> Findings:
    pythons = [] if opened.simulated else [server.python for server in servers if not server.command]
    ports = {str(server.port) for server in servers if server.port}
    sent = time.time_ns()
    pinged = time.monotonic_ns()
    opened.client.request("status", timeout=10.0)
    round_trip = (time.monotonic_ns() - pinged) / 1e9
    checkup = opened.client.request(
        "checkup",
        timeout=_CHECKUP_S,
        nvidia_smi=opened.nvidia_smi or ["nvidia-smi"],
        pythons=list(dict.fromkeys(pythons)),
        models=[] if opened.simulated else list(dict.fromkeys(server.model for server in servers)),
        ports=sorted(ports),
        run=run,
    )
    elapsed = (time.time_ns() - sent) / 1e9
    # The node's stamp was taken somewhere between our question and its answer's arrival, near the end of it.
    skew = (int(checkup["wall_ns"]) - time.time_ns()) / 1e9 + round_trip / 2
    return Findings(
        opened.hello,
        checkup,
        skew_s=skew,
        round_trip_s=min(elapsed, round_trip),
        simulated=opened.simulated,
        servers=servers,
        gpus=node.gpus,
    )


def _not_reached(error: NodeError) -> Check:
    if isinstance(error, HostKeyError):
        fix = "Compare the key with the machine's own, then add it: docs/how-to/connect-over-ssh.md."
        return Check("host key", "bad", str(error), fix)
    if isinstance(error, NodeSetupError):
        return Check("agent", "bad", str(error), "The message says what the node lacks.")
    fix = "Try `ssh` with the same host and user; the suite's node says what is used."
    return Check("way", "bad", str(error), fix if isinstance(error, NodeUnreachable) else "")


def _suite_path(given: str | None) -> Path:
    if given:
        return Path(given)
    return next((Path(name) for name in _SUITES if Path(name).is_file()), Path(_SUITES[0]))


def render(name: str, suite: Suite, checks: Sequence[Check], seconds: float) -> str:
    """The table for a person: a line for each check, and its fix below where there is something to do."""
    width = min(34, max(len(check.what) for check in checks))
    lines = [f"{name} ({suite.path}), {seconds:.1f} s", ""]
    for check in checks:
        reason = textwrap.wrap(check.reason, 110 - width) or [""]
        if len(check.what) > width:  # the path of an interpreter or a model
            lines.append(f"  {_MARKS[check.status]}  {check.what}")
            reason = ["", *reason]
        else:
            lines.append(f"  {_MARKS[check.status]}  {check.what:<{width}}  {reason[0]}")
        lines += [" " * (width + 10) + line for line in reason[1:]]
        if check.fix and check.status in {"bad", "warn"}:
            lines += [" " * (width + 8) + "> " + line for line in textwrap.wrap(check.fix, 106 - width)]
    counts = {status: sum(check.status == status for check in checks) for status in ("bad", "warn")}
    lines += ["", f"{counts['bad']} bad, {counts['warn']} warnings"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
