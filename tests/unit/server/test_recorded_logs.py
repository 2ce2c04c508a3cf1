from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.server.classify import Classifier
from pytest_sglang_perf.server.phases import PhaseTracker

from .recorded import HEALTHY, RECORDED, Recorded, lines_of

if TYPE_CHECKING:
    from random import Random


def ids(case: Recorded) -> str:
    return case.name


@pytest.mark.parametrize("with_status", [False, True], ids=["log alone", "with exit status"])
@pytest.mark.parametrize("case", RECORDED, ids=ids)
def test_verdict_class_phase_and_version(case: Recorded, with_status: bool) -> None:
    classifier = Classifier()
    for number, text in lines_of(case.name):
        classifier.feed(text, number)
    found = (
        classifier.finish(exit_code=case.exit_code, stopped_by_us=case.by_us) if with_status else classifier.finish()
    )
    assert (found.verdict, found.crash_class, found.phase, found.version) == (
        case.verdict,
        case.crash_class,
        case.phase,
        case.version,
    )


@pytest.mark.parametrize("case", HEALTHY, ids=ids)
def test_no_prefix_of_a_healthy_log_is_a_crash(case: Recorded) -> None:
    classifier = Classifier()
    for number, text in lines_of(case.name):
        classifier.feed(text, number)
        assert classifier.fatal is None, text
        assert classifier.finish().verdict != "crashed", text


@pytest.mark.parametrize("case", [c for c in RECORDED if c.verdict == "crashed"], ids=ids)
def test_evidence_quotes_the_log(case: Recorded) -> None:
    classifier = Classifier()
    lines = lines_of(case.name)
    for number, text in lines:
        classifier.feed(text, number)
    found = classifier.finish()
    by_number: dict[int, str] = {}
    for number, text in lines:
        by_number[number] = by_number.get(number, "") + text
    assert found.evidence
    assert found.advice
    assert [number for number, _ in found.evidence] == sorted(number for number, _ in found.evidence)
    for number, text in found.evidence:
        assert text.removesuffix("…") in by_number[number]


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("cpu_0.5.23_port_held_by_other_program.stderr.log", "error while attempting to bind"),
        ("cpu_0.5.23_second_on_port_false_ready.stderr.log", "error while attempting to bind"),
        ("cpu_0.5.23_unknown_flag.stderr.log", "unrecognized arguments"),
        ("cpu_0.5.23_no_kv_memory.stderr.log", "Received sigquit"),
        ("cpu_0.5.23_scheduler_sigkill.stderr.log", "Subprocess scheduler_0"),
    ],
)
def test_fatal_at_the_line_that_proves_it(name: str, at: str) -> None:
    classifier = Classifier()
    for number, text in lines_of(name):
        classifier.feed(text, number)
        if classifier.fatal is not None:
            assert at in text
            return
    pytest.fail("never fatal")


def test_a_termination_while_loading_leaves_no_trace() -> None:
    """Before its handlers are set, SIGTERM ends sglang without a word: the exit status must tell."""
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_sigterm_while_loading.log.gz"):
        classifier.feed(text, number)
    assert classifier.finish().verdict == "unknown"
    assert classifier.finish(exit_code=-15, stopped_by_us=True).verdict == "stopped"
    foreign = classifier.finish(exit_code=-15)
    assert (foreign.verdict, foreign.crash_class, foreign.phase) == ("crashed", "silent-exit", "imports")
    assert "SIGTERM" in foreign.cause


def test_a_dead_child_is_named_where_the_log_is_silent() -> None:
    """A data-parallel rank: nothing watches it but we."""
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_first_on_port.stderr.log"):
        classifier.feed(text, number)
    child = {"pid": 17, "title": "sglang::scheduler_DP1_TP0", "status": -9}
    found = classifier.finish(dead_children=[child])
    assert (found.verdict, found.crash_class, found.phase) == ("crashed", "subprocess-died", "running")
    assert "sglang::scheduler_DP1_TP0, pid 17, exit status -9, SIGKILL" in found.cause


@pytest.mark.parametrize(
    ("phase", "crash_class"), [("jit", "no-progress"), ("distributed", "no-progress"), ("running", "scheduler-hang")]
)
def test_a_stall_is_a_crash_of_its_own(phase: str, crash_class: str) -> None:
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_first_on_port.stderr.log"):
        classifier.feed(text, number)
    found = classifier.finish(stalled_in=phase)
    assert (found.verdict, found.crash_class, found.phase) == ("crashed", crash_class, phase)


