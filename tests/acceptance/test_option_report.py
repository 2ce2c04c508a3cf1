"""``--sglang-report DIR``, and the commands that read what it and ``--update-baselines`` leave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Project

TESTS = """
    @pytest.mark.sglang(server="base", control="mscclpp", concurrency=[8, 32])
    @pytest.mark.parametrize("concurrency", [8, 32])
    def test_base_is_no_disaster(sglang_perf, concurrency):
        now = sglang_perf.measure()
        assert now.output_throughput >= 0.1 * now.control.output_throughput

    @pytest.mark.sglang(server="unknown-flag")
    def test_it_boots(sglang_server): ...
"""


def command(project: Project, *argv: str, status: tuple[int, ...] = (0,)) -> str:
    """What ``sglang-perf`` prints in the user's project."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_sglang_perf.cli", *argv],
        cwd=project.path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_real_run_in_every_form(project: Project) -> None:
    project.tests(TESTS)
    result = project.run("--sglang-report", "out", "--update-baselines")
    assert result.ret == 1  # the crash
    folder = project.path / "out"
    assert {path.name for path in folder.iterdir()} >= {"run.json", "report.md", "report.html", "logs", "trials"}
    result.stdout.fnmatch_lines(["*reports: *run.json, *report.md, *report.html*"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    claims = re.findall(r"<tr>.*?</tr>", page.split("<h2>Measured")[0], re.DOTALL)
    claims = [row for row in claims if "at concurrency" in row]
    assert len(claims) == 2
    assert all("simulated" in row and "mscclpp (control)" in row for row in claims)
    assert page.count("<svg viewBox") >= 8  # of two server configs
    assert "no-such-flag-at-all" in page  # the crash, with its text
    assert not re.findall(r"<script|https?://|src=|href=", page.split("</head>")[1].split("<pre>")[0])
    # The same again from the run file alone.
    assert command(project, "report", "out") == (folder / "report.md").read_text(encoding="utf-8")
    command(project, "report", "out", "--html", "again.html")
    assert (project.path / "again.html").read_text(encoding="utf-8") == page

    both: dict[str, Any] = json.loads(command(project, "compare", "out:mscclpp", "out:base", "--json", status=(0, 1)))
    (pair,) = both["pairs"]
    assert {c["level"] for c in pair["changes"] if c["metric"] == "output_throughput"} == {8, 32}
    assert both["simulated"] is True
    listed = command(project, "baseline", "list").splitlines()
    assert all(line.rstrip().endswith("simulated") for line in listed[1:])
    assert [line.split()[1] for line in listed[1:]] == ["base"]  # a control alone is not stored
    history = json.loads(command(project, "baseline", "history", "output_throughput", "--level", "8", "--json"))
    (series,) = history["series"]
    assert len(series["boots"]) == 1  # stored and in the history: one boot, told once
    assert series["boots"][0]["in_baseline"] is True


def test_what_an_interrupted_test_had_measured_is_in_the_report(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.sglang(server="base")
        def test_it(sglang_perf):
            sglang_perf.measure(1)
            raise KeyboardInterrupt
        """
    )
    result = project.run("--sglang-report", "out")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [(one["server"], one["level"]) for one in project.report()["measured"]] == [("base", 1)]
