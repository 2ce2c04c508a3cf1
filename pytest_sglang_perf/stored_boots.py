"""From baseline files and run files to boots by workload and level, as comparisons take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_sglang_perf.comparison import Key, LevelBoots
from pytest_sglang_perf.recording import stored_boot
from pytest_sglang_perf.verdict import Boot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_sglang_perf.baselines import BaselineFile, StoredBoot
    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["Config", "boots_of", "of_baseline", "of_run"]


class Config(NamedTuple):
    """What is stored of one server config.

    ``stale`` counts the boots that are left out of ``levels`` because they belong, at some level, to an earlier content
    of the config or of the workload.
    """

    server: str
    fingerprint: str
    levels: dict[Key, LevelBoots]
    stale: int = 0

    @property
    def recorded(self) -> str:
        """When the newest boot ran."""
        return max((level.recorded for level in self.levels.values()), default="")

    @property
    def sglang(self) -> list[str]:
        """Versions of the server, without repetition."""
        return sorted({level.sglang for level in self.levels.values() if level.sglang})


def of_baseline(file: BaselineFile) -> Config:
    """The boots of a baseline file that belong to the newest content of its config and workloads."""
    return _grouped(
        file.server,
        [
            (name, float(level), boot)
            for name, levels in file.workloads.items()
            for level, boots in levels.items()
            for boot in boots
        ],
    )


def of_run(record: RunRecord) -> dict[str, Config]:
    """What a run measured, by name of the server config."""
    found: dict[str, list[tuple[str, float, StoredBoot]]] = {}
    for one in record.measured:
        entry = one["workload"] or one["workload_fingerprint"], float(one["level"]), stored_boot(one, record)
        found.setdefault(one["server"], []).append(entry)
    return {server: _grouped(server, entries) for server, entries in found.items()}


def boots_of(stored: Iterable[StoredBoot], metric: str) -> tuple[Boot, ...]:
    """One metric of some boots, as the verdict package takes them; boots without it are left out."""
    found = []
    for boot in stored:
        values = tuple(value for value in boot.trials.get(metric, ()) if value is not None)
        if metric == "boot_time" and not values and boot.boot_time is not None:
            values = (boot.boot_time,)
        if values:
            found.append(Boot(values, boot.session))
    return tuple(found)


def _grouped(server: str, entries: list[tuple[str, float, StoredBoot]]) -> Config:
    """Levels of the newest content; what belongs to a boot as a whole is taken once, under no level."""
    newest = max((boot for _, _, boot in entries), key=lambda boot: boot.recorded, default=None)
    if newest is None:
        return Config(server, "", {})
    of_config = [entry for entry in entries if entry[2].config == newest.config]
    contents: dict[str, StoredBoot] = {}  # the newest boot of each workload shows the workload's newest content
    for workload, _, boot in of_config:
        if workload not in contents or boot.recorded >= contents[workload].recorded:
            contents[workload] = boot
    fresh = [entry for entry in of_config if entry[2].workload == contents[entry[0]].workload]
    used = set(map(id, fresh))
    left_out = [entry[2] for entry in entries if id(entry) not in used]
    stale = {(boot.session, boot.boot, boot.config) for boot in left_out}
    by_level: dict[Key, list[StoredBoot]] = {}
    for workload, level, boot in fresh:
        by_level.setdefault((workload, level), []).append(boot)
    levels = {key: _level(server, key, boots) for key, boots in by_level.items()}
    whole = list({(boot.session, boot.boot): boot for _, _, boot in fresh}.values())
    times = boots_of(sorted(whole, key=lambda b: (b.recorded, b.boot)), "boot_time")
    if times:
        levels["", None] = LevelBoots(server, newest.config, "", "", None, {"boot_time": times}, newest.recorded)
    return Config(server, newest.config, levels, len(stale))


def _level(server: str, key: Key, boots: list[StoredBoot]) -> LevelBoots:
    newest = max(boots, key=lambda boot: boot.recorded)
    names = sorted({name for boot in boots for name in boot.trials} - {"boot_time"})
    values = {name: found for name in names if (found := boots_of(boots, name))}
    workload, level = key
    return LevelBoots(server, newest.config, workload, newest.workload, level, values, newest.recorded, newest.sglang)
