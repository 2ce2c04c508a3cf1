"""sglang's own benchmark as the engine: its line, its habits, its failures."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path

import pytest

from pytest_sglang_perf.agent.load._sglang_bench import arguments, records
from pytest_sglang_perf.agent.load._spec import SpecError, parse
from pytest_sglang_perf.metrics import Absent, from_sglang_bench

RECORDED = Path(__file__).parents[2] / "data" / "sglang_bench" / "cpu_0.5.23_c8.jsonl"
LINE = json.loads(RECORDED.read_text())  # from a real run at concurrency 8; holds Infinity, which json reads

# Stands in for a Python with sglang: says which module it has, and "runs" it by writing a line as the tool does.
TOOL = """#!{python}
import json, sys
arguments = sys.argv[1:]
if arguments[0] == "-c":
    print({module!r})
elif {line!r}:
    out = arguments[arguments.index("--output-file") + 1]
    open(out, "w").write(open({line!r}).read())
    json.dump(arguments, open({seen!r}, "w"))
else:
    sys.exit("ValueError: Warmup failed - Please make sure benchmark arguments are correctly specified.")
"""


@pytest.fixture
def tool(tmp_path):
    def make(line=RECORDED, module="sglang.benchmark.serving"):
        program = tmp_path / "python"
        seen = str(tmp_path / "seen.json")
        program.write_text(TOOL.format(python=sys.executable, module=module, line=str(line or ""), seen=seen))
        program.chmod(0o755)
        return str(program)

    return make


ORDER = {
    "arrival": {"kind": "closed", "concurrency": 8},
    "input": 64,
    "output": 64,
    "requests": 80,
    "tool": "sglang-bench",
}


def test_its_habits_are_dealt_with(tool, load, tmp_path):
    result, lines = load("http://127.0.0.1:1", **ORDER, tool_python=tool())
    assert result["ended_by"] == "done"
    assert "sk-recorded" not in json.dumps(result)
    assert len(lines) == 80
    seen = json.loads((tmp_path / "seen.json").read_text())
    given = dict(itertools.pairwise(seen))
    assert given["--random-range-ratio"] == "1"
    assert given["--max-concurrency"] == given["--warmup-requests"] == "8"
    assert given["--random-input-len"] == given["--random-output-len"] == "64"
    assert given["--backend"] == "sglang"
    assert "--flush-cache" in seen


def test_requests_whose_text_was_empty_have_no_ttft(tool, load):
    result, lines = load("http://127.0.0.1:1", **ORDER, tool_python=tool())
    blind = sum(1 for ttft in LINE["ttfts"] if not ttft)
    assert blind > 0
    assert [item["check"] for item in result["invalid"]] == ["blind"]
    assert result["invalid"][0]["value"] == blind == sum(1 for line in lines if not line["chunks"])


def test_the_same_metrics_from_its_details():
    values = from_sglang_bench(LINE)
    seen = [(t, i, n) for t, i, n in zip(LINE["ttfts"], LINE["itls"], LINE["output_lens"], strict=True) if t]
    assert values["output_throughput"] == LINE["output_throughput"]
    assert values["concurrency"] == LINE["concurrency"]
    assert values["ttft_mean"] == pytest.approx(statistics.fmean(t for t, _, _ in seen))
    assert values["tpot_mean"] == pytest.approx(statistics.fmean(sum(i) / len(i) for _, i, _ in seen if i))
    assert values["itl_mean"] == pytest.approx(statistics.fmean(gap for _, i, _ in seen for gap in i))
    for name in ("ttft_scheduled_p50", "ttft_p99"):
        assert isinstance(values[name], Absent)


def test_a_first_event_of_several_tokens_is_known_by_what_is_missing():
    (first, *_) = [record for record in records(LINE) if record["chunks"]]
    assert first["chunks"][0][1] == LINE["output_lens"][0] - len(LINE["itls"][0])
    assert first["chunks"][-1][1] == first["output_tokens"]


def test_partial_failure_with_exit_status_0_is_invalid(tool, load, tmp_path):
    line = json.loads(RECORDED.read_text())
    line["completed"] -= 3
    for index in (4, 5, 6):
        line["errors"][index], line["output_lens"][index], line["ttfts"][index] = (
            "Traceback\nConnectionError: reset",
            0,
            0.0,
        )
    changed = tmp_path / "changed.jsonl"
    changed.write_text(json.dumps(line) + "\n")
    result, _ = load("http://127.0.0.1:1", **ORDER, tool_python=tool(changed))
    assert "completed" in {item["check"] for item in result["invalid"]}
    assert result["counts"]["failed"] == 3
    assert result["errors"] == {"ConnectionError: reset": 3}


def test_no_line_is_a_failure_in_the_tools_own_words(tool, load):
    result, _ = load("http://127.0.0.1:1", **ORDER, tool_python=tool(line=None))
    assert result["ended_by"] == "all_failed"
    assert "Warmup failed" in result["invalid"][0]["message"]


def test_no_sglang_there(load):
    message, _ = load("http://127.0.0.1:1", **ORDER, tool_python=sys.executable)
    assert "has no sglang" in message["error"]["message"]
    message, _ = load("http://127.0.0.1:1", **ORDER, tool_python="/nonexistent/python")
    assert "does not run" in message["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"arrival": {"kind": "burst", "size": 2, "period_s": 1}}, "closed and poisson"),
        ({"input": {"kind": "normal", "mean": 5, "std": 1}}, "fixed and uniform"),
        ({"input": {"kind": "uniform", "low": 32, "high": 64}}, "one range ratio"),
    ],
)
def test_what_the_tool_cannot_do_is_refused(changes, word):
    spec = parse({"url": "http://127.0.0.1:1", **ORDER, "tool_python": "python", **changes})
    with pytest.raises(SpecError, match=word):
        arguments(spec, "sglang.bench_serving", "out")


def test_lengths_from_half_to_whole():
    half = {"kind": "uniform", "low": 32, "high": 64}
    spec = parse({"url": "http://127.0.0.1:1", **ORDER, "tool_python": "python", "input": half, "output": half})
    words = arguments(spec, "sglang.bench_serving", "out")
    assert words[words.index("--random-range-ratio") + 1] == "0.5"
