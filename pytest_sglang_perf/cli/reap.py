"""``sglang-perf reap NODE``: end what killed sessions left on a node, and say what was left alone.

The agent decides what is ours: processes that carry ``SGLANG_PERF_RUN`` in their environment and whose agent is
gone. A process of somebody else is never ended, whatever it holds.
"""

from __future__ import annotations

import argparse
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.cli._console import emit, say, table
from pytest_sglang_perf.errors import AgentError, NodeSetupError, SuiteError
from pytest_sglang_perf.nodes.open import open_node
from pytest_sglang_perf.suite import SimNode, UrlNode, load_suite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_sglang_perf.nodes.open import OpenNode

__all__ = ["main", "reap"]

_REAP_S = 60.0  # the agent gives servers time to end by themselves before it kills them
_FACTS_S = 60.0  # the first nvidia-smi on a node takes seconds
_SUITE = "sglang-perf.yaml"


def main(argv: Sequence[str]) -> int:
    """Returns 0: nothing of ours is left; 2: the node could not be reached or has no such agent."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf reap",
        description="End servers and load processes that killed sessions left on a node, and list what is on the "
        "GPUs otherwise. That is left alone, and so are sessions that still run. Exit status: 0 done, 2 the node "
        "cannot be reached.",
    )
    parser.add_argument("node", metavar="NODE", help="name of a node of the suite")
    parser.add_argument(
        "--suite",
        type=Path,
        metavar="FILE",
        help=f"the suite file (default: $SGLANG_PERF_SUITE, or {_SUITE} here, in perf_tests/ or in a folder above)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    options = parser.parse_args(argv)
    suite = load_suite(options.suite or find_suite(Path.cwd(), os.environ))
    config = suite.node(options.node)
    if isinstance(config, UrlNode):
        raise SuiteError(f'node "{options.node}" is a url: we start nothing there, so there is nothing to end')
    node = open_node(options.node, config, run=uuid.uuid4().hex, environ=os.environ)
    try:
        document = {
            "node": options.node,
            "host": node.hello.get("host"),
            "simulated": isinstance(config, SimNode),
            **reap(node),
        }
    finally:
        node.close()
    if options.json:
        emit(document)
    else:
        _print(document)
    return 0


def find_suite(folder: Path, environ: Mapping[str, str]) -> Path:
    """The suite file that pytest would take here.

    Raises:
        SuiteError: there is none.
    """
    if environ.get("SGLANG_PERF_SUITE"):
        return Path(environ["SGLANG_PERF_SUITE"])
    for place in (folder, folder / "perf_tests", *folder.parents):
        if (place / _SUITE).is_file():
            return place / _SUITE
    raise SuiteError(f"no {_SUITE} is here, in perf_tests/ or in a folder above {folder}. Name it with --suite FILE")


def reap(node: OpenNode) -> dict[str, Any]:
    """Have the agent end what is ours, then ask who else is on the GPUs.

    Returns:
        ``killed`` and ``left_alone`` (what is on a GPU now and not of ours): processes, each with ``pid`` and what is
        known of it; ``sessions``: those that run, each with its owner and ``processes`` on GPUs; ``gpu_error`` where
        the GPUs could not be asked.

    Raises:
        NodeError: the agent cannot do it, or is gone.
    """
    try:
        answer = node.client.request("reap", timeout=_REAP_S)
    except AgentError as error:
        if error.kind == "unknown_op":
            raise NodeSetupError(
                f"{node.client.describe()}: the agent there does not know how to reap, so nothing was ended. "
                "Upgrade pytest-sglang-perf here: the agent is sent from this installation"
            ) from None
        raise
    killed = [dict(one) for one in answer["killed"]]
    others = [dict(one) for one in answer["foreign"]]
    sessions = [dict(one) for one in answer.get("sessions", ())]
    gpu_error = None
    if not others and not any(one["processes"] for one in sessions):  # nobody is there, or nobody can be seen
        gpu_error = node.client.request("facts", timeout=_FACTS_S, pythons=[]).get("gpu_error")
    return {"killed": killed, "sessions": sessions, "left_alone": others, "gpu_error": gpu_error}


def _print(document: dict[str, Any]) -> None:
    tag = " (simulated)" if document["simulated"] else ""
    say(f"node {document['node']} ({document['host']}){tag}", "bold")
    if document["sessions"]:
        say("live sessions, left alone")
        table(
            ("run", "owner", "gpus", "since", "purpose", "processes"), [_session(one) for one in document["sessions"]]
        )
    for words, none, processes in (
        ("ended", "nothing of ours was left", document["killed"]),
        ("left alone: on the GPUs, and not ours", "no other process is on a GPU", document["left_alone"]),
    ):
        if not processes:
            say(none if words == "ended" or not document["gpu_error"] else f"GPUs: {document['gpu_error']}")
            continue
        say(words)
        names = [name for name in ("pid", "gpu", "user", "run", "command") if any(name in one for one in processes)]
        table(names, [[_word(one.get(name)) for name in names] for one in processes], right={"pid", "gpu"})


def _session(one: dict[str, Any]) -> list[str]:
    owner = f"{one['user']}@{one['host']} (pid {one['pid']})" if one.get("user") else "holds no lease here"
    gpus = one.get("gpus")
    return [
        str(one["run"])[:12],
        owner,
        "all" if gpus is None and one.get("user") else _word(gpus),
        _word(one.get("since")),
        _word(one.get("purpose")),
        " ".join(str(process["pid"]) for process in one["processes"]),
    ]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
