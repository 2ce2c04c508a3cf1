"""Bytes to lines: any split, any encoding, progress bars, and secrets."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.logtail import LineSplitter, LogTail
from pytest_sglang_perf.agent.redact import Redactor

DATA = Path(__file__).parents[2] / "data"


def lines_of(stream, cuts, gap_ns=0):
    splitter = LineSplitter(progress_gap_ns=gap_ns)
    places = sorted(min(cut, len(stream)) for cut in cuts)
    found = []
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        found.extend(splitter.feed(stream[start:end], 0))
    return found + splitter.finish(0)


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é漢🙂".encode(), b"\xff", b"word "])), st.data())
def test_no_split_changes_the_lines(parts, data):
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = lines_of(stream, [])
    assert lines_of(stream, cuts) == whole
    for line in whole:
        raw = stream[line.offset :]
        assert raw.decode(errors="replace").startswith(line.text) or "\ufffd" in line.text


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.encode))
def test_text_comes_back_as_it_was(raw):
    (line, *rest) = lines_of(raw + b"\n", range(len(raw)))
    assert (line.text, rest) == (raw.decode(), [])


def test_a_fast_progress_bar_is_thinned_and_its_last_state_is_kept():
    splitter = LineSplitter(progress_gap_ns=250)
    found = []
    for step in range(1000):
        found += splitter.feed(b"\rstep %d" % step, step)
    found += splitter.feed(b"\rdone\nnext\n", 1001)
    texts = [line.text for line in found]
    assert texts[-2:] == ["done", "next"]
    assert len(texts) <= 10
    assert texts[0] == "step 0"


def test_a_line_without_end_is_cut_between_characters():
    splitter = LineSplitter(longest=10)
    found = splitter.feed("漢".encode() * 20, 0) + splitter.finish(0)
    assert "".join(line.text for line in found) == "漢" * 20


@given(
    st.lists(st.sampled_from([b"hunter2-secret", b"x", b"\n", b"hunter2", b"-secret"]), max_size=30),
    st.integers(1, 20),
)
def test_a_secret_is_masked_in_lines_and_in_the_file_at_any_split(parts, step):
    stream = b"".join(parts)
    path = Path(tempfile.mkstemp()[1])
    try:
        tail = LogTail(str(path), Redactor(["hunter2-secret"]))
        found = []
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(stream), step):
                file.write(stream[start : start + step])
                found += tail.read(0)
        found += tail.drain(0)
        tail.close()
        masked = stream.replace(b"hunter2-secret", b"*" * 14)
        assert path.read_bytes() == masked
        assert "\n".join(line.text for line in found) == masked.decode().removesuffix("\n")
    finally:
        path.unlink()
