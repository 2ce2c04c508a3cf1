"""The strict reader: plain data with positions, or one clear error."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite._problems import Place
from pytest_sglang_perf.suite._yaml import read_yaml


def data(text: str):
    return read_yaml(text, "f.yaml").data


def error(text: str) -> str:
    with pytest.raises(SuiteError) as caught:
        read_yaml(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 8", 8),
        ("a: -8", -8),
        ("a: +8", 8),
        ("a: 0", 0),
        ("a: 0.85", 0.85),
        ("a: .5", 0.5),
        ("a: 1e-3", 1e-3),
        ("a: 1.5E+3", 1500.0),
        ("a: true", True),
        ("a: false", False),
        ("a: null", None),
        ("a: ~", None),
        ("a:", None),
        ('a: "on"', "on"),
        ("a: '012'", "012"),
        ("a: |\n  yes\n", "yes\n"),
        ("a: 2026-02-19", "2026-02-19"),
        ("a: 0.5.23", "0.5.23"),
        ("a: Tree", "Tree"),
        ("a: y", "y"),
        ("a: http://h:1/x", "http://h:1/x"),
        ("a: [1, x]", [1, "x"]),
        ("a: &x {b: 1}\nc: *x", {"b": 1}),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    found = data(text)["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "On", "OFF", "Yes", "NO", "True", "FALSE"])
def test_words_that_are_booleans_to_some_readers_are_errors(word: str) -> None:
    message = error(f"a:\n  b: {word}")
    assert message.startswith(f"f.yaml:2:6: a.b: found '{word}': only true and false are booleans here.")
    meant = "true" if word.lower() in ("on", "yes", "true") else "false"
    assert f'Write {meant} for the boolean, or "{word}" in quotes' in message


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("012", "Write 12 for"),
        ("0o14", "Write 14 for"),
        ("00", "Write 0 for"),
        ("1:30", "base 60"),
        ("1:30:00", "base 60"),
        ("2_048", "write 2048"),
        ("0x10", "Write 16,"),
        ("0b11", "Write 3,"),
        (".inf", "infinite"),
        (".NaN", "infinite and undefined"),
    ],
)
def test_numbers_that_readers_take_differently_are_errors(text: str, advice: str) -> None:
    message = error(f"a: {text}")
    assert message.startswith(f"f.yaml:1:4: a: found '{text}'")
    assert advice in message
    assert f'"{text}" in quotes' in message


def test_a_doubtful_key_is_an_error_too() -> None:
    assert "only true and false" in error("on: 1")


def test_a_doubled_key_names_both_lines() -> None:
    assert error("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n") == (
        "f.yaml:5:3: b.c: the key 'c' is written twice, first in line 3; keep one"
    )


def test_all_faults_are_told_at_once_in_file_order() -> None:
    lines = error("a: on\nb: 012\na: 1\n").splitlines()
    assert lines[0] == "3 errors in f.yaml"
    assert [line.split(":")[1] for line in lines[1:]] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "place", "advice"),
    [
        ("a: [1\nb: 2", "2:2", "closing bracket is missing (what is not closed begins in line 1)"),
        ("a:\n\tb: 1", "2:1", "a tab"),
        ("a: b: c", "1:5", "put the text in quotes"),
        ("a: 'x", "1:6", "ends inside a quoted text"),
        ("---\na: 1\n---\nb: 2", "3:1", "a second document"),
        ("a: *x", "1:4", "no anchor"),
        ("a: !!python/object:os.system x", "1:4", "is not supported"),
        ("a: !!str 5", "1:4", "is not supported"),
        ("a: &x [*x]", "1:4", "contains itself"),
        ("a: \x01", "1:1", "U+0001"),
        ("? [1]\n: 2", "1:3", "a key must be a plain word"),
        ("a: {<<: {b: 1}}", "1:5", "extends"),
        ("null: 1", "1:1", "put it in quotes"),
        ("true: 1", "1:1", "put it in quotes"),
    ],
)
def test_broken_syntax_points_at_its_place_and_advises(text: str, place: str, advice: str) -> None:
    message = error(text)
    assert message.startswith(f"f.yaml:{place}: ")
    assert advice in message
    assert "\n" not in message


def test_deep_nesting_and_alias_bombs_end_in_an_error() -> None:
    assert "nested too deeply" in error("{a: " * 5000)
    bomb = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    assert "multiplies" in error(bomb)


def test_secrets_are_not_shown() -> None:
    message = error("env: {HF_TOKEN: 1_234_2}")
    assert message == (
        "f.yaml:1:17: env.HF_TOKEN: found a value (not shown) that readers take differently; put it in quotes"
    )


def test_positions_of_keys_and_values() -> None:
    document = read_yaml("a:\n  b: [10, 20]\n", "f.yaml")
    assert document.place(("a", "b")) == Place(2, 3)
    assert document.values[("a", "b")] == Place(2, 6)
    assert document.values[("a", "b", 1)] == Place(2, 11)
    assert document.place(("a", "b", 7, "x")) == Place(2, 3)  # the nearest thing around what is not there
    assert document.written[("a", "b", 0)] == "10"


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=20)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
    | st.sampled_from(["on", "yes", "012", "1:30", "1_0", "0x1", "null", "~", "", "true", ".inf", "<<", "- a"])
)
_DATA = st.dictionaries(
    _TEXT,
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)


@given(_DATA)
def test_json_is_read_as_what_it_is(value: object) -> None:
    assert data(json.dumps(value, ensure_ascii=False)) == value


@given(st.lists(_SCALARS), st.booleans())
def test_what_another_writer_wrote_is_read_the_same_or_refused(values: list, flow: bool) -> None:
    # The writer puts quotes only around what its own reader would take for something else. What it leaves plain
    # and we find doubtful (08, 0:0) is refused; 1e5, a number by YAML 1.2, is one here.
    values = [value for value in values if not (isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE].*", value))]
    try:
        found = data(yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True))
    except SuiteError as problem:
        assert "in quotes for the text" in str(problem)  # noqa: PT017
    else:
        assert found == values


@given(st.text() | st.text(alphabet="ab:- \n\t[]{},'\"#&*!|>%@?<0123456789._~"))
@example("a: &a\n- *a")
@example("%YAML 1.1")
@example("a: !<tag:yaml.org,2002:int> 3")
@example("\ufeff\ufeffa: 1")
@example("a: 9" + "9" * 5000)
def test_any_text_is_either_read_or_refused_in_one_way(text: str) -> None:
    try:
        document = read_yaml(text, "f.yaml")
    except SuiteError as problem:
        assert "f.yaml" in str(problem).splitlines()[0]  # noqa: PT017
    else:
        assert () in document.values or document.data is None
