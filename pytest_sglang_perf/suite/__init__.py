"""What to run: the suite file's nodes, server configs and workloads, read strictly and fully resolved.

``load_suite`` is the way in. Nothing here connects, launches or measures.
"""

from __future__ import annotations

from pytest_sglang_perf.suite.loader import Suite, load_suite, parse_suite
from pytest_sglang_perf.suite.nodes import LocalNode, SimNode, SshNode, UrlNode
from pytest_sglang_perf.suite.server import SECRET_FILE, ResolvedServer
from pytest_sglang_perf.suite.workload import Level, ResolvedWorkload

__all__ = [
    "SECRET_FILE",
    "Level",
    "LocalNode",
    "ResolvedServer",
    "ResolvedWorkload",
    "SimNode",
    "SshNode",
    "Suite",
    "UrlNode",
    "load_suite",
    "parse_suite",
]
