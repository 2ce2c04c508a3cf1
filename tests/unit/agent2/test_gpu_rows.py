"""Rows of nvidia-smi, those recorded from an H200 among them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.gpu import COLUMNS, _Query, _Rounds, _value

RECORDED = Path(__file__).parents[2] / "data" / "h200" / "nvidia-smi_100ms.csv.gz"


def query_for(*columns):
    """A query reduced to these columns."""
    query = _Query()
    for column, names in query._names.items():
        if column not in columns:
            names.clear()
    return query


def test_asks_for_the_columns_of_the_samples_file():
    words = _Query().arguments(100)
    assert words[0] == (
        "--query-gpu=index,power.draw,power.draw.instant,utilization.gpu,memory.used,memory.total,power.limit,"
        "temperature.gpu,clocks.sm,clocks_event_reasons.active,count"
    )
    assert words[1:] == ["--format=csv,noheader,nounits", "-lms", "100"]
    assert ",".join(COLUMNS) == (
        "mono_ns,index,power_w,power_instant_w,utilization_pct,memory_used_mib,memory_total_mib,power_limit_w,"
        "temperature_c,clock_sm_mhz,throttle_hex"
    )


def test_recorded_rows():
    columns = ("index", "power_w", "power_instant_w", "utilization_pct", "memory_used_mib")
    query = query_for(*columns, "temperature_c", "clock_sm_mhz", "throttle_hex")
    with gzip.open(RECORDED, "rt", encoding="ascii") as file:
        lines = file.read().splitlines()
    assert len(lines) > 1000
    for line in lines:
        # Recorded with two columns that are not asked for here: the timestamp and the memory's utilization.
        cells = line.split(", ")
        row = query.parse(", ".join([*cells[1:5], *cells[6:]]))
        assert row is not None
        assert all(row.values()), line
        assert float(row["power_w"]) == float(cells[2])
        assert row["throttle_hex"] == cells[9]


def test_gives_up_fields_one_by_one():
    query = _Query()
    assert query.without("clocks_event_reasons.active")
    assert "clocks_throttle_reasons.active" in query.arguments(1)[0]
    assert query.without("clocks_throttle_reasons.active")
    assert "reasons" not in query.arguments(1)[0]
    assert not query.without("clocks_throttle_reasons.active")
    assert not query.without("not.asked.for")
    assert not query.without("index")


@given(st.text())
def test_any_text_is_a_row_or_none(text):
    row = _Query().parse(text)
    assert row is None or row["index"].isdecimal()


@pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "nan", "inf", "", "1 W"])
def test_no_number_is_empty(cell):
    assert _value("power_w", cell) == ""
    assert _value("throttle_hex", cell) == ""


def test_a_round_is_complete_when_all_gpus_were_read():
    rounds = _Rounds()
    complete = []
    for index in ("0", "1"):
        rounds.add(1, index, "2")
        complete.append(rounds.complete)
    assert complete == [False, True]
    since = []
    for stamp_ns, index in ((2, "0"), (3, "1")):
        rounds.add(stamp_ns, index, "2")
        since.append(rounds.complete_since(2))
    assert since == [False, True]


def test_without_a_count_it_is_when_the_first_comes_again():
    rounds = _Rounds()
    complete = []
    for index in ("0", "1", "0"):
        rounds.add(1, index, "")
        complete.append(rounds.complete)
    assert complete == [False, False, True]
