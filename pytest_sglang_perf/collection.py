"""After pytest's collection: find the suite, read what each test declares, select by change, order for few boots."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import options as _options
from pytest_sglang_perf.declaration import Declaration, declare
from pytest_sglang_perf.errors import BaselineUnwritable, SuiteError
from pytest_sglang_perf.report.live import QuietLive, TerminalLive
from pytest_sglang_perf.session import PerfSession
from pytest_sglang_perf.suite import SimNode, load_suite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_sglang_perf.suite import Suite

__all__ = ["Prepared", "prepare"]

SUITE_NAME = "sglang-perf.yaml"


@dataclass
class Prepared:
    """What collection found out.

    ``order`` holds all items to run, perf tests grouped by server config; ``reasons`` says why each was selected
    by change (empty without that option).
    """

    order: list[pytest.Item]
    declarations: dict[pytest.Item, Declaration]
    session: PerfSession | None
    deselected: list[pytest.Item] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)


def prepare(config: pytest.Config, items: list[pytest.Item], perf: Sequence[pytest.Item]) -> Prepared:
    """Read the suite and every declaration, and decide what runs in which order.

    Raises:
        SuiteError: anything that would make the run meaningless, before a single boot.
    """
    options = _options.resolve(config)
    path = options.suite or find_suite([item.path for item in perf], config.rootpath)
    suite = load_suite(path)
    declarations = {item: declare(item, suite) for item in perf}
    reasons: dict[str, list[str]] = {}
    deselected: list[pytest.Item] = []
    if options.changed_since is not None:
        reasons, deselected = _select(options, suite, path, declarations)
        for item in deselected:
            del declarations[item]
    dropped = set(deselected)
    order = arrange([item for item in items if item not in dropped], declarations)
    session = None
    if declarations and not config.option.collectonly:
        worker = hasattr(config, "workerinput")
        baselines = config.rootpath / "baselines"
        if options.update_baselines and not worker:
            _check_writable(baselines)
        simulated = isinstance(suite.node(options.node or suite.default_node or ""), SimNode)
        quiet = worker or config.option.verbose < 0
        session = PerfSession(
            suite,
            options,
            [declarations[item] for item in order if item in declarations],
            live=QuietLive() if quiet else TerminalLive(config, simulated=simulated),
            baselines=baselines,
        )
        session.check_node()
    if hasattr(config, "workerinput"):
        _tell_scheduler(config, declarations, options.node or suite.default_node or "")
    return Prepared(order, declarations, session, deselected, reasons)


def find_suite(tests: Sequence[Path], root: Path) -> Path:
    """The suite file beside the tests, or in a folder above them up to pytest's root folder.

    Raises:
        SuiteError: none is found, or the tests belong to different ones.
    """
    found: dict[Path, Path] = {}
    for test in tests:
        folder = test.parent
        while True:
            candidate = folder / SUITE_NAME
            if candidate.is_file():
                found[candidate] = test
                break
            if folder in {root, folder.parent}:
                raise SuiteError(
                    f"no {SUITE_NAME} beside {test} or in a folder above it up to {root}. "
                    f"Write one (docs/tutorial), or name it: --sglang-suite FILE"
                )
            folder = folder.parent
    if len(found) > 1:
        raise SuiteError(
            "the selected tests belong to different suites, and one session runs one suite:\n"
            + "\n".join(f"  {suite} (of {test.name})" for suite, test in found.items())
            + "\nSelect the tests of one of them, or name the suite: --sglang-suite FILE"
        )
    return next(iter(found))


def arrange(items: list[pytest.Item], declarations: dict[pytest.Item, Declaration]) -> list[pytest.Item]:
    """Put perf tests of one server config together, those that need a control last; leave all others in place.

    Groups keep the order in which they first appear, so the order is the same in every xdist worker.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item in declarations:
            groups.setdefault(declarations[item].server, []).append(item)
    for group in groups.values():
        group.sort(key=lambda item: declarations[item].control is not None)
    arranged = iter([item for group in groups.values() for item in group])
    return [next(arranged) if item in declarations else item for item in items]


def _select(
    options: _options.Options, suite: Suite, path: Path, declarations: dict[pytest.Item, Declaration]
) -> tuple[dict[str, list[str]], list[pytest.Item]]:
    from pytest_sglang_perf.suite.changed import changed_since

    assert options.changed_since is not None
    changes = changed_since(options.changed_since, suite, path)
    node = options.node or suite.default_node
    reasons: dict[str, list[str]] = {}
    deselected: list[pytest.Item] = []
    for item, declaration in declarations.items():
        why = changes.reasons(
            server=declaration.server,
            control=declaration.control,
            workload=declaration.workload,
            node=node,
            path=declaration.path,
        )
        if why:
            reasons[declaration.nodeid] = why
        else:
            deselected.append(item)
    return reasons, deselected


def _check_writable(folder: Path) -> None:
    """Find out before hours of measuring, not after."""
    probe = folder
    while not probe.exists():
        probe = probe.parent
    if not probe.is_dir() or not os.access(probe, os.W_OK | os.X_OK):
        raise BaselineUnwritable(
            f"--update-baselines: {probe} is not a writable folder, so nothing could be stored in {folder}. "
            "Nothing was run. Mend its permissions or run as a user who may write there"
        )


def _tell_scheduler(config: Any, declarations: dict[pytest.Item, Declaration], node: str) -> None:
    """Leave the node of each perf test where the controller's scheduler finds it (see ``_xdist``)."""
    folder = config.workerinput.get("sglang_perf_scopes")
    if folder is None:
        return
    scopes = {declaration.nodeid: node for declaration in declarations.values()}
    target = Path(folder) / f"{config.workerinput['workerid']}.json"
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(scopes), encoding="utf-8")
    partial.replace(target)
