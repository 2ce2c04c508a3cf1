from __future__ import annotations

from pytest_sglang_perf.report.decisions import decisions

MEASURED = [
    {"server": "sbo", "level": level, "facts": {"backends": ["Use fa3 backend"], "disabled": ["Disable X because Y"]}}
    for level in (1, 8)
]


def test_each_decision_is_told_once_and_what_was_switched_off_first() -> None:
    assert decisions([*MEASURED, {"server": "old"}, {"server": "none", "facts": None}]) == [
        "sbo, switched off: Disable X because Y",
        "sbo, chosen: Use fa3 backend",
    ]


def test_of_one_kind_alone() -> None:
    assert decisions(MEASURED, ["disabled"]) == ["sbo, switched off: Disable X because Y"]
