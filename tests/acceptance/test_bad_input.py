"""One clear error each, no traceback, nothing run, nothing left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Project

TEST = """
    @pytest.mark.sglang(server="base", concurrency=1)
    def test_it(sglang_perf):
        sglang_perf.measure()
"""


def refused(project: Project, *expected: str, args: tuple[str, ...] = ()) -> None:
    result = project.run(*args)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  base: {modle: tiny/model}", "did you mean 'model'"),
        ("  base: {model: tiny/model}\n  base: {model: other}", "base"),
        ("  base: {model: tiny/model, args: {disable-radix-cache: on}}", "true"),
        ("  base: {extends: nobody}", "nobody"),
    ],
)
def test_suite_file(project: Project, line: str, expected: str) -> None:
    project.suite(
        "default_node: sim\nnodes:\n  sim: {kind: sim, profile: tiny}\nservers:\n" + line + "\n"
        "workloads:\n  short: {input_len: 8, output_len: 8, concurrency: 1}\n"
    )
    project.tests(TEST)
    refused(project, "sglang-perf.yaml:", expected)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ('server="bsae"', "Did you mean 'base'?"),
        ('server="base", concurrency=7', "declares 1, 8, 32"),
        ('server="base", concurency=8', "Did you mean 'concurrency'?"),
        ('server="base", expect="refused", reason="x"', "expected 'refuted' or 'blocked'"),
        ('server="base", expect="refuted"', 'needs reason="..."'),
        ('server="base", crash="cuda-oom"', 'only makes sense with expect="blocked"'),
        ('server="base", workload="long"', "no such workload"),
        ('server="base", control="none"', "no such server config"),
        ('server="base", boots=0', "expected a number, or (first, most)"),
        ("concurrency=1", 'server="..."'),
    ],
)
def test_mark(project: Project, mark: str, expected: str) -> None:
    project.tests(f"@pytest.mark.sglang({mark})\ndef test_it(sglang_perf): ...\n")
    refused(project, "test_perf.py::test_it", expected)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--sglang-node", "smi"), "smi"),
        (("--sglang-boots", "3-1"), "a range such as 1-3"),
        (("--sglang-trials", "0"), "a number from 1 to 1000"),
        (("--sglang-lease-wait", "soon"), "seconds"),
        (("--sglang-suite", "nowhere.yaml"), "nowhere.yaml"),
        (("--sglang-changed-since", "no-such-ref"), "in a git repository, but it is in none"),
    ],
)
def test_option(project: Project, args: tuple[str, ...], expected: str) -> None:
    project.tests(TEST)
    refused(project, expected, args=args)


def test_no_suite_at_all(project: Project) -> None:
    (project.path / "sglang-perf.yaml").unlink()
    project.tests(TEST)
    refused(project, "no sglang-perf.yaml beside", "--sglang-suite FILE")


def test_ci_never_runs_on_a_simulation_by_default(project: Project) -> None:
    project.env.setenv("CI", "true")
    project.tests(TEST)
    refused(project, "a gate must not turn green for want of a GPU", "--sglang-node sim")
    assert project.run("--sglang-node", "sim").ret == 0


def test_an_unwritable_baselines_folder_is_told_before_anything_runs(project: Project) -> None:
    (project.path / "baselines").write_text("a file where a folder should be")
    project.tests(TEST)
    refused(project, "nothing could be stored", args=("--update-baselines",))


def test_an_unreachable_host(project: Project) -> None:
    project.suite(
        "default_node: away\nnodes:\n  away: {kind: ssh, host: 127.0.0.1, port: 9, connect_timeout_s: 5}\n"
        "servers:\n  base: {model: m}\nworkloads:\n  short: {input_len: 8, output_len: 8, concurrency: 1}\n"
    )
    project.tests(TEST)
    result = project.run()
    assert result.ret == 1
    text = result.stdout.str()
    assert "127.0.0.1" in text
    assert "Traceback" not in text


def test_an_agent_python_that_is_not_there(project: Project) -> None:
    project.suite(
        "default_node: here\nnodes:\n  here: {kind: local, agent_python: /no/such/python3}\n"
        "servers:\n  base: {model: m}\nworkloads:\n  short: {input_len: 8, output_len: 8, concurrency: 1}\n"
    )
    project.tests(TEST)
    result = project.run()
    assert result.ret == 1
    text = result.stdout.str()
    assert "/no/such/python3" in text
    assert "Traceback" not in text
