"""Crash classes of processes: ranks that wait, hang, die or are lost, and what is left when nothing else tells."""

from __future__ import annotations

from ._crash_class import CrashClass, Depth, sglang_issue

__all__ = ["PROCESS_CLASSES"]

PROCESS_CLASSES = (
    CrashClass(
        "scheduler-hang",
        "A process of the server stopped making progress",
        (
            "Look at the py-spy dump in the log (`Pyspy dump for PID`): the innermost frames show what it waits for.",
            "All ranks inside a collective: a rank is missing or NCCL hangs; one rank elsewhere: that one is to blame.",
            "If the work is legitimately long (first compilation), raise --watchdog-timeout.",
        ),
        (
            r"\b(?P<detail>[A-Z]\w+) watchdog timeout \(self\.watchdog_timeout=[\d.]+, self\.soft=False",
            r"Watchdog timeout \(self\.watchdog_timeout=[\d.]+\)",
        ),
        depth=Depth.WRAPPER,
        links=sglang_issue(3752, 8232),
    ),
    CrashClass(
        "rendezvous-timeout",
        "The ranks did not find each other in time",
        (
            "Check --dist-init-addr, --nnodes and --node-rank on every node, and that the port is open between them.",
            "A rank that died earlier is waited for in vain: read its log first.",
            "Slow imports on shared file systems need a larger --dist-timeout.",
        ),
        (
            r"The client socket has timed out after",
            r"(?P<detail>DistNetworkError|DistStoreError)",
            r"waitForInput: .*timed out after",
            r"wait timeout after \d+ ?ms",
            r"Timed out waiting for clients",
            r"retrieving ncclUniqueId from",
        ),
        depth=Depth.WRAPPER,
        links=sglang_issue(7478, 2561, 4978),
    ),
    CrashClass(
        "collective-timeout",
        "A collective operation between the GPUs never finished",
        (
            "The first rank to fail is the one to look at; the others only waited for it.",
            "TORCH_NCCL_TRACE_BUFFER_SIZE and NCCL_DEBUG=INFO name the operation and the missing rank.",
        ),
        (
            r"Watchdog caught collective operation timeout",
            r"\[PG .*\] .*ran for \d+ milliseconds before timing out",
        ),
        depth=Depth.WRAPPER,
        precursor=True,
        links=sglang_issue(3784, 18421, 22511),
    ),
    CrashClass(
        "warmup-failed",
        "The server came up but failed its own warm-up request",
        (
            "The traceback after 'warmup error' shows the answer or the timeout; SGLANG_WARMUP_TIMEOUT allows longer.",
            "--skip-server-warmup starts without it, which only moves the failure to the first request.",
        ),
        (r"Initialization failed\. warmup error:",),
        depth=Depth.WRAPPER,
    ),
    CrashClass(
        "native-crash",
        "A process crashed in native code",
        (
            "The thread dump after 'Fatal Python error' shows the Python frames above the native call.",
            "Mismatched wheels are a common cause; so is a lost GPU (dmesg).",
        ),
        (
            r"Fatal Python error: (?P<detail>.{1,60})",
            r"Segfault encountered|Segmentation fault",
            r"(?P<detail>Illegal instruction) \(core dumped\)",
            r"double free or corruption|corrupted size vs\. prev_size|malloc\(\): ",
        ),
        depth=Depth.WRAPPER,
    ),
    CrashClass(
        "peer-rank-lost",
        "Another rank of the group went away first",
        ("Look for the first failure on the other ranks and nodes; this one only lost its partner.",),
        (
            r"Connection (?:closed|reset) by peer",
            r"Broken pipe",
            r"recvValue failed|sendBytes failed|recvBytes failed",
            r"remote process exited or there was a network error",
            r"[Ff]ailed to (?:recv|send), got 0 bytes",
            r"Socket Timeout",
        ),
        depth=Depth.CONSEQUENCE,
    ),
    CrashClass(
        "native-terminate",
        "C++ code ended the process with an exception that nobody caught",
        ("The `what():` line after it is the cause.",),
        (
            r"terminate called after throwing an instance of '(?P<detail>[^']+)'",
            r"Process group watchdog thread terminated with exception",
        ),
        depth=Depth.CONSEQUENCE,
        links=sglang_issue(3784),
    ),
    CrashClass(
        "killed",
        "A process of the server was killed with SIGKILL",
        (
            "`dmesg -T | grep -i oom` shows whether the kernel did it; containers also die of their memory limit.",
            "sglang kills itself with SIGKILL after every error: exit code -9 alone proves nothing.",
        ),
        (
            r"scheduler died during initialization \(exit code: (?P<detail>-9)\)",
            r"^Killed$|line \d+: +\d+ Killed ",
        ),
        depth=Depth.CONSEQUENCE,
        links=sglang_issue(20287),
    ),
    CrashClass(
        "subprocess-died",
        "A process of the server died",
        (
            (
                "The exit code tells how: -9 killed, -11 segmentation fault, -6 aborted by C++, -15 asked to end from "
                "outside, positive: a Python exception of its own."
            ),
            (
                "-9 without an exception above it: killed from outside, by the kernel for want of memory (the kernel's "
                "lines say so where they can be read), by a container's limit, or by a person."
            ),
        ),
        (
            r"[Ss]ubprocess (?P<detail>\S+ \(pid=\d+\) crashed with exit code -?\d+)",
            r"(?P<detail>Rank \d+ scheduler (?:died during initialization|is dead).{0,30})",
            r"Child process unexpectedly failed with (?:an exit code |exitcode=)(?P<detail>-?\d+)",
            r"(?P<detail>Scheduler or DataParallelController \d+ terminated with -?\d+)",
        ),
        depth=Depth.CONSEQUENCE,
    ),
    CrashClass(
        "health-check-failed",
        "The server stopped answering its health check",
        (
            (
                "The scheduler or the detokenizer is dead or hangs while the HTTP process lives. With --dp-size the "
                "death "
                "of a rank is noticed by nothing else."
            ),
            "Look for dead `sglang::` processes on the node, and for dmesg lines at that time.",
        ),
        (r"Health check failed\. Server couldn't get a response from (?P<detail>\w+)",),
        depth=Depth.CONSEQUENCE,
        links=sglang_issue(22511, 6624),
    ),
    CrashClass(
        "scheduler-exception",
        "A process of the server ended with an exception that no class describes yet",
        ("Read the exception and its innermost frames; search the sglang issues for its text.",),
        (
            (
                r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController|Multi(?:De)?[Tt]okenizer\w*) "
                r"hit an exception"
            ),
        ),
        depth=Depth.CONSEQUENCE,
    ),
    # The following never come from a line; the classifier gives them where the log has nothing better.
    CrashClass(
        "no-progress",
        "The boot stood still for longer than this phase ever should",
        (
            "`py-spy dump` of the schedulers shows where they wait; the phase tells what to suspect.",
            "Right after the weights: all-reduce set-up or a kernel being compiled. In `distributed`: a missing rank.",
        ),
    ),
    CrashClass(
        "process-stopped",
        "A process of the server was stopped from outside and does not run",
        (
            "Somebody or something sent it SIGSTOP or attached a debugger: `kill -CONT PID` lets it go on.",
            "Container runtimes and batch systems stop processes too, when they pause or checkpoint a job.",
        ),
    ),
    CrashClass(
        "silent-exit",
        "The server ended without a word about why",
        (
            (
                "Killed from outside (kernel, container, batch system, a closed SSH terminal), or the log is cut or "
                "goes "
                "elsewhere (--log-level, SGLANG_LOGGING_CONFIG_PATH)."
            ),
            "Look at dmesg, journalctl and the container's status for that time.",
        ),
    ),
    CrashClass(
        "unknown",
        "The server ended with an error that no class describes yet",
        ("Read the evidence: the last exception and the first unusual lines.",),
    ),
)