def test_our_stop_of_a_crashed_server_does_not_hide_the_crash() -> None:
    classifier = Classifier()
    for number, text in lines_of("cuda_0.5.16_kv_budget_too_small.log"):
        classifier.feed(text, number)
    classifier.note_stop()
    assert classifier.finish(exit_code=-9, stopped_by_us=True).crash_class == "kv-budget-too-small"


def test_children_that_end_after_our_stop_are_no_crash() -> None:
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_first_on_port.stderr.log"):
        classifier.feed(text, number)
    classifier.note_stop()
    classifier.feed("[2026-11-29 13:45:00] Subprocess scheduler_0 (pid=1) crashed with exit code -15. Triggering")
    assert classifier.fatal is None
    assert classifier.finish(exit_code=-9, stopped_by_us=True).verdict == "stopped"


@pytest.mark.parametrize(
    ("line", "crash_class"),
    [
        ("[Sat Nov 29 13:33:16 2026] Out of memory: Killed process 14846 (sglang::schedul)", "host-oom"),
        ("[Sat Nov 29 13:33:16 2026] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", "gpu-lost"),
    ],
)
def test_the_kernel_knows_why_a_process_was_killed(line: str, crash_class: str) -> None:
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_scheduler_sigkill.stderr.log"):
        classifier.feed(text, number)
    found = classifier.finish(exit_code=-9, kernel_log=["[Sat Nov 29 13:00:00 2026] eth0: link up", line])
    assert found.crash_class == crash_class
    assert found.evidence[-1] == (0, f"dmesg: {line}")
    assert found.consequences[0].startswith("subprocess-died")


def test_the_kernel_log_does_not_overrule_a_cause_in_the_log() -> None:
    classifier = Classifier()
    for number, text in lines_of("cuda_0.5.16_kv_budget_too_small.log"):
        classifier.feed(text, number)
    found = classifier.finish(kernel_log=["Out of memory: Killed process 1 (other)"])
    assert found.crash_class == "kv-budget-too-small"


def test_a_lost_rank_is_named_by_who_went_first() -> None:
    """What the other rank logs is a closed connection; the deaths, in their order, say whose."""
    classifier = Classifier()
    classifier.feed("[2026-11-29 19:44:40 TP0] Scheduler hit an exception: Traceback (most recent call last):")
    classifier.feed('  File "distributed_c10d.py", line 2974, in broadcast')
    classifier.feed("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:43745")
    found = classifier.finish(
        dead_children=[
            {"pid": 11, "title": "sglang::scheduler_TP1", "status": -9},
            {"pid": 12, "title": "sglang::detokenizer", "status": -9},
        ]
    )
    assert found.crash_class == "peer-rank-lost"
    assert "sglang::scheduler_TP1, pid 11, was the first to end" in found.cause


def test_a_detail_is_what_was_said_not_the_source_line_that_says_it() -> None:
    classifier = Classifier()
    for number, text in lines_of("cuda_0.5.16_tp2_nccl_tree_refused.log.gz"):
        classifier.feed(text, number)
    assert "invalid usage" in classifier.finish().cause


def test_several_boots_in_one_log() -> None:
    """A container that restarts: the last boot counts, or what is known of the one before it."""
    crashed, healthy = "cuda_0.5.16_kv_budget_too_small.log", "cuda_0.5.16_healthy_boot_small_model.log"
    classifier = Classifier()
    for _ in range(2):
        for _number, text in lines_of(crashed)[:-1]:
            classifier.feed(text)
    boot = lines_of(healthy)
    for _number, text in boot[:12]:
        classifier.feed(text)
    assert classifier.finish().crash_class == "kv-budget-too-small"  # the third attempt is only under way
    for _number, text in boot[12:]:
        classifier.feed(text)
    found = classifier.finish()
    assert (found.verdict, found.phase) == ("healthy", "ready")


