from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite import Suite, parse_suite

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = """
servers:
  base: {model: m}
workloads:
  short: {input_len: 128, output_len: 128, concurrency: [1, 10, 256, 1024]}
nodes:
  sim: {kind: sim}
"""


class Reader:
    """Reads suites from text, as ``suite.yaml`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str | bytes) -> Suite:
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        return parse_suite(content, self.folder / "suite.yaml", name="suite.yaml")

    def errors(self, text: str | bytes) -> list[str]:
        """The lines of the error that ``text`` causes, without the headline."""
        with pytest.raises(SuiteError) as caught:
            self(text)
        message = str(caught.value)
        for jargon in ("pydantic", "http://errors", "Traceback", "yaml.org,2002:str", "input_value"):
            assert jargon not in message
        lines = message.splitlines()
        if len(lines) > 1:
            assert lines[0] == f"{len(lines) - 1} errors in suite.yaml"
            lines = lines[1:]
        assert all(line.startswith("suite.yaml") for line in lines)
        return lines

    def error(self, text: str | bytes) -> str:
        """The one error that ``text`` causes."""
        (line,) = self.errors(text)
        return line


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)
