from __future__ import annotations

from pytest_sglang_perf.baselines import StoredBoot


def boot(number: int, *, session: str = "s1", config: str = "c1", workload: str = "w1", **trials) -> StoredBoot:
    """One boot; further keywords are metrics with their trial values."""
    return StoredBoot(
        config=config,
        workload=workload,
        session=session,
        boot=number,
        recorded="2026-02-19T10:00:00Z",
        sglang="0.5.10",
        driver="580.95",
        plugin="0.1.0",
        trials={name: tuple(values) for name, values in (trials or {"output_throughput": (1500, 1510)}).items()},
    )
