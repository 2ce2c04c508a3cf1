"""``sglang-perf schema``: the JSON Schema of suite files, for editors."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_sglang_perf.suite.schema import json_schema_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the schema of this version."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf schema",
        description="Print the JSON Schema of suite files. Save it, and name it in the first line of a suite: "
        "# yaml-language-server: $schema=FILE",
    )
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is JSON anyway")
    parser.parse_args(argv)
    print(json_schema_text(), end="")
    return 0
