"""A real sglang that loses or is denied one of its processes under load: told in time, by name, and booted afresh."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .test_local_node import nothing_is_left

if TYPE_CHECKING:
    from .conftest import Project

#: Prints how long it took from the signal to the error that a test sees.
TEST = """
    import os, signal, threading, time
    from pytest_sglang_perf.errors import CrashedUnderLoad

    def strike(title, number, struck):
        time.sleep(3.0)
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{{entry}}/cmdline", "rb") as file:
                    named = file.read().startswith(title)
                with open(f"/proc/{{entry}}/environ", "rb") as file:
                    ours = b"SGLANG_PERF_RUN=" in file.read()
            except OSError:
                continue
            if named and ours:
                struck.append(time.monotonic())
                os.kill(int(entry), number)
                return

    @pytest.mark.sglang(server="{server}", concurrency=8)
    def test_1_struck(sglang_server, sglang_perf):
        struck = []
        threading.Thread(target=strike, args=({title!r}, {number}, struck), daemon=True).start()
        try:
            sglang_perf.measure()
        except CrashedUnderLoad as error:
            print(f"TOLD AFTER {{time.monotonic() - struck[0]:.2f}} s")
            raise

    @pytest.mark.sglang(server="{server}", concurrency=1)
    def test_2_afresh(sglang_server):
        assert sglang_server.server_info()["model_path"].endswith("tiny")
"""


@pytest.mark.parametrize(
    ("server", "title", "number", "limit_s", "told"),
    [
        ("base", b"sglang::detokenizer", 9, 5.0, "*sglang::detokenizer*died*"),
        ("two-ranks", b"sglang::scheduler_DP1", 9, 10.0, "*sglang::scheduler_DP1*died*"),
        ("base", b"sglang::scheduler", 19, 30.0, "*sglang::scheduler*stopped*"),
    ],
    ids=["dead-detokenizer", "dead-dp-rank", "stopped-scheduler"],
)
def test_it_is_told_in_time_and_booted_afresh(
    project: Project, server: str, title: bytes, number: int, limit_s: float, told: str
) -> None:
    suite = project.pytester.path / "sglang-perf.yaml"
    text = suite.read_text().replace("8: 48", "8: 2000").replace("trials: 2", "trials: 1")
    suite.write_text(
        text.replace(
            "  one-at-a-time:",
            "  two-ranks: {extends: base, args: {dp: 2}, env: {SGLANG_CPU_OMP_THREADS_BIND: 0|1}}\n  one-at-a-time:",
        )
    )
    project.write_tests(TEST.format(server=server, title=title, number=number))
    result = project.run("-rA", "--sglang-report", "out")
    output = result.stdout.str()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f'*"{server}" crashed under load at concurrency 8, after [1-9]* finished requests*'])
    result.stdout.fnmatch_lines([told])
    result.stdout.re_match_lines([r" +\d+ \| \[20.*"])  # with what in the log
    result.stdout.fnmatch_lines(["*spent 2 boots*"])
    found = re.search(r"TOLD AFTER ([0-9.]+) s", output)
    assert found is not None, output
    print(found[0])
    assert float(found[1]) < limit_s
    nothing_is_left(project)
