from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.baselines import BaselineFile, StoredBoot, columns, level_key
from pytest_sglang_perf.baselines.model import rounded
from pytest_sglang_perf.errors import BaselineError

from .conftest import boot

_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)
_BOOTS = st.builds(
    StoredBoot,
    config=_WORDS,
    workload=_WORDS,
    session=_WORDS,
    boot=st.integers(1, 99),
    recorded=_WORDS,
    sglang=_WORDS,
    driver=_WORDS,
    plugin=_WORDS,
    boot_time=st.none() | _NUMBERS,
    trials=st.dictionaries(_WORDS, st.lists(st.none() | _NUMBERS, max_size=3).map(tuple), max_size=3),
)
_FILES = st.builds(
    BaselineFile,
    server=_WORDS,
    node_class=_WORDS,
    node=st.dictionaries(_WORDS, st.lists(st.integers() | _WORDS, max_size=2) | _WORDS, max_size=3),
    workloads=st.dictionaries(
        _WORDS,
        st.dictionaries(
            st.sampled_from(["1", "10", "256", "0.5"]), st.lists(_BOOTS, max_size=2).map(tuple), max_size=2
        ),
        max_size=2,
    ),
)


@given(_FILES)
def test_text_is_json_and_stable_from_the_first_writing_on(file: BaselineFile) -> None:
    text = file.to_text()
    json.loads(text)
    assert text.endswith("}\n")
    again = BaselineFile.from_text(text, file="f")
    assert again.to_text() == text
    assert BaselineFile.from_text(again.to_text(), file="f") == again


@given(_NUMBERS)
def test_rounding_keeps_six_digits(value: float) -> None:
    short = rounded(value)
    assert short is not None
    assert math.isclose(short, value, rel_tol=5.1e-6) or abs(value) < 1e-300
    assert rounded(short) == short


def test_infinite_values_are_never_stored() -> None:
    with pytest.raises(ValueError, match="inf is not a measurement"):
        boot(1, output_throughput=[math.inf]).to_dict()


def test_the_text_reads_well_in_a_diff() -> None:
    file = BaselineFile(
        "sbo", "sim-x", {"simulated": "x"}, {"short": {"1024": (boot(1, ttft_p50=[1 / 3, None]),), "8": ()}}
    )
    lines = file.to_text().splitlines()
    assert '            "ttft_p50": [0.333333, null]' in lines
    assert lines[1] == '  "format": 1,'
    assert lines.index('      "8": [],') < lines.index('      "1024": [')  # levels by size


def test_boots_are_found_by_fingerprint_never_by_name() -> None:
    boots = (boot(1, ttft_p50=[1, None, 2]), boot(2, config="old", ttft_p50=[9]), boot(3, other=[3]))
    file = BaselineFile("sbo", "c", {}, {"short": {"8": boots}})
    assert file.boots(config="c1", workload="w1", level=8, metric="ttft_p50") == [((1, 2), "s1")]
    assert file.boots(config="c1", workload="w1", level=8.0, metric="ttft_p50") == [((1, 2), "s1")]
    assert file.boots(config="c1", workload="w2", level=8, metric="ttft_p50") == []
    assert file.boots(config="c1", workload="w1", level=9, metric="ttft_p50") == []
    assert file.has(config="old", workload="w1", level=8)
    assert not file.has(config="new", workload="w1", level=8)
    assert file.stale(config="new")
    assert not file.stale(config="old")
    assert not BaselineFile("sbo", "c").stale(config="new")


def test_columns() -> None:
    assert columns([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": (1.0, 3.0), "b": (2.0, None)}


@pytest.mark.parametrize(("level", "key"), [(1, "1"), (1024.0, "1024"), (0.5, "0.5"), (10**7, "10000000")])
def test_level_keys(level: float, key: str) -> None:
    assert level_key(level) == key


GOOD = BaselineFile("sbo", "c", {}, {"short": {"8": (boot(1, ttft_p50=[1.0]),)}}).to_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.json is damaged: Expecting value"),
        (GOOD[: len(GOOD) // 2], "f.json is damaged"),
        ("[]", "f.json is not one of ours"),
        ("{}", "f.json is not one of ours"),
        (
            GOOD.replace('"format": 1', '"format": 7'),
            "has format 7, and this version of pytest-sglang-perf reads up to 1. Upgrade",
        ),
        (GOOD.replace('"session"', '"sesion"'), "'session' is missing"),
        (GOOD.replace('"trials": {', '"trials": 3, "x": {'), "f.json is not as expected"),
        (GOOD.replace("[1]", '["1"]'), "'1' is not a number"),
        (GOOD.replace("[1]", "[NaN]"), "nan is not a number"),
        (
            GOOD.replace('  "workloads": {', "<<<<<<< HEAD\n{"),
            "holds git's conflict marks. Keep one side (git checkout --ours",
        ),
    ],
)
def test_damaged_files_say_what_to_do(text: str, expected: str) -> None:
    assert text != GOOD
    with pytest.raises(BaselineError) as caught:
        BaselineFile.from_text(text, file="f.json")
    message = str(caught.value)
    assert expected in message
    assert "git checkout" in message or "Upgrade" in message


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["workloads", "server", "node_class", "node", "a"]), x),
    ).map(lambda d: json.dumps({"format": 1} | d) if isinstance(d, dict) else json.dumps(d))
)
def test_any_text_is_read_or_refused_in_one_way(text: str) -> None:
    try:
        BaselineFile.from_text(text, file="f.json").to_text()
    except BaselineError as error:
        assert "f.json" in str(error)  # noqa: PT017
