from __future__ import annotations

import pytest

from pytest_sglang_perf.server.lines import parse_line
from pytest_sglang_perf.server.versions import NEW_ARGUMENTS, OLDEST, VersionGuess


def guess(*lines: str) -> str | None:
    found = VersionGuess()
    for text in lines:
        found.feed(parse_line(text))
    return found.version


def test_no_argument_names_two_releases() -> None:
    names = [name for names in NEW_ARGUMENTS.values() for name in names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("release", NEW_ARGUMENTS)
@pytest.mark.parametrize(
    "form", ["server_args=ServerArgs(tp_size=1, {}=None)", "server_args={{'tp_size': 1, '{}': None}}"]
)
def test_each_name_tells_its_release_in_both_forms(release: str, form: str) -> None:
    for name in NEW_ARGUMENTS[release]:
        assert guess("[2026-02-12 11:38:29] " + form.format(name)) == release


def test_the_newest_name_counts() -> None:
    dump = "[2026-02-12 11:38:29] server_args=ServerArgs(mamba_backend='a', enable_watermark=False, moe_dp_size=1)"
    assert guess(dump) == "0.5.22"


def test_a_dump_without_any_known_name_is_older() -> None:
    assert guess("[2025-02-12 11:38:29] server_args=ServerArgs(model_path='x', tp_size=1)") == OLDEST


def test_the_usage_text_tells_as_well() -> None:
    assert guess("                    [--enable-watermark] [--tp-size TP_SIZE]") == "0.5.22"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("sglang==0.5.6.post2", "0.5.6.post2"),
        ("sglang: 0.5.10", "0.5.10"),
        ("SGLang version: 0.5.16", "0.5.16"),
        ("/venv/sglang/launch_server.py:51: UserWarning: 'python -m sglang.launch_server' is", "0.5.10 or newer"),
        ("[2026-02-12 11:38:29] Init parallel begin.", "0.5.21 or newer"),
        ("a line that says nothing", None),
    ],
)
def test_other_signs(text: str, release: str | None) -> None:
    assert guess(text) == release
