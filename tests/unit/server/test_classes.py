"""Every class, every pattern: constructed logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.server._literals import required_words
from pytest_sglang_perf.server.benign import is_benign
from pytest_sglang_perf.server.classes import CLASSES, CrashClass, search_classes, suspicious
from pytest_sglang_perf.server.classify import Classifier

from .constructed import SAMPLES, boot, died, stamp

if TYPE_CHECKING:
    from pytest_sglang_perf.server.diagnosis import Diagnosis

WITH_PATTERNS = [entry for entry in CLASSES if entry.patterns]


def diagnose(lines: list[str], **end: object) -> Diagnosis:
    classifier = Classifier()
    for line in lines:
        classifier.feed(line)
    return classifier.finish(**end)  # type: ignore[arg-type]


def every_sample() -> list[tuple[str, str]]:
    return [(name, sample) for name, samples in SAMPLES.items() for sample in samples]


@pytest.mark.parametrize("entry", WITH_PATTERNS, ids=lambda entry: entry.name)
def test_every_pattern_has_a_sample(entry: CrashClass) -> None:
    for pattern in entry.patterns:
        assert any(re.search(pattern, sample) for sample in SAMPLES[entry.name]), pattern


@pytest.mark.parametrize(("name", "sample"), every_sample())
def test_no_sample_is_stopped_by_the_cheap_test(name: str, sample: str) -> None:
    assert suspicious(sample)
    assert name in {entry.name for entry, _ in search_classes(sample)}


@pytest.mark.parametrize(("name", "sample"), every_sample())
def test_every_sample_inside_a_scheduler_traceback(name: str, sample: str) -> None:
    found = diagnose([*boot("cuda_graphs"), *died(sample)])
    assert found.verdict == "crashed"
    expected = {name}
    if name == "subprocess-died" and "initialization" in sample:
        expected.add("killed")
    assert found.crash_class in expected, found.evidence
    assert found.phase == "cuda_graphs"
    assert found.version == "0.5.10"


def harmless_samples() -> list[tuple[str, str]]:
    ends = (
        "Subprocess",
        "Process group watchdog thread terminated",
        "Rank",
        "Scheduler",
        "Initialization",
        "terminate",
        "Fatal",
        "!!!",
        "Health check",
        "Killed",
        "./",
    )
    return [
        (name, sample)
        for name, sample in every_sample()
        if name not in {"scheduler-hang", "bad-flag", "port-in-use"} and not sample.startswith(ends)
    ]


@pytest.mark.parametrize(("name", "sample"), harmless_samples())
def test_a_sample_alone_is_no_crash_of_a_running_server(name: str, sample: str) -> None:
    """Libraries complain and carry on; only lines that end a process may count."""
    batch = "Decode batch, #running-req: 1, #token: 138, token usage: 0.01, cuda graph: True, gen throughput: 9.0"
    found = diagnose([*boot("running"), stamp(40, "TP0") + sample, stamp(41, "TP0") + batch])
    assert found.verdict == "healthy", name


@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry.name)
def test_names_are_kebab_case_and_texts_are_sentences(entry: CrashClass) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", entry.name)
    assert entry.cause[0].isupper() or entry.cause.startswith(("torch", "sglang", "mscclpp"))
    assert not entry.cause.endswith(".")
    assert all(advice.endswith((".", ":")) for advice in entry.advice), entry.advice
    assert all(link.startswith("https://") for link in entry.links)


def test_out_of_memory_is_two_classes() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB."
    starting = diagnose([*boot("weights"), *died(text)])
    serving = diagnose([*boot("running"), *died(text)])
    assert (starting.crash_class, starting.phase) == ("cuda-oom-at-startup", "weights")
    assert (serving.crash_class, serving.phase) == ("cuda-oom-under-load", "running")
    assert "Tried to allocate 3.00 GiB" in serving.cause


def test_a_small_kv_budget_is_never_advised_like_out_of_memory() -> None:
    small = diagnose([*boot("kv_cache"), *died(SAMPLES["kv-budget-too-small"][0])])
    full = diagnose([*boot("kv_cache"), *died(SAMPLES["cuda-oom-at-startup"][0])])
    assert "Raise --mem-fraction-static" in small.advice[0]
    assert "Lower --mem-fraction-static" in full.advice[0]


def test_the_root_wins_over_what_wraps_it() -> None:
    text = (
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
        "Possible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
    )
    assert diagnose([*boot("cuda_graphs"), *died(text)]).crash_class == "cuda-oom-at-startup"


def test_the_root_is_found_in_a_chain_of_exceptions() -> None:
    text = (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.12/site-packages/sglang/srt/cuda_graph_runner.py", line 1, in capture\n'
        "    raise Exception(\n"
        "Exception: Capture cuda graph failed: CUDA error"
    )
    found = diagnose([*boot("cuda_graphs"), *died(text)])
    assert found.crash_class == "gpu-arch-unsupported"


def test_eight_ranks_and_the_first_to_fall() -> None:
    lines = boot("running")
    lines += died("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "TP3 EP3", 40)[:-1]
    for rank in (0, 1, 2, 4, 5, 6, 7):
        lines += died(
            "RuntimeError: NCCL error: remote process exited or there was a network error", f"TP{rank} EP{rank}", 41
        )
    lines += [stamp(42) + f"Subprocess scheduler_{rank} (pid=1) crashed with exit code -9. x" for rank in range(8)]
    found = diagnose(lines, exit_code=-9)
    assert (found.crash_class, found.phase) == ("illegal-memory-access", "running")
    assert "TP3 EP3" in found.evidence[0][1]
    assert any("8 processes" in said for said in found.consequences)


def test_the_fullgraph_crash_of_fp4_quantize() -> None:
    """Piecewise CUDA graphs, an NVFP4 model, and a kernel that compiles itself at its first call."""
    lines = [
        *boot("cuda_graphs"),
        stamp(9, "TP0") + "Capture cuda graph end. Time elapsed: 12.0 s. mem usage=1.00 GB. avail mem=16.50 GB.",
        stamp(10, "TP0") + "Capture piecewise CUDA graph begin. avail mem=16.5 GB",
        "Compiling num tokens (num_tokens=8192):   0%|          | 0/58 [00:00<?, ?it/s]",
        *died(
            "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped\n"
            "  Explanation: Dynamo does not know how to trace the builtin `_thread.lock.__new__`.\n"
            "from user code:\n"
            '   File "/venv/lib/python3.12/site-packages/flashinfer/fp4_quantization.py", line 700, in fp4_quantize\n'
            "Exception: Piecewise CUDA Graph is enabled by default as an experimental feature."
        ),
    ]
    found = diagnose(lines)
    assert (found.crash_class, found.phase) == ("torch-compile-fullgraph", "cuda_graphs")
    assert "--disable-piecewise-cuda-graph" in found.advice[0]


def test_an_unknown_exception_is_quoted() -> None:
    found = diagnose([*boot("weights"), *died("FrobnicationError: the left phalange is missing")])
    assert found.crash_class == "scheduler-exception"
    assert "FrobnicationError: the left phalange is missing" in found.cause


def test_complaints_that_were_survived_do_not_explain_a_later_death() -> None:
    lines = [
        *boot("weights"),
        stamp(5, "TP0") + "Failed to build staged kernel: RuntimeError: Ninja build failed, using the portable one",
        *died("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."),
    ]
    assert diagnose(lines).crash_class == "cuda-oom-at-startup"


def test_what_is_printed_before_the_traceback_may_be_the_root() -> None:
    lines = [
        *boot("distributed"),
        "node1:77:77 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xa1b2C (size 9637888)",
        *died("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
    ]
    assert diagnose(lines).crash_class == "shm-too-small"


def test_an_undescribed_exception_wins_over_peers_that_only_lost_it() -> None:
    lines = [
        *boot("cuda_graphs"),
        *died("RuntimeError: the flux capacitor is empty", "TP3")[:-1],
        *died("Exception: Capture cuda graph failed: [pair.cc:534] Connection closed by peer [10.0.0.1]:9", "TP0"),
    ]
    found = diagnose(lines)
    assert found.crash_class == "scheduler-exception"
    assert "flux capacitor" in found.cause
    assert "TP3" in found.evidence[0][1]


def test_nan_before_the_late_report_of_the_driver() -> None:
    lines = [
        *boot("running"),
        "TensorCompare.cu:109: block: [0,0,0] Assertion `probability tensor contains either inf, nan` failed.",
        *died("torch.AcceleratorError: CUDA error: unspecified launch failure"),
    ]
    assert diagnose(lines).crash_class == "nan-logits"


def test_optional_plugins_of_nccl_are_no_cause() -> None:
    lines = [
        *boot("running"),
        "n1:83:83 [0] NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file: No such file or directory",
        *died("FrobnicationError: x"),
    ]
    assert diagnose(lines).crash_class == "scheduler-exception"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"CUDA error: (?P<detail>.{1,80})", ("CUDA error: ",)),
        (r"abc|defg\d", ("abc", "defg")),
        (r"(?:abc|def)", ("abc", "def")),
        (r"(?:abc|d)", None),
        (r"(?:abc)?xyz", ("xyz",)),
        (r"(?P<detail>abcde|fghij)xyz", ("abcde", "fghij")),
        (r"ab(?!abcdef)", None),
        (r"abcd?", ("abc",)),
        (r"abcd{2}efgh", ("efgh",)),
        (r"x[abc]yz\.so", ("yz.so",)),
        (r"[^]a]words", ("words",)),
        (r"a\wb", None),
        (r"Can(?:not)? do|never", ("Can", "never")),
    ],
)
def test_required_words(pattern: str, words: tuple[str, ...] | None) -> None:
    assert required_words(pattern) == words


@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry.name)
def test_the_reference_page_has_every_class(entry: CrashClass) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "crash-classes.md").read_text(encoding="utf-8")
    section = page.partition(f"### `{entry.name}`\n")[2].partition("\n### ")[0]
    assert section.lstrip().startswith(entry.cause + ".")
    assert all(f"- {advice}\n" in section for advice in entry.advice)
    assert all(link in section for link in entry.links)


def test_lines_that_were_seen_before_are_judged_as_if_they_were_not() -> None:
    lines = [*boot("running"), *died("ValueError: one"), *boot("running"), *died("RuntimeError: CUDA out of memory.")]
    plain, quick = Classifier(), Classifier()
    for number, text in enumerate(lines, 1):
        plain.feed(text, number)
        if not quick.feed_again(text, number):
            quick.feed(text, number)
    assert quick.finish() == plain.finish()
    assert sum(quick.feed_again(text, 1) for text in lines) >= 2


@pytest.mark.parametrize(
    "text",
    [
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        "host:1:2 [0] NCCL INFO comm error ignored",
        "/x/y.py:3: UserWarning: failed to do it",
        "FlashInfer failed, Falling back to triton",
        "Cannot use it, will fall back to eager",
        "Error in the kernel; using fallback",
        "Invalid flag, it Will be ignored",
        "unable to find it, so X will be disabled",
    ],
)
def test_benign_words_anywhere_in_a_line(text: str) -> None:
    assert is_benign(text)
    assert not is_benign(text.replace("ill be", "as").replace("all", "at").replace("INFO", "WARN").lower())
