"""Under pytest-xdist: all tests of one node go to one worker.

Grouping by mark is silently ignored by pytest 9.2 with xdist 3.8, and the controller collects nothing, so it
cannot know which tests belong to a node. Each worker therefore leaves a small file with the node of each perf
test before it reports its collection; the scheduler reads it when all collections are in. The lease on the node
is what keeps two sessions apart; this only avoids that a worker waits for its neighbour.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist import scheduler as schedulers

from pytest_sglang_perf import _signals

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ByNode", "NodeScheduler", "Scheduling"]

_OWN = {
    "load": schedulers.LoadScheduling,
    "loadscope": schedulers.LoadScopeScheduling,
    "loadfile": schedulers.LoadFileScheduling,
    "loadgroup": schedulers.LoadGroupScheduling,
    "worksteal": schedulers.WorkStealingScheduling,
}


class Scheduling:
    """The controller's side, registered only when xdist is there."""

    def __init__(self) -> None:
        self._folder: str | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="sglang-perf-scopes-")
        node.workerinput["sglang_perf_scopes"] = self._folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        mode = config.getoption("dist", "no")
        if mode not in _OWN:
            return None  # "each" runs everything everywhere on purpose: the lease makes workers take turns
        return NodeScheduler(config, log, mode, self.scopes)

    def scopes(self) -> dict[str, str]:
        """Nodeid -> node of every perf test that the workers collected."""
        found: dict[str, str] = {}
        if self._folder is not None:
            for path in sorted(Path(self._folder).glob("*.json")):
                found.update(json.loads(path.read_text(encoding="utf-8")))
        return found

    def pytest_unconfigure(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class ByNode(schedulers.LoadScopeScheduling):  # type: ignore[misc]
    """All perf tests of a node are one unit of work; other tests are split as the user's ``--dist`` says."""

    def __init__(self, config: pytest.Config, log: Any, mode: str, known: dict[str, str]) -> None:
        super().__init__(config, log)
        self._mode = mode
        self._known = known

    def _split_scope(self, nodeid: str) -> str:
        if nodeid in self._known:
            return f"sglang node {self._known[nodeid]}"
        if self._mode == "loadscope":
            return nodeid.rsplit("::", 1)[0]
        if self._mode == "loadfile":
            return nodeid.split("::", 1)[0]
        return nodeid


class NodeScheduler:
    """xdist's own scheduler for this ``--dist``, until perf tests show up in the collection; then :class:`ByNode`.

    The choice can only be made in ``schedule``, when the collections of all workers are in.
    """

    def __init__(self, config: pytest.Config, log: Any, mode: str, scopes: Callable[[], dict[str, str]]) -> None:
        self._config = config
        self._log = log
        self._mode = mode
        self._scopes = scopes
        self._chosen: Any = _OWN[mode](config, log)
        self._decided = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)

    def schedule(self) -> None:
        if not self._decided:
            self._decided = True
            if known := self._scopes():
                # Nothing is collected here, so only now it is known that there are servers to stop.
                _signals.stop_in_order()
                self._choose(ByNode(self._config, self._log, self._mode, known))
        self._chosen.schedule()

    def _choose(self, scheduler: Any) -> None:
        """Hand over what has been registered so far."""
        old = self._chosen
        collections = getattr(old, "registered_collections", None) or old.node2collection
        for node in old.nodes:
            scheduler.add_node(node)
        for node, collection in dict(collections).items():
            scheduler.add_node_collection(node, collection)
        self._chosen = scheduler
