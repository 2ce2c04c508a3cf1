"""A crash shows what the node told of it, and keeps all of it beside the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

SUITE = """
nodes:
  sim: {kind: sim, profile: tiny}
servers:
  base: {model: tiny/model}
  broken: {extends: base, args: {enforce-piecewise-cuda-graph: true}}
workloads:
  short: {input_len: 8, output_len: 8, concurrency: 1}
"""


def test_the_gpus_at_its_death_and_the_files(project: Project) -> None:
    project.suite(SUITE)
    project.tests(
        """
        @pytest.mark.sglang(server="broken")
        def test_it(sglang_server): ...
        """
    )
    result = project.run("--sglang-report", "out")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*  ended   *exit status -9, SIGKILL:*", "*  gpus    * GPU*: memory used *MiB*W*MHz*"])
    folder = project.path / "out" / "logs"
    (evidence,) = folder.glob("*.evidence.txt")
    assert evidence.name.replace(".evidence.txt", ".log") in {path.name for path in folder.iterdir()}
    text = evidence.read_text()
    assert "memory.used=" in text
    assert "kernel log since the launch" in text
