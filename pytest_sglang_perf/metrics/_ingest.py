"""Where raw records become seconds. The only place where a simulated node's time scale is applied."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["GpuSample", "Request", "Window", "ingest", "ingest_gpu", "read_gpu_samples", "read_records", "seconds"]


@dataclass(frozen=True)
class Window:
    """The steady window, CLOCK_MONOTONIC nanoseconds of the node; open at its start, closed at its end."""

    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, window: Window | Mapping[str, int]) -> Window:
        """From the ``window`` of a trial's result."""
        return window if isinstance(window, Window) else cls(int(window["start_ns"]), int(window["end_ns"]))

    def __contains__(self, moment_ns: object) -> bool:
        return isinstance(moment_ns, int) and self.start_ns < moment_ns <= self.end_ns


def seconds(ns: float, time_scale: float) -> float:
    """Nanoseconds of this world to seconds of the world that is measured."""
    return ns / 1e9 * time_scale


@dataclass(frozen=True, slots=True)
class Request:
    """One request; times still in real nanoseconds.

    ``chunks`` holds arrival and number of tokens, events that were read together merged into one: the client saw
    them at one moment, and a gap of nothing between them would be an artefact of reading.
    """

    status: str
    scheduled_ns: int
    sent_ns: int
    end_ns: int | None
    chunks: tuple[tuple[int, float], ...]
    counted: bool
    prompt_tokens: int | None
    cached_tokens: int | None

    @property
    def tokens(self) -> float:
        """Output tokens by the server's count."""
        return sum(tokens for _, tokens in self.chunks)


def _chunks(record: Mapping[str, Any]) -> tuple[tuple[tuple[int, float], ...], bool]:
    """Tokens of each arrival, and whether anybody counted them.

    Where the server gives only a total, the total is spread evenly over the chunks; without even that the number
    is unknown and a chunk counts as one token in nothing but its place in time.
    """
    raw = record["chunks"]
    if not raw:
        return (), True
    merged: dict[int, float] = {}
    if all(cumulative is not None for _, cumulative in raw):
        before = 0
        for arrival, cumulative in raw:
            merged[arrival] = merged.get(arrival, 0.0) + cumulative - before
            before = cumulative
        return tuple(merged.items()), True
    total = record.get("output_tokens")
    share = total / len(raw) if total else 1.0
    for arrival, _ in raw:
        merged[arrival] = merged.get(arrival, 0.0) + share
    return tuple(merged.items()), bool(total)


def ingest(records: Iterable[Mapping[str, Any]]) -> Iterator[Request]:
    """Records of the load engine, those that were never sent left out."""
    for record in records:
        if record.get("sent_ns") is None:
            continue
        chunks, counted = _chunks(record)
        yield Request(
            status=record["status"],
            scheduled_ns=record["scheduled_ns"],
            sent_ns=record["sent_ns"],
            end_ns=record.get("end_ns"),
            chunks=chunks,
            counted=counted,
            prompt_tokens=record.get("prompt_tokens"),
            cached_tokens=record.get("cached_tokens"),
        )


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records file of a trial, JSON lines."""
    with Path(path).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU; None where the driver does not say."""

    mono_ns: int
    index: int
    power_w: float | None
    utilization_pct: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    power_limit_w: float | None
    temperature_c: float | None
    throttle: int | None


GPU_COLUMNS = (
    "mono_ns",
    "index",
    "power_w",
    "power_instant_w",
    "utilization_pct",
    "memory_used_mib",
    "memory_total_mib",
    "power_limit_w",
    "temperature_c",
    "clock_sm_mhz",
    "throttle_hex",
)


def read_gpu_samples(path: str | Path) -> list[dict[str, str]]:
    """The GPU samples file of a trial: CSV in the order of ``GPU_COLUMNS``, a header line or none."""
    rows = []
    with Path(path).open(encoding="utf-8") as lines:
        for line in lines:
            values = line.strip().split(",")
            if len(values) == len(GPU_COLUMNS) and values[0].strip().isdigit():
                rows.append(dict(zip(GPU_COLUMNS, (value.strip() for value in values), strict=True)))
    return rows


def ingest_gpu(samples: Iterable[Mapping[str, Any]]) -> list[GpuSample]:
    """Readings in order of time. Power is the driver's one-second average where both are given.

    Instantaneous power catches peaks between two readings, the average what lies between them: for energy over a
    window that is what counts.
    """
    rows = []
    for sample in samples:
        power = _number(sample.get("power_w"))
        throttle = str(sample.get("throttle_hex") or "").strip()
        rows.append(
            GpuSample(
                mono_ns=int(sample["mono_ns"]),
                index=int(sample["index"]),
                power_w=power if power is not None else _number(sample.get("power_instant_w")),
                utilization_pct=_number(sample.get("utilization_pct")),
                memory_used_mib=_number(sample.get("memory_used_mib")),
                memory_total_mib=_number(sample.get("memory_total_mib")),
                power_limit_w=_number(sample.get("power_limit_w")),
                temperature_c=_number(sample.get("temperature_c")),
                throttle=int(throttle, 16) if throttle else None,
            )
        )
    rows.sort(key=lambda row: row.mono_ns)
    return rows


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value)
