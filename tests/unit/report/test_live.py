"""Progress lines beside pytest's own dots."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from pytest_sglang_perf.report.live import TerminalLive


def live_on(stream: io.StringIO) -> TerminalLive:
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _name: None))
    return TerminalLive(config, stream)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_phase_has_a_line_of_its_own_only_where_lines_cannot_be_rewritten() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        live = live_on(stream)
        live.phase("base", 1, "weights", 13.2)
        live.boot("base", 1, "weights 3/8 shards", 15.0)
    assert plain.getvalue() == "\n  base: boot 1: weights (13 s)\n"
    assert terminal.getvalue() == "\r\x1b[2K  base: boot 1: weights 3/8 shards (15 s)"


def test_where_lines_cannot_be_rewritten_each_test_begins_on_a_line_of_its_own() -> None:
    stream = io.StringIO()
    live = live_on(stream)
    stream.write("test_it.py ")
    live.start_test()
    live.note("base: boot 1 ready")
    live.note("base at 8: trial 1")
    stream.write(".")
    live.start_test()
    live.note("base at 32: trial 1")
    assert stream.getvalue() == "test_it.py \n  base: boot 1 ready\n  base at 8: trial 1\n.\n  base at 32: trial 1\n"
