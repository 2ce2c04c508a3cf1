"""What a baseline file holds, and its text.

A file belongs to one server config on one node class. Below workload and level it keeps every stored boot with the
raw value of each metric in each trial, never averages: what is a fair comparison is decided when comparing. Each boot
carries where it comes from, the fingerprints of its config and workload among it, so that boots of an earlier
content are never taken for boots of the present one.

The text is stable: sorted keys, six significant digits, one line for each metric, so that git shows what changed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.errors import BaselineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["FORMAT", "BaselineFile", "StoredBoot", "columns", "level_key", "rounded"]

FORMAT = 1

Levels = dict[str, tuple["StoredBoot", ...]]


@dataclass(frozen=True)
class StoredBoot:
    """The trials of one boot at one level of one workload.

    Attributes:
        config: fingerprint of the server config.
        workload: fingerprint of the workload.
        session: id of the pytest session that measured it; boots of one session share a day's conditions.
        boot: number of the boot within its session and config, from 1.
        recorded: when, as ``2026-11-29T15:04:05Z``.
        sglang: version of the server; ``driver`` of the GPUs ("" without); ``plugin`` of this package.
        trials: metric -> its value in each trial, None where that trial does not have it.
        boot_time: seconds from spawn to ready, or None.
    """

    config: str
    workload: str
    session: str
    boot: int
    recorded: str
    trials: Mapping[str, tuple[float | None, ...]]
    sglang: str = ""
    driver: str = ""
    plugin: str = ""
    boot_time: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Builtin types, rounded as they are stored."""
        return {
            "config": self.config,
            "workload": self.workload,
            "session": self.session,
            "boot": self.boot,
            "recorded": self.recorded,
            "sglang": self.sglang,
            "driver": self.driver,
            "plugin": self.plugin,
            "boot_time": rounded(self.boot_time),
            "trials": {name: [rounded(value) for value in values] for name, values in self.trials.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StoredBoot:
        """The opposite of ``to_dict``; raises KeyError, TypeError or ValueError on anything else."""
        return cls(
            **{key: str(data[key]) for key in ("config", "workload", "session", "recorded")},
            **{key: str(data.get(key, "")) for key in ("sglang", "driver", "plugin")},
            boot=int(data["boot"]),
            boot_time=_number(data.get("boot_time")),
            trials={str(name): tuple(map(_number, values)) for name, values in data["trials"].items()},
        )


@dataclass(frozen=True)
class BaselineFile:
    """All stored boots of one server config on one node class: workload name -> level -> boots, oldest first."""

    server: str
    node_class: str
    node: Mapping[str, Any] = field(default_factory=dict)
    workloads: Mapping[str, Mapping[str, tuple[StoredBoot, ...]]] = field(default_factory=dict)

    def boots(self, *, config: str, workload: str, level: float, metric: str) -> list[tuple[tuple[float, ...], str]]:
        """Each matching boot's trial values of one metric with its session, oldest boot first.

        ``config`` and ``workload`` are fingerprints: boots of an earlier content do not match. Boots without the
        metric are left out.
        """
        found = []
        for boot in self._matching(config, workload, level):
            values = tuple(value for value in boot.trials.get(metric, ()) if value is not None)
            if values:
                found.append((values, boot.session))
        return found

    def has(self, *, config: str, workload: str, level: float) -> bool:
        """Whether any boot of this config, workload (fingerprints) and level is stored."""
        return bool(self._matching(config, workload, level))

    def stale(self, *, config: str) -> bool:
        """Whether boots are stored, but only of an earlier content of the config."""
        configs = {boot.config for boot in self._all()}
        return bool(configs) and config not in configs

    def _matching(self, config: str, workload: str, level: float) -> list[StoredBoot]:
        key = level_key(level)
        return [
            boot
            for levels in self.workloads.values()
            for boot in levels.get(key, ())
            if boot.config == config and boot.workload == workload
        ]

    def _all(self) -> Iterable[StoredBoot]:
        return (boot for levels in self.workloads.values() for boots in levels.values() for boot in boots)

    def to_text(self) -> str:
        """The file's content."""
        data = {
            "format": FORMAT,
            "server": self.server,
            "node_class": self.node_class,
            "node": dict(self.node),
            "workloads": {
                name: {level: [boot.to_dict() for boot in boots] for level, boots in levels.items()}
                for name, levels in self.workloads.items()
            },
        }
        return _dump(data) + "\n"

    @classmethod
    def from_text(cls, text: str, *, file: str) -> BaselineFile:
        """Read a file's content; ``file`` is how errors name it.

        Raises:
            BaselineError: it is damaged, or written by a newer version.
        """
        advice = f"Take back an intact version (git checkout -- {file}), or remove the file and record it anew."
        try:
            data = json.loads(text)
        except ValueError as error:
            if any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines()):
                raise BaselineError(
                    f"the baseline file {file} holds git's conflict marks. Keep one side "
                    f"(git checkout --ours or --theirs -- {file}); the other can be measured again."
                ) from None
            raise BaselineError(f"the baseline file {file} is damaged: {error}. {advice}") from None
        version = data.get("format") if isinstance(data, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise BaselineError(
                f"the baseline file {file} has format {version}, and this version of pytest-sglang-perf reads up to "
                f"{FORMAT}. Upgrade pytest-sglang-perf."
            )
        if version != FORMAT:
            raise BaselineError(f"the baseline file {file} is not one of ours (format {version!r}). {advice}")
        try:
            workloads = {
                str(name): {str(level): tuple(map(StoredBoot.from_dict, boots)) for level, boots in levels.items()}
                for name, levels in data["workloads"].items()
            }
            return cls(str(data["server"]), str(data["node_class"]), dict(data["node"]), workloads)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BaselineError(f"the baseline file {file} is not as expected: {detail}. {advice}") from None


def columns(trials: Sequence[Mapping[str, float]]) -> dict[str, tuple[float | None, ...]]:
    """From one mapping of metrics for each trial to one row of trials for each metric."""
    names = sorted({name for trial in trials for name in trial})
    return {name: tuple(trial.get(name) for trial in trials) for name in names}


def level_key(level: float) -> str:
    """A level as it stands in files: ``1024`` or ``0.5``."""
    return str(int(level)) if float(level).is_integer() else repr(float(level))


def rounded(value: float | None) -> float | int | None:
    """Six significant digits, which is more than any measurement of ours is good for; None stays None.

    Raises:
        ValueError: the value is infinite or not a number.
    """
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a measurement")
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _dump(value: Any, indent: str = "") -> str:
    """JSON with sorted keys in which a list of plain values takes one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_dump(value[key], inner)}" for key in _ordered(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _ordered(keys: Iterable[str]) -> list[str]:
    """Sorted, with numbers (levels) by size."""

    def place(key: str) -> tuple[int, float, str]:
        try:
            number = float(key)
        except ValueError:
            return (1, 0.0, key)
        return (0, number, key)

    return sorted(keys, key=place)
