"""Forms of logs that are in no recorded set: other hardware, other launchers, excerpts with their beginning or end cut.

Constructed around short fragments as reported by users; docs/explanation/crash-rules.md has the figures.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.cli.classify import classify

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_sglang_perf.server.diagnosis import Diagnosis

FRAME = '  File "/opt/sglang/srt/managers/scheduler.py", line 2353, in run_scheduler_process\n    scheduler.loop()\n'
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
BATCH = "Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0"


def died(last: str, stamp: str = "2025-04-27 07:31:20 TP0") -> str:
    return f"[{stamp}] Scheduler hit an exception: Traceback (most recent call last):\n{FRAME}{last}\n"


def diagnose(text: str) -> Diagnosis:
    return classify(io.BytesIO(text.encode())).diagnosis


CRASHES = {
    "a HIP error is what the same CUDA error is": (
        died("RuntimeError: HIP error: invalid device function\nHIP kernel errors might be reported late."),
        "gpu-arch-unsupported",
    ),
    "any other HIP error": (died("torch.AcceleratorError: HIP error: invalid argument"), "cuda-error"),
    "a trap in a ROCm kernel, before the abort": (
        (
            ":0:rocdevice.cpp :3586: 1 us: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: code: 0x1016\n"
            "Fatal Python error: Aborted\n"
        ),
        "device-side-assert",
    ),
    "the NPU's own error, in a warning long before the exception": (
        "[rank3]:[W1031 21:35:04.8 compiler_depend.ts:57] Warning: EZ9999: Inner Error!\n"
        "EZ9999: [PID: 6] 2025-10-31-21:35:03 there is an exception of aivec error, core id is 9\n"
        + died("RuntimeError: The process exits for this inner error, and the operator is aclnnIndex."),
        "npu-error",
    ),
    "the NPU's own error, and then the shell's word": (
        (
            "[ERROR] 2025-09-17-06:54:37 (PID:34901, Device:3, RankID:-1) ERR00100 PTA call acl api failed.\n\n"
            "run.sh: line 19: 34410 Killed                  python -m sglang.launch_server\n"
        ),
        "npu-error",
    ),
    "torch's watchdog ends the process, and sglang's comes later": (
        (
            "[rank7]:[E226 11:16:37.1 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=5653, OpType=ALLREDUCE) ran for 600077 milliseconds before timing out.\n"
            "host:195:3198 [7] NCCL INFO Connected all rings\n"
            "[2025-02-26 11:16:38 TP7] Watchdog timeout (self.watchdog_timeout=300)\n"
        ),
        "collective-timeout",
    ),
    "an excerpt that ends with the watchdog's decision": (
        (
            "[rank4]:[E304 12:54:52.1 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 600049 milliseconds before timing out.\n"
            "[rank4]:[E304 12:54:52.2 ProcessGroupNCCL.cpp:630] [Rank 4] To avoid data inconsistency, we are taking "
            "the entire process down.\n"
        ),
        "collective-timeout",
    ),
    "an excerpt that begins with what() of the watchdog": (
        (
            "  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA "
            "error: an illegal memory access was encountered\nframe #0: c10::Error::Error + 0x96\n"
        ),
        "illegal-memory-access",
    ),
    "an interpreter before 3.11 at the outermost frame": (
        (
            "Traceback (most recent call last):\n"
            '  File "/opt/conda/lib/python3.10/runpy.py", line 196, in _run_module_as_main\n'
            "    return _run_code(code, main_globals, None,\n"
            "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars: 'a:b'.\n"
        ),
        "model-not-found",
    ),
    "a release that logged the bare traceback": (
        (
            "[2024-10-22 06:31:49 TP0] Traceback (most recent call last):\n"
            '  File "/x/cuda_graph_runner.py", line 162, in __init__\n'
            "RuntimeError: CHECK_EQ failed\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n"
            '  File "/x/scheduler.py", line 1000, in run_scheduler_process\n'
            "Exception: Capture cuda graph failed: CHECK_EQ failed\n"
        ),
        "graph-capture-failed",
    ),
    "a logger that failed while it logged the end": (
        "--- Logging error ---\nMessage: 'Received sigquit from a child proces. It usually means the child failed.'\n",
        "unknown",
    ),
}


@pytest.mark.parametrize("name", CRASHES)
def test_crashes(name: str) -> None:
    text, crash_class = CRASHES[name]
    found = diagnose(text)
    assert (found.verdict, found.crash_class) == ("crashed", crash_class), found


def each_line(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(line) + "\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "wrap",
    [
        each_line(lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-05-01T01:02:03.4Z"})),
        each_line(lambda line: json.dumps({"log": f"\x1b[36m(W pid=1, ip=10.0.0.1)\x1b[0m {line}\n", "stream": "x"})),
        each_line(lambda line: f"2025-07-25T07:53:08.21748708+08:00 stdout F {line}"),
        each_line(lambda line: f"2026-04-12T21:16:41.762854908Z {line.strip()}"),  # indentation lost on its way
        each_line(lambda line: f"> {line}"),
    ],
    ids=["docker json", "docker json around Ray", "Kubernetes", "no indentation", "quoted"],
)
def test_a_crash_inside_of_what_wraps_it(wrap: Callable[[str], str]) -> None:
    found = diagnose(wrap(died(ILLEGAL)))
    assert (found.verdict, found.crash_class) == ("crashed", "illegal-memory-access")


HEALTHY = {
    "NCCL talks": "pod-1:235:235 [1] NCCL INFO Channel 13/0 : 1[1] -> 2[2] via P2P/IPC\n" * 3,
    "a launcher's own words": (
        "2025-03-07 23:50:27,531 - __main__ - INFO - [2025-03-07 23:50:27 TP0] Load weight begin. avail mem=22.46 GB\n"
        "2025-03-07 23:50:28,550 - __main__ - WARNING - Attempt 14: Please wait for sglang server to become ready...\n"
    ),
    "a message that speaks of an error message": (
        "[2025-02-25 12:05:39 TP0] The following error message 'operation scheduled before its operands' can be "
        f"ignored.\n[2025-02-25 12:05:40 TP0] {BATCH}\n"
    ),
    "requests retracted for want of memory": "".join(
        f"[2025-01-06 02:58:44 TP{rank}] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1\n"
        for rank in range(8)
    ),
    "a soft watchdog is announced": (
        "[2025-12-30 02:33:44] INFO server_args.py:2442: Set soft_watchdog_timeout since in CI\n"
    ),
    "an NPU that is fine": "[2026-07-01 02:42:56 TP8 EP8] get env HOSTNAME = some.host\n",
    "deprecated fields": (
        "/sglang/entrypoints/openai/serving_chat.py:642: DeprecationWarning: max_tokens is deprecated\n"
        "  max_output_tokens = request.max_completion_tokens or request.max_tokens\n"
    ),
    "a runtime around it": (
        "2026-07-06T02:45:29.886032Z  INFO dynamo_runtime::pipeline::network: Registering NATS endpoint\n"
        "[2026-07-05 19:45:29.924] Model registration succeeded; processing queued requests\n"
    ),
    "a transfer between servers that failed": (
        "E0619 02:47:42.441629  1555 tcp_transport.cpp:136] Session::writeBody failed. Error: Bad address (value: 14)\n"
        "[2025-09-17 16:23:13 TP1] Decode transfer failed for request rank=1 decode_req.req.rid='3c' with exception "
        "KVTransferError(bootstrap_room=16): Failed due to an unknown reason from another rank\n"
        '[2025-09-17 16:23:16] INFO:     10.10.11.1:41712 - "GET /health HTTP/1.1" 200 OK\n'
    ),
    "docker's json that is cut": '{"log":"[2025-05-01 01:02:03 TP0] Load weight begin. avail me\n',
    "json that is not docker's": '{"log": 3}\n{"log":"x", "y":\n[]\n{"log":["a"]}\n',
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_crash_at_any_prefix(name: str) -> None:
    lines = HEALTHY[name].splitlines(keepends=True)
    for end in range(1, len(lines) + 1):
        assert diagnose("".join(lines[:end])).verdict in {"unknown", "healthy"}, lines[end - 1]
