"""Nothing that comes over a wire or out of a file is ever unpickled: unpickling runs what it reads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest_sglang_perf

PACKAGE = Path(pytest_sglang_perf.__file__).parent
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
#: The workers of one load process talk through a pipe that they inherit and that has no name to open it by.
INHERITED_PIPES = {"agent/load/_crew.py"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def test_no_module_unpickles_what_others_wrote() -> None:
    found = {str(path.relative_to(PACKAGE)): imported(path) for path in PACKAGE.rglob("*.py")}
    assert len(found) > 100
    assert {name for name, modules in found.items() if {m.split(".")[0] for m in modules} & FORBIDDEN} == set()
    pipes = {name for name, modules in found.items() if any(m.startswith("multiprocessing") for m in modules)}
    assert pipes == INHERITED_PIPES
