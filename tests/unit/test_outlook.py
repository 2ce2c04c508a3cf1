"""What a session expects to boot before it has booted anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_sglang_perf import outlook
from pytest_sglang_perf.measurement import Budget


@pytest.mark.parametrize(
    ("declared", "boots"),
    [
        ([("a", None, False)], (2, 3)),
        ([("a", None, False), ("a", "b", False), ("c", "a", False)], (2, 3)),
        ([("a", "b", True)], (2, 3)),
        ([("a", "b", True), ("a", "b", True), ("a", None, False)], (2, 3)),
        ([("a", "b", True), ("a", "c", True)], (4, 6)),
        ([("a", "b", True), ("b", "a", True)], (4, 6)),
        ([("a", "a", True)], (4, 6)),
        ([("b", "c", True)], (0, 0)),
    ],
)
def test_boots_of_a_config_are_shared_but_pairs_are_not(
    declared: list[tuple[str, str | None, bool]], boots: tuple[int, int]
) -> None:
    declarations = [SimpleNamespace(server=a, control=b, in_pairs=pairs) for a, b, pairs in declared]
    session: Any = SimpleNamespace(declarations=declarations, budget=lambda _declaration: Budget(2, 3))
    assert outlook.boots_of(session, "a") == boots
