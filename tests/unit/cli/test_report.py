from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_sglang_perf.cli import main

from . import building

if TYPE_CHECKING:
    from pathlib import Path


def test_markdown_goes_to_standard_output_or_a_file(capsys, tmp_path: Path) -> None:
    test = building.one_test("test_sbo.py::test_it")
    run = building.write_run(tmp_path / "out", building.run("r1", {"sbo": 1.0}, tests=(test,)))
    assert main(["report", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("## sglang-perf")
    assert main(["report", str(run.parent), "--markdown", str(tmp_path / "new" / "r.md"), "--json"]) == 0
    assert (tmp_path / "new" / "r.md").read_text(encoding="utf-8") == shown
    document = json.loads(capsys.readouterr().out)
    assert document["outcomes"] == {"passed": 1}
    assert document["written"] == [str(tmp_path / "new" / "r.md")]


def test_html_goes_to_a_file(capsys, tmp_path: Path) -> None:
    run = building.write_run(tmp_path / "out", building.run("r1", {"sbo": 1.0}))
    assert main(["report", str(run), "--html", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r.html'}\n"
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_errors_have_no_traceback(capsys, tmp_path: Path) -> None:
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "--sglang-report DIR" in capsys.readouterr().err
    run = building.write_run(tmp_path / "out", building.run("r1", {"sbo": 1.0}))
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert main(["report", str(run), "--html", str(tmp_path / "file" / "r.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
