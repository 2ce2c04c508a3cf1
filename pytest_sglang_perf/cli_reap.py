"""``sglang-perf reap NODE``: end what killed sessions left on a node, and say what was left alone.

The agent decides what is ours: processes that carry ``SGLANG_PERF_RUN`` in their environment and whose session is
gone. A process of somebody else is never ended, whatever it holds.
"""

from __future__ import annotations

import argparse
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf._console import emit, say, table
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
        description="End servers and load processes that killed sessions left on a node, and list the GPU processes "
        "of others, which are left alone. Sessions that still run are not touched. Exit status: 0 done, 2 the node "
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
        ``killed`` and ``foreign``: processes, each with ``pid`` and what is known of it; ``gpu_error`` where the GPUs
        could not be asked.

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
    killed = [_process(one) for one in answer.get("killed") or ()]
    foreign = answer.get("foreign")
    gpu_error = None
    if foreign is None:
        facts = node.client.request("facts", timeout=_FACTS_S, pythons=[])
        ended = {one["pid"] for one in killed}
        foreign = [one for one in facts.get("gpu_processes") or () if one.get("pid") not in ended]
        gpu_error = facts.get("gpu_error")
    return {"killed": killed, "foreign": [_process(one) for one in foreign], "gpu_error": gpu_error}


def _process(one: Any) -> dict[str, Any]:
    return dict(one) if isinstance(one, dict) else {"pid": one}


def _print(document: dict[str, Any]) -> None:
    tag = " (simulated)" if document["simulated"] else ""
    say(f"node {document['node']} ({document['host']}){tag}", "bold")
    for words, none, processes in (
        ("ended", "nothing of ours was left", document["killed"]),
        ("left alone: GPU processes of others", "no other process is on a GPU", document["foreign"]),
    ):
        if not processes:
            say(none if words == "ended" or not document["gpu_error"] else f"GPUs: {document['gpu_error']}")
            continue
        say(words)
        names = [name for name in ("pid", "gpu", "user", "run", "command") if any(name in one for one in processes)]
        table(names, [[_word(one.get(name)) for name in names] for one in processes], right={"pid", "gpu"})


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