def test_a_boot_after_a_killed_one_is_followed_anew() -> None:
    """The first was killed without a trace: its log just stops, and another begins."""
    classifier = Classifier()
    for _number, text in lines_of("cuda_0.5.16_healthy_boot_small_model.log"):
        classifier.feed(text)
    for _number, text in lines_of("cpu_0.5.23_no_kv_memory.stderr.log"):
        classifier.feed(text)
    found = classifier.finish()
    assert (found.crash_class, found.phase, found.version) == ("kv-budget-too-small", "kv_cache", "0.5.23")
    for _number, text in lines_of("cpu_0.5.10_healthy.log"):
        classifier.feed(text)
    assert classifier.finish().version == "0.5.10"


def test_a_failed_health_check_is_taken_back_when_the_server_answers_again() -> None:
    classifier = Classifier()
    for number, text in lines_of("cpu_0.5.23_dp_rank_sigkill.stderr.log"):
        classifier.feed(text, number)
    assert classifier.finish().crash_class == "health-check-failed"
    batch = "[2026-11-29 13:48:00 DP{}] Prefill batch, #new-seq: 1, #new-token: 1, cpu graph: False"
    classifier.feed(batch.format(0))
    assert classifier.finish().verdict == "crashed"  # the other rank is still silent
    classifier.feed(batch.format(1))
    assert classifier.finish().verdict == "healthy"


def test_phases_of_a_boot_with_graphs_and_their_progress() -> None:
    tracker = PhaseTracker()
    entered, progress = [], []
    for number, text in lines_of("cuda_0.5.16_healthy_boot_small_model.log"):
        for event in tracker.feed(text, number=number):
            if event.edge == "start":
                entered.append(event.phase)
            elif event.edge == "progress":
                assert tracker.progress is not None
                progress.append((tracker.progress.done, tracker.progress.total))
    assert entered == [
        *("imports", "arguments", "imports", "distributed", "weights", "kv_cache"),
        *("cuda_graphs", "capacity", "http", "warmup", "ready"),
    ]
    assert (1, 58) in progress
    assert (36, 36) in progress
    assert tracker.durations["cuda_graphs"] == 33
    assert sum(tracker.durations.values()) == 68  # 14:00:53 to 14:02:01


def test_ranks_are_collected_and_the_first_leads() -> None:
    tracker = PhaseTracker()
    for number, text in lines_of("cpu_0.5.23_dp_rank_sigkill.stderr.log"):
        tracker.feed(text, number=number)
    assert tracker.ranks == {"DP0", "DP1"}
    assert tracker.current == "running"


def test_agent_clock_is_used_where_given() -> None:
    tracker = PhaseTracker(start_ns=1_000_000_000)
    lines = lines_of("cpu_0.5.23_first_on_port.stderr.log")
    for step, (number, text) in enumerate(lines):
        tracker.feed(text, 1_000_000_000 + (step + 1) * 10_000_000, number)
    total = len(lines) * 0.01
    assert sum(tracker.durations.values()) == pytest.approx(total)
    assert tracker.started["spawn"] == 1.0


def test_a_false_ready_is_not_believed() -> None:
    tracker = PhaseTracker()
    for number, text in lines_of("cpu_0.5.23_second_on_port_false_ready.stderr.log"):
        tracker.feed(text, number=number)
    assert tracker.bind_failed
    assert "ready" not in tracker.started


@given(st.lists(st.sampled_from([name for name, *_ in RECORDED]), min_size=2, max_size=3), st.randoms())
@settings(max_examples=25, deadline=None)
def test_any_mixture_of_lines_gets_some_verdict(names: list[str], random: Random) -> None:
    """Interleaved, cut and repeated lines may be judged wrongly, but never raise, and quote what was there."""
    lines = [text for name in names for _, text in lines_of(name)[:200]]
    random.shuffle(lines)
    classifier = Classifier()
    for number, text in enumerate(lines, 1):
        classifier.feed(text, number)
    found = classifier.finish(exit_code=random.choice([None, 0, -9, 1]))
    json.dumps(found.to_dict())
    assert (found.verdict == "crashed") == bool(found.crash_class)
    assert all(1 <= number <= len(lines) for number, _ in found.evidence)


def test_the_tail_of_a_log_is_enough_to_see_a_server_at_work() -> None:
    classifier = Classifier()
    for number, text in lines_of("cuda_0.5.16_healthy_under_load.log.gz")[-600:-10]:
        classifier.feed(text, number)
    found = classifier.finish()
    assert (found.verdict, found.phase) == ("healthy", "running")
