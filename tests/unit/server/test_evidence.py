from __future__ import annotations

from pytest_sglang_perf.server.classify import Classifier
from pytest_sglang_perf.server.evidence import NodeEvidence

DUMP = """Process 12: python -m sglang.launch_server
Python v3.11.7 (/usr/bin/python3.11)

Thread 99 (idle): "Thread-1"
    wait (threading.py:320)
Thread 12 (active): "MainThread"
    broadcast (torch/distributed/distributed_c10d.py:2714)
    recv_requests (sglang/srt/managers/scheduler.py:1300)
    event_loop_overlap (sglang/srt/managers/scheduler.py:1100)
    run_scheduler_process (sglang/srt/managers/scheduler.py:3000)
"""
GPU = {
    "index": "0", "memory.used": "71000", "memory.total": "81559", "power.draw": "120.0", "power.limit": "700.00",
    "clocks.sm": "1980", "temperature.gpu": "44", "ecc.errors.uncorrected.volatile.total": "0",
}  # fmt: skip


def test_gpus_that_are_alike_share_a_line_and_a_sick_one_is_named() -> None:
    sick = {**GPU, "index": "1", "memory.used": "0", "ecc.errors.uncorrected.volatile.total": "3"}
    lines = NodeEvidence(gpus=(GPU, sick), gpu_error="GPU2: Unknown Error").lines()
    assert lines == [
        ("gpus", "2 GPUs: memory used 0 to 71000 MiB of 81559 MiB, power 120 W of 700 W, clock 1980 MHz, 44 C"),
        ("gpus", "GPU 1: 3 uncorrected memory errors"),
        ("gpus", "GPU2: Unknown Error"),
    ]


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    ((_, text),) = NodeEvidence(gpus=({"index": "0", "memory.used": "[N/A]", "power.draw": "61"},)).lines()
    assert "61 W" in text
    assert "MHz" not in text


def test_the_main_threads_innermost_frames_come_home() -> None:
    evidence = NodeEvidence(
        processes=({"pid": 12, "title": "sglang::scheduler_TP0", "state": "S", "waits_in": "futex_wait"},),
        stacks=({"pid": 12, "text": DUMP, "error": None},),
    )
    ((label, text),) = evidence.lines()
    assert label == "stack"
    assert text.startswith(
        "sglang::scheduler_TP0 (pid 12): broadcast (torch/distributed/distributed_c10d.py:2714) < recv"
    )
    assert "run_scheduler_process" not in text
    assert DUMP in evidence.to_text()


def test_a_command_line_is_told_by_its_end_and_a_helper_not_at_all() -> None:
    evidence = NodeEvidence(
        processes=(
            {"pid": 1, "title": "/a/very/long/path/to/bin/python -m sglang.launch_server --x", "state": "S"},
            {"pid": 2, "title": "python -c from multiprocessing.resource_tracker import main;main(5)", "state": "S"},
        ),
        stacks=tuple({"pid": pid, "text": DUMP, "error": None} for pid in (1, 2)),
    )
    ((_, text),) = evidence.lines()
    assert text.startswith("python -m sglang.launch_server --x (pid 1): broadcast")


def test_why_there_are_no_stacks_is_said_once() -> None:
    stacks = tuple({"pid": pid, "text": None, "error": "py-spy is not installed"} for pid in (1, 2))
    assert NodeEvidence(stacks=stacks).lines() == [("stack", "py-spy is not installed")]


def test_a_hang_of_a_stopped_process_is_its_stop() -> None:
    stopped = NodeEvidence(
        processes=(
            {"pid": 12, "title": "sglang::scheduler", "state": "T", "waits_in": ""},
            {"pid": 13, "title": "sglang::detokenizer", "state": "S", "waits_in": ""},
        )
    ).stopped
    assert len(stopped) == 1
    classifier = Classifier()
    found = classifier.finish(stalled_in="weights", stopped=stopped)
    assert found.crash_class == "process-stopped"
    assert "sglang::scheduler (pid 12) is stopped" in found.cause
    assert found.consequences[0].startswith("no-progress")


def test_a_crash_is_not_explained_by_a_stopped_process() -> None:
    classifier = Classifier()
    classifier.feed("usage: launch_server.py [-h]")
    classifier.feed("launch_server.py: error: unrecognized arguments: --x")
    assert classifier.finish(exit_code=2, stopped=["sglang::x (pid 1) is stopped"]).crash_class == "bad-flag"


def test_silence_of_an_unreadable_kernel_log_is_told() -> None:
    assert "not readable" in NodeEvidence(kernel_readable=False).to_text()
    assert "not readable" not in NodeEvidence(kernel_readable=True).to_text()
