from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.server.lines import LONGEST_LINE, LineSplitter, parse_line

MESSAGE = "Load weight begin. avail mem=93.10 GB"
STAMPED = "[2026-02-12 11:38:29 TP0 EP0] " + MESSAGE


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}",
        "2026-02-12T11:38:29.123456789Z stdout F {}",
        "2026-02-12T11:38:29.123456789Z {}",
        "2026-02-12T11:38:29+01:00 stderr F {}",
        "(SGLangEngine pid=952, ip=10.0.0.7) {}",
        "(WorkerDict pid=1387612) {}",
        "\x1b[36m(RolloutWorker pid=9)\x1b[0m {}",
        "sglang-1  | {}",
        "Feb 12 11:38:29 node7 sglang[4242]: {}",
        "3: {}",
        "2025-03-07 23:50:27,531 - __main__ - INFO - {}",
        "2025-02-04 21:21:40 {}",
        "[2025-11-06T02:10:00.703Z] {}",
        "    {}",
        "[1,3]<stderr>: {}",
        "sglang-1  | (SGLangEngine pid=952) {}",
        "\x1b[1;33m{}\x1b[0m",
    ],
)
def test_wrappers_are_taken_off(wrapped: str) -> None:
    line = parse_line(wrapped.format(STAMPED))
    assert (line.kind, line.message, line.ranks) == ("log", MESSAGE, "TP0 EP0")
    assert line.stamp == "2026-02-12 11:38:29"


@pytest.mark.parametrize(
    ("text", "ranks", "stamp"),
    [
        ("[17:43:27 TP1] " + MESSAGE, "TP1", "17:43:27"),
        ("[TP5 EP5] " + MESSAGE, "TP5 EP5", ""),
        ("[2026-02-12 11:38:29] [ERROR] " + MESSAGE, "", "2026-02-12 11:38:29"),
        ("[2026-02-12 11:38:29] INFO server_args.py:1483: " + MESSAGE, "", "2026-02-12 11:38:29"),
        ("[2026-02-12 11:38:29] INFO " + MESSAGE, "", "2026-02-12 11:38:29"),
        (
            "\x1b[2m2026-08-31T19:41:52.922414Z\x1b[0m \x1b[31mERROR\x1b[0m \x1b[2mengine.x\x1b[0m\x1b[2m:\x1b[0m "
            + MESSAGE,
            "",
            "",
        ),
    ],
)
def test_other_loggers(text: str, ranks: str, stamp: str) -> None:
    line = parse_line(text)
    assert (line.kind, line.message, line.ranks, line.stamp) == ("log", MESSAGE, ranks, stamp)


@pytest.mark.parametrize("head", ["", "026-05-28 00:11:09.816 DP0 TP0 EP0] ", "[...] ", "2026-01-01 sglang ERROR "])
def test_an_exception_under_a_damaged_head(head: str) -> None:
    line = parse_line(head + "Scheduler hit an exception: Traceback (most recent call last):")
    assert line.kind == "log"
    assert line.message.startswith("Scheduler hit an exception")


def test_indentation_below_torchrun_is_kept() -> None:
    assert parse_line("[rank0]:     raise ValueError(").text == "    raise ValueError("
    assert parse_line("[rank0]: ValueError: x").text == "ValueError: x"


def test_indentation_below_ray_is_kept() -> None:
    line = parse_line('(WorkerDict pid=1)   File "/x/scheduler.py", line 3, in run')
    assert line.text == '  File "/x/scheduler.py", line 3, in run'
    assert line.kind == "more"


@pytest.mark.parametrize(
    ("ranks", "found"),
    [("", ""), (" DP1", "DP1"), (" DP0 PP1 ATTN_CP0 MOE_DP2 TP3 EP3", "DP0 PP1 ATTN_CP0 MOE_DP2 TP3 EP3")],
)
def test_ranks(ranks: str, found: str) -> None:
    assert parse_line(f"[2026-02-12 11:38:29{ranks}] x").ranks == found


@pytest.mark.parametrize(
    ("stamp", "fraction"),
    [("2026-02-12 11:38:29", 0.0), ("2026-02-12 11:38:29.250", 0.25), ("2026-02-12 11:38:29,5", 0.5)],
)
def test_times_with_and_without_milliseconds(stamp: str, fraction: float) -> None:
    seconds = parse_line(f"[{stamp} TP0] x").seconds
    assert seconds is not None
    assert seconds % 60 == 29 + fraction
    assert parse_line("no stamp").seconds is None
    assert parse_line("[2026-19-99 99:38:29] x").seconds is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[2026-02-12 11:38:29] INFO:     Application startup complete.", "uvicorn"),
        ("INFO:     Started server process [7]", "uvicorn"),
        ('[2026-02-12 11:38:29] INFO:     127.0.0.1:52704 - "GET /model_info HTTP/1.1" 200 OK', "access"),
        ('INFO:     127.0.0.1:52704 - "POST /generate HTTP/1.1" 200 OK', "access"),
        ("[2026-02-12 11:38:29 TP0] Decode batch, #running-req: 1", "batch"),
        ("[2026-02-12 11:38:29] server_args=ServerArgs(custom_sigquit_handler=None)", "args"),
        ("[2026-02-12 11:38:29] Receive: obj=GenerateReqInput(text='CUDA out of memory')", "echo"),
        ("Capturing batches (bs=8 avail_mem=9.10 GB):  14%|█▍        | 1/7 [00:11<01:08]", "progress"),
        ("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01]", "progress"),
        ("ValueError: x", "more"),
        ("", "more"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    assert parse_line(text).kind == kind


def test_a_line_glued_to_a_progress_bar() -> None:
    line = parse_line("Capturing batches (bs=8):   0%|          | 0/7 [00:02<?, ?it/s]" + STAMPED)
    assert (line.kind, line.message, line.ranks) == ("log", MESSAGE, "TP0 EP0")


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=12))
def test_splitting_does_not_depend_on_where_chunks_end(data: bytes, sizes: list[int]) -> None:
    whole = LineSplitter()
    expected = [*whole.feed(data), *whole.close()]
    pieces = LineSplitter()
    found: list[tuple[int, str]] = []
    rest = data
    for size in sizes:
        found += pieces.feed(rest[:size])
        rest = rest[size:]
    found += [*pieces.feed(rest), *pieces.close()]
    assert found == expected
    assert max((number for number, _ in found), default=0) == data.count(b"\n") + (
        not data.endswith(b"\n") and data != b""
    )


@given(st.text(max_size=200))
def test_nothing_that_is_fed_raises(text: str) -> None:
    line = parse_line(text)
    assert line.seconds is None or line.seconds > 0


def test_progress_updates_share_the_number_of_their_line() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"a\r\n 10%|\r 20%|\r\nb\n")) == [(1, "a"), (2, " 10%|"), (2, " 20%|"), (3, "b")]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    splitter = LineSplitter()
    found: list[tuple[int, str]] = []
    for _ in range(64):
        found += splitter.feed(b"x" * (LONGEST_LINE // 8))
        assert len(splitter._rest) <= LONGEST_LINE
    found += splitter.feed(b"tail\nnext\n")
    assert [number for number, _ in found] == [1, 2]
    assert len(found[0][1]) <= LONGEST_LINE + LONGEST_LINE // 8
    assert found[1] == (2, "next")
