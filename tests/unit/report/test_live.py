"""Progress lines beside pytest's own dots."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from pytest_sglang_perf.report.live import TerminalLive


def test_where_lines_cannot_be_rewritten_each_test_begins_on_a_line_of_its_own() -> None:
    stream = io.StringIO()
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None))
    live = TerminalLive(config, stream)
    stream.write("test_it.py ")
    live.start_test()
    live.note("base: boot 1 ready")
    live.note("base at 8: trial 1")
    stream.write(".")
    live.start_test()
    live.note("base at 32: trial 1")
    assert stream.getvalue() == "test_it.py \n  base: boot 1 ready\n  base at 8: trial 1\n.\n  base at 32: trial 1\n"
