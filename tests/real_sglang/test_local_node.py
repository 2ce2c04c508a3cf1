"""A real sglang on this machine: baselines, a pass, a real regression, and real crashes by name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Project

GATE = """
    @pytest.mark.sglang(server="base")
    @pytest.mark.parametrize("concurrency", [1, 8])
    def test_figures(sglang_perf, concurrency):
        now = sglang_perf.measure()
        assert now.output_throughput >= 0.5 * now.baseline.output_throughput
"""


def left_over(project: Project) -> list[str]:
    """Processes that still carry the run id of one of our sessions."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environ.read_bytes()
            command = environ.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if b"SGLANG_PERF_RUN=" in text and str(project.pytester.path).encode() in text:
            found.append(command)
    return found


def test_baselines_are_recorded_and_met_and_a_real_flag_is_found_to_be_slower(project: Project) -> None:
    project.write_tests(
        GATE
        + """
    @pytest.mark.sglang(server="one-at-a-time", control="base", concurrency=8)
    def test_one_at_a_time_is_enough(sglang_perf):
        now = sglang_perf.measure()
        assert now.output_throughput >= 0.9 * now.control.output_throughput

    @pytest.mark.sglang(server="base", concurrency=1)
    def test_power_is_absent_and_says_why(sglang_perf):
        assert sglang_perf.measure().energy_per_token <= 1
    """
    )
    first = project.run("--update-baselines", "-k", "figures", "--sglang-boots", "2")
    assert first.ret == 0, first.stdout.str()
    first.stdout.fnmatch_lines(["*2 recorded*"])
    (stored,) = (project.pytester.path / "baselines").rglob("*.json")
    levels = json.loads(stored.read_text())["workloads"]["short"]
    assert [len(levels[level]) for level in ("1", "8")] == [2, 2]

    second = project.run("--sglang-report", "out")
    text = second.stdout.str()
    assert "2 passed" in text, text
    second.stdout.fnmatch_lines(["*violated: output_throughput >= 0.9 x control at concurrency 8*"])
    second.stdout.fnmatch_lines(["*energy_per_token is absent*nvidia-smi*"])
    report = json.loads((project.pytester.path / "out" / "run.json").read_text())
    assert report["session"]["simulated"] is False
    assert report["session"]["spent"]["boots"] == 2
    assert {m["version"] for m in report["measured"]} == {"0.5.23"}
    assert "simulated" not in text
    nothing_is_left(project)


def test_a_live_server_can_be_talked_to(project: Project) -> None:
    project.write_tests(
        """
        import requests

        @pytest.mark.sglang(server="base")
        def test_it(sglang_server):
            answer = requests.post(
                f"{sglang_server.url}/generate",
                json={"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}},
                timeout=30,
            ).json()
            assert answer["meta_info"]["completion_tokens"] == 4
            assert sglang_server.facts["max_total_num_tokens"] == 8192
            assert "fired up" in sglang_server.log
            assert sglang_server.server_info()["model_path"].endswith("tiny")
        """
    )
    project.run().assert_outcomes(passed=1)


def test_crashes_at_start_have_their_names(project: Project) -> None:
    project.write_tests(
        """
        @pytest.mark.sglang(expect="blocked", reason="a real failure")
        @pytest.mark.parametrize("server", [
            pytest.param("unknown-flag", marks=pytest.mark.sglang(crash="bad-flag")),
            pytest.param("no-model", marks=pytest.mark.sglang(crash="model-not-found")),
            pytest.param("no-memory", marks=pytest.mark.sglang(crash="kv-budget-too-small")),
        ])
        def test_it(sglang_server, server): ...
        """
    )
    result = project.run()
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["*3 blocked*"])
    nothing_is_left(project)


def test_a_held_port_is_found_before_the_launch(project: Project) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        suite = project.pytester.path / "sglang-perf.yaml"
        suite.write_text(suite.read_text().replace("  base:\n", f"  base:\n    port: {held.getsockname()[1]}\n", 1))
        project.write_tests(
            """
            @pytest.mark.sglang(server="base", expect="blocked", crash="port-in-use", reason="it is taken")
            def test_it(sglang_server): ...
            """
        )
        result = project.run("--sglang-report", "out")
        assert result.ret == 0, result.stdout.str()
        (log,) = (project.pytester.path / "out" / "logs").glob("*.log")
        assert log.read_text().strip() == ""  # no model was loaded for it


def test_a_killed_scheduler_is_a_crash_under_load_with_its_level(project: Project) -> None:
    project.write_tests(
        """
        import os, signal, threading, time

        def kill_scheduler(after_s):
            time.sleep(after_s)
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    try:
                        title = open(f"/proc/{entry}/cmdline", "rb").read()
                        ours = open(f"/proc/{entry}/environ", "rb").read()
                    except OSError:
                        continue
                    if title.startswith(b"sglang::scheduler") and b"SGLANG_PERF_RUN=" in ours:
                        os.kill(int(entry), signal.SIGKILL)

        @pytest.mark.sglang(server="base", concurrency=8)
        def test_it(sglang_server, sglang_perf):
            threading.Thread(target=kill_scheduler, args=(2.0,), daemon=True).start()
            sglang_perf.measure()
        """
    )
    suite = project.pytester.path / "sglang-perf.yaml"
    suite.write_text(suite.read_text().replace("8: 48", "8: 2000"))
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(['*sglang server "base" crashed under load at concurrency 8*'])
    result.stdout.fnmatch_lines(["*sglang::scheduler*died*"])
    nothing_is_left(project)


def test_a_killed_pytest_leaves_no_server(project: Project) -> None:
    project.write_tests(
        textwrap.dedent(
            """
            import time

            @pytest.mark.sglang(server="base")
            def test_it(sglang_server):
                print("UP", flush=True)
                time.sleep(600)
            """
        )
    )
    log = project.pytester.path / "log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"],
            cwd=project.pytester.path,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "SGLANG_PERF_TTL": "2", "SGLANG_PERF_GRACE": "1"},
        )
        try:
            wait_for(lambda: b"UP" in log.read_bytes(), 180, "the server to be up")
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    wait_for(lambda: not left_over(project), 17, "all processes of the killed session to be gone")


def nothing_is_left(project: Project) -> None:
    """Pytest orders the end and returns; the agent finishes the job, and sglang's own drain takes 5 s of it."""
    wait_for(lambda: not left_over(project), 40, "the agent to have stopped everything")


def wait_for(condition, limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s for {what}"
        time.sleep(0.1)
