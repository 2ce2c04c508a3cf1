"""The stored side of comparisons: raw trials of earlier boots, per node class and server config."""

from __future__ import annotations

from pytest_sglang_perf.baselines.files import write_atomically
from pytest_sglang_perf.baselines.model import BaselineFile, StoredBoot, columns, level_key
from pytest_sglang_perf.baselines.node_class import NodeClass, comparable, node_class, url_class
from pytest_sglang_perf.baselines.store import BaselineStore
from pytest_sglang_perf.baselines.update import FULL, Change, Measured, Update, describe_change, plan_update

__all__ = [
    "FULL",
    "BaselineFile",
    "BaselineStore",
    "Change",
    "Measured",
    "NodeClass",
    "StoredBoot",
    "Update",
    "columns",
    "comparable",
    "describe_change",
    "level_key",
    "node_class",
    "plan_update",
    "url_class",
    "write_atomically",
]
