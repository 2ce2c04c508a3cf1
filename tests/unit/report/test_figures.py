from __future__ import annotations

import pytest

from pytest_sglang_perf.report.figures import estimate, figure, interval, percent, seconds


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1520.4, "tok/s", "1,520 tok/s"),
        (20.123, "tok/s", "20.1 tok/s"),
        (0.02341, "s", "23.4 ms"),
        (0.0000123, "s", "12.3 µs"),
        (12.5, "s", "12.5 s"),
        (0.0, "s", "0 µs"),
        (0.5, "", "0.500"),
        (-3.25, "W", "-3.25 W"),
        (float("nan"), "W", "nan W"),
    ],
)
def test_figure(value: float, unit: str, text: str) -> None:
    assert figure(value, unit) == text


def test_both_ends_of_an_interval_have_one_unit() -> None:
    assert interval(0.9, 1.1, "s") == "[0.900 .. 1.10] s"
    assert interval(0.0009, 0.0011, "s") == "[0.900 .. 1.10] ms"
    assert interval(float("-inf"), 1.0, "s") == "[unknown]"


@pytest.mark.parametrize(("ratio", "text"), [(1.0, "+0.0 %"), (0.968, "-3.2 %"), (1.206, "+20.6 %")])
def test_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text


@pytest.mark.parametrize(("value", "text"), [(4.21, "4.2 s"), (42.4, "42 s"), (185.0, "3 min 05 s")])
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_an_estimate_has_its_unit_once() -> None:
    assert estimate(1520, 1498, 1543, "tok/s") == "1,520 [1,498 .. 1,543] tok/s"
    assert estimate(0.0234, 0.022, 0.0251, "s") == "23.4 [22.0 .. 25.1] ms"
    assert estimate(0.0329, 0.0228, 0.0473, "1") == "0.0329 [0.0228 .. 0.0473]"
    assert estimate(1520, float("nan"), 1.0, "tok/s") == "1,520 tok/s [unknown]"
