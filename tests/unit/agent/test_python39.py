"""The agent runs on Python 3.9 with nothing but the standard library, and uses nothing of ours outside itself."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import pytest_sglang_perf.agent

ROOT = Path(pytest_sglang_perf.agent.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
OPTIONAL = {"uvloop"}  # used where the node's Python has it


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            depth = len(path.relative_to(ROOT).parts)
            assert node.level <= depth, f"{path}:{node.lineno} reaches outside of the agent"
            names = [] if node.level else [node.module or ""]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in OPTIONAL, f"{path}:{node.lineno} imports {name}"
        if not isinstance(node, ast.Import) and "annotations" in [alias.name for alias in node.names]:
            assert node.module == "__future__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_annotations_are_never_evaluated(path):
    source = path.read_text(encoding="utf-8")
    if "->" in source:
        assert "from __future__ import annotations" in source
