from __future__ import annotations

import pytest

from pytest_sglang_perf.agent.kernel_log import KernelLog, last_stamp, notable

BEFORE = "[  100.000001] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OURS = {4711, 4712}
NAMES = {"python", "sglang::schedul"}


def log(*lines: str) -> KernelLog:
    return KernelLog(readable=True, lines=[BEFORE, *lines])


@pytest.mark.parametrize(
    "line",
    [
        "[  200.5] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "[  200.5] NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, name=python, Ch 00000010",
        "[  200.5] Out of memory: Killed process 99 (sglang::schedul) total-vm:24714372kB",  # in a container
        "[  200.5] Memory cgroup out of memory: Killed process 4712 (other) total-vm:1kB",
        "[  200.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=12,uid=0",
        "[  200.5] sglang::schedul[4711]: segfault at 10 ip 00007f sp 00007f error 4 in libcuda.so",
        "[  200.5] INFO: task sglang::schedul:4711 blocked for more than 120 seconds.",
        "[  200.5] mce: [Hardware Error]: CPU 1: Machine Check Exception: 5",
        "<3>[  200.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32",
        "[  200.500000] host7 kernel: NVRM: Xid (PCI:0000:c1:00): 48, pid=7, name=foreign, DBE",
    ],
)
def test_what_may_explain_a_death_is_kept(line: str) -> None:
    (found,) = notable(log(line), 150.0, OURS, NAMES)
    assert found.startswith("[200.5")


@pytest.mark.parametrize(
    "line",
    [
        "[  200.5] Out of memory: Killed process 9341 (pytest) total-vm:24714372kB",
        "[  200.5] NVRM: Xid (PCI:0000:c1:00): 13, pid=77, name=their-job, Graphics SM Warp Exception",
        "[  200.5] chrome[12]: segfault at 0 ip 0 sp 0 error 4",
        "[  200.5] eth0: link up",
        "Out of memory: Killed process 4711 (python)",  # no stamp: nobody knows when
    ],
)
def test_others_and_other_things_are_left_out(line: str) -> None:
    assert notable(log(line), 150.0, OURS, NAMES) == []


def test_what_came_before_the_launch_does_not_count() -> None:
    assert notable(log(), 100.000001, OURS, NAMES) == []
    assert len(notable(log(), None, OURS, NAMES)) == 1


def test_where_a_log_ends() -> None:
    assert last_stamp(log("[  200.5] x", "no stamp")) == 200.5
    assert last_stamp(KernelLog(readable=True, lines=[])) is None


def test_only_the_newest_are_kept() -> None:
    many = [f"[{200 + n}.5] NVRM: Xid (PCI:0000:c1:00): 79, again {n}" for n in range(100)]
    found = notable(log(*many), 150.0, OURS, NAMES)
    assert len(found) == 40
    assert found[-1].endswith("again 99")
