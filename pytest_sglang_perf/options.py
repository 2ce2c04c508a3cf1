"""Command line options, ini keys and environment variables, resolved once into one frozen object.

Light: every pytest run of every user imports this module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["Options", "add_options", "resolve"]

_ENVIRONMENT = """\
environment: SGLANG_PERF_NODE, SGLANG_PERF_SUITE, SGLANG_PERF_BOOTS, SGLANG_PERF_TRIALS, SGLANG_PERF_INCONCLUSIVE,
SGLANG_PERF_CORRECTION, SGLANG_PERF_REPORT, SGLANG_PERF_LEASE_WAIT and SGLANG_PERF_CHANGED_SINCE stand in for the
options of the same name (command line, then environment, then ini file). With CI set, a simulated node must be
named on the command line or in the environment."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option once, each with its ini twin."""
    group = parser.getgroup("sglang-perf", "SGLang performance hypotheses")
    addoption = group.addoption

    def both(name: str, *, metavar: str, help: str, choices: list[str] | None = None) -> None:  # noqa: A002
        dest = "sglang_" + name.replace("-", "_")
        addoption(f"--sglang-{name}", dest=dest, metavar=metavar, default=None, choices=choices, help=help)
        parser.addini(dest, f"default of --sglang-{name}", type="string", default="")

    both("node", metavar="NAME", help="the node of the suite file to run on (default: its default_node)")
    both(
        "suite",
        metavar="FILE",
        help="the suite file (default: sglang-perf.yaml beside the tests or in a folder above them)",
    )
    both(
        "boots",
        metavar="N[-M]",
        help="boots per server config: N at first, up to M while a claim is inconclusive "
        "(default: what the suite says)",
    )
    both("trials", metavar="N", help="trials per level and boot (default: what the suite says)")
    both(
        "inconclusive",
        metavar="{fail,warn}",
        choices=["fail", "warn"],
        help="what an inconclusive test does to the exit status: fail (default: a gate that cannot tell says so) "
        "or warn (report it and exit 0)",
    )
    both(
        "correction",
        metavar="{holm,bh,none}",
        choices=["holm", "bh", "none"],
        help="correction of the session's regressions for their number: holm (default: the chance of any false alarm), "
        "bh (Benjamini-Hochberg: the share of false alarms) or none",
    )
    both("report", metavar="DIR", help="write the run file, Markdown and JSON reports, and logs into DIR")
    both(
        "changed-since",
        metavar="REF",
        help="run only tests whose server config, workload, node or source changed since this git ref, "
        "and say why each was selected",
    )
    both(
        "lease-wait",
        metavar="SECONDS",
        help="how long to wait for a node that another session holds (default: what the suite says)",
    )
    addoption(
        "--sglang-bisect",
        dest="sglang_bisect",
        action="store_true",
        default=False,
        help="when a server config crashes, or violates a claim against its control or baseline, find the smallest "
        "set of its changes that does so, by at most 8 further boots",
    )
    addoption(
        "--update-baselines",
        dest="update_baselines",
        action="store_true",
        default=False,
        help="store what this run measures as the baselines of the selected tests' server configs; "
        "where none exist yet nothing is judged",
    )
    group.addoption(
        "--sglang-environment-help",
        action="version",
        version=_ENVIRONMENT,
        help="show the environment variables that stand in for these options",
    )


@dataclass(frozen=True)
class Options:
    """What was asked for; None where the suite decides."""

    node: str | None
    node_is_explicit: bool
    suite: Path | None
    boots: tuple[int, int] | None
    trials: int | None
    inconclusive: str
    correction: str | None
    report: Path | None
    changed_since: str | None
    lease_wait_s: float | None
    bisect: bool
    update_baselines: bool


def resolve(config: pytest.Config) -> Options:
    """Read the options of one pytest run.

    Raises:
        pytest.UsageError: with the option, the value found and what was expected.
    """

    def text(name: str) -> tuple[str | None, bool]:
        given = config.getoption(f"sglang_{name}")
        if given is not None:
            return str(given), True
        from_environment = os.environ.get(f"SGLANG_PERF_{name.upper()}")
        if from_environment:
            return from_environment, True
        from_ini = str(config.getini(f"sglang_{name}"))
        return (from_ini or None), False

    node, explicit = text("node")
    suite = text("suite")[0]
    report = text("report")[0]
    inconclusive = text("inconclusive")[0] or "fail"
    if inconclusive not in {"fail", "warn"}:
        raise _usage("inconclusive", inconclusive, "fail or warn")
    correction = text("correction")[0]
    if correction not in {None, "holm", "bh", "none"}:
        raise _usage("correction", str(correction), "holm, bh or none")
    start = config.invocation_params.dir
    return Options(
        node=node,
        node_is_explicit=explicit,
        suite=(start / suite) if suite else None,
        boots=_boots(text("boots")[0]),
        trials=_trials(text("trials")[0]),
        inconclusive=inconclusive,
        correction=correction,
        report=(start / report) if report else None,
        changed_since=text("changed_since")[0],
        lease_wait_s=_seconds(text("lease_wait")[0]),
        bisect=bool(config.getoption("sglang_bisect")),
        update_baselines=bool(config.getoption("update_baselines")),
    )


def _usage(name: str, found: str, expected: str) -> Exception:
    import pytest

    option = name.replace("_", "-")
    return pytest.UsageError(
        f"--sglang-{option} (or SGLANG_PERF_{name.upper()}, or ini key sglang_{name}): "
        f"found {found!r}, expected {expected}"
    )


def _boots(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, most = text.partition("-")
    try:
        pair = int(first), int(most or first)
    except ValueError:
        pair = 0, 0
    if not 1 <= pair[0] <= pair[1] <= 100:
        raise _usage("boots", text, "a number such as 1, or a range such as 1-3")
    return pair


def _trials(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise _usage("trials", text, "a number from 1 to 1000")
    return int(text)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise _usage("lease_wait", text, "seconds, 0 or more")
    return seconds
