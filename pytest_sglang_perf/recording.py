"""From a finished run to the stored side: baselines with ``--update-baselines``, and the history always.

Only the controller comes here, with what the workers' reports brought. What may be written is decided by
``baselines.plan_update``; whether something *moved* is a verdict like any other, corrected over the whole file.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf import metrics, verdict
from pytest_sglang_perf.baselines import (
    BaselineStore,
    Measured,
    NodeClass,
    StoredBoot,
    Update,
    describe_change,
    plan_update,
)
from pytest_sglang_perf.unsettled import reasons

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_sglang_perf.baselines import BaselineFile
    from pytest_sglang_perf.report.run_file import RunRecord

__all__ = ["moved", "stored_boot", "update_baselines", "write_history"]

#: Over all comparisons of one file (Holm), an unchanged server is called moved at most this often. With a promise of
#: 1 in 100 sessions over several files, it must be well below that for one.
MOVED_ALPHA = 0.002


def update_baselines(record: RunRecord, root: Path) -> list[str]:
    """Write what may be written, and say for each server config what happened.

    Raises:
        BaselineError: a file is damaged or cannot be written.
    """
    store = BaselineStore(root)
    lines = []
    node = _node_class(record)
    for server, measured in _by_server(record).items():
        stored = store.load(node, server) if node is not None else None
        assert node is not None
        update = plan_update(
            stored,
            measured,
            moved=moved(stored, measured, _margins(record)),
            server=server,
            node_class=node,
        )
        if update.writes:
            store.save(node, update.after)
        lines.append(_told(server, update, store.path(node, server)))
    return lines


def write_history(record: RunRecord, root: Path) -> None:
    """Append every judged boot to the history beside the baselines.

    Raises:
        BaselineUnwritable: the folder cannot be written.
    """
    node = _node_class(record)
    if node is None or not (root / node.slug).is_dir():
        return  # no baselines are kept for this node class, so no history either
    store = BaselineStore(root)
    entries: dict[str, list[dict[str, Any]]] = {}
    for one in record.measured:
        boot = stored_boot(one, record).to_dict()
        entries.setdefault(one["server"], []).append({"level": one["level"], "workload_name": one["workload"], **boot})
    for server, lines in entries.items():
        store.append_history(node, server, lines)


def moved(stored: BaselineFile | None, measured: list[Measured], margins: Mapping[str, float]) -> bool:
    """Whether anything differs from the stored boots by more than its margin, either way.

    The p-values of all metrics, levels and both directions are corrected together by Holm's step-down procedure
    (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).
    """
    if stored is None:
        return False
    p_values = []
    for one in measured:
        if not one.boots:
            continue
        first = one.boots[0]
        for name, margin in margins.items():
            metric = metrics.REGISTRY.get(name)
            if metric is None or metric.exact:
                continue
            new = [verdict.Boot(_values(boot, name), boot.session) for boot in one.boots if _values(boot, name)]
            old = _stored(stored, first, one.level, name)
            if not new or not old:
                continue
            noise = verdict.learn_noise(_histories(stored, first, name), leave_out=level_name(one.level))
            used = noise.margin(margin)
            p_values.append(verdict.at_least(new, old, 1 - used, noise=noise).p_value)
            p_values.append(verdict.at_most(new, old, 1 + used, noise=noise).p_value)
    return bool(p_values) and min(verdict.holm(p_values)) <= MOVED_ALPHA


def level_name(level: float) -> str:
    return f"{level:g}"


def _values(boot: StoredBoot, metric: str) -> tuple[float, ...]:
    return tuple(value for value in boot.trials.get(metric, ()) if value is not None)


def _stored(stored: BaselineFile, like: StoredBoot, level: float, metric: str) -> list[verdict.Boot]:
    found = stored.boots(config=like.config, workload=like.workload, level=level, metric=metric)
    return [verdict.Boot(values, session) for values, session in found]


def _histories(stored: BaselineFile, like: StoredBoot, metric: str) -> dict[str, list[verdict.Boot]]:
    histories = {}
    for levels in stored.workloads.values():
        for key in levels:
            boots = _stored(stored, like, float(key), metric)
            if boots:
                histories[level_name(float(key))] = boots
    return histories


def _margins(record: RunRecord) -> dict[str, float]:
    usual = {m.name: m.margin for m in metrics.REGISTRY.values() if m.margin is not None}
    return {**usual, **record.session.get("margins", {})}


def _node_class(record: RunRecord) -> NodeClass | None:
    slug = record.session.get("node_class")
    return NodeClass(slug, record.session.get("node_details") or {}) if slug else None


def _by_server(record: RunRecord) -> dict[str, list[Measured]]:
    """What was measured of each config that a selected test names as ``server``, with why not to store it."""
    problems = _problems(record)
    groups: dict[str, dict[tuple[str, float], list[StoredBoot]]] = {}
    raw: dict[tuple[str, str, float], list[Mapping[str, Any]]] = {}
    for one in record.measured:
        if one["is_server"]:
            levels = groups.setdefault(one["server"], {})
            levels.setdefault((one["workload"], one["level"]), []).append(stored_boot(one, record))
            raw.setdefault((one["server"], one["workload"], one["level"]), []).append(one)
    for server in problems:
        groups.setdefault(server, {})
    return {
        server: [
            Measured(
                workload,
                level,
                tuple(boots),
                (*problems.get(server, ()), *_unstable(raw[server, workload, level])),
                asked=frozenset(int(one["boot"]) for one in raw[server, workload, level] if one.get("asked_for", True)),
            )
            for (workload, level), boots in levels.items()
        ]
        for server, levels in groups.items()
    }


def _unstable(measured: list[Mapping[str, Any]]) -> list[str]:
    """Why the boots of one level would teach a wrong mean or a wrong noise."""
    columns = [one["columns"].get("output_throughput", ()) for one in measured]
    slowed = [text for one in measured for trial in one["trials"] for text in trial.get("slowed", ())]
    return [f"unstable: {reason}" for reason in reasons([values for values in columns if values], slowed)]


def _problems(record: RunRecord) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for test in record.tests:
        error = test["error"] or {}
        if error.get("kind") == "crashed":
            where = f" at concurrency {error['level']}" if error.get("level") else ""
            text = f"the server crashed{where} ({error['class']})"
        elif error.get("kind") == "invalid":
            text = f"a trial was invalid ({test['nodeid']})"
        else:
            continue
        server = error.get("server") or test["server"]
        if text not in found.setdefault(server, []):
            found[server].append(text)
    return found


def stored_boot(one: Mapping[str, Any], record: RunRecord) -> StoredBoot:
    """An entry of ``record.measured`` as baselines and the history keep it."""
    started = datetime.fromtimestamp(float(one["started"]), UTC)
    return StoredBoot(
        config=one["config"],
        workload=one["workload_fingerprint"],
        session=one["session"],
        boot=int(one["boot"]),
        recorded=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        trials={name: tuple(values) for name, values in one["columns"].items()},
        sglang=str(one["version"]),
        driver=str(record.session.get("node_details", {}).get("driver") or ""),
        plugin=str(record.session.get("plugin_version") or ""),
        boot_time=one["boot_time"],
    )


def _told(server: str, update: Update, path: Path) -> str:
    head = f"baseline {path}: " + ("written" if update.writes else "unchanged")
    return "\n".join([head, *(f"  {server}: {line}" for line in describe_change(update).splitlines())])
