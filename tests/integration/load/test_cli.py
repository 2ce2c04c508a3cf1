"""``sglang-perf load``: figures, files and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def cli(tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pytest_sglang_perf.cli", "load", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "160"},
        )

    return run


def test_a_valid_trial(stamped, cli, tmp_path):
    records, report = tmp_path / "records.jsonl", tmp_path / "report.json"
    done = cli(
        "--url", stamped("--rate", 400, "--ttft-ms", 20), "--concurrency", 4, "--requests", 48, "--input-len", 16,
        "--output-len", "4:8", "--records", records, "--keep-bodies", "--json", report,
    )  # fmt: skip
    document = json.loads(report.read_text())
    if done.returncode == 3:  # a busy machine may be late, and then must say so
        assert {item["check"] for item in document["result"]["invalid"]} <= {"lag_p50_ms", "lag_p99_ms", "cpu_share"}
    else:
        assert done.returncode == 0, done.stderr
        assert document["result"]["valid"]
    assert "output_throughput" in done.stderr
    assert document["metrics"]["ttft_p50"] > 0
    assert "p99 needs 662" in document["metrics"]["ttft_p99"]["absent"]
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        assert set(line) >= {"scheduled_ns", "sent_ns", "status", "chunks", "bodies"}
        assert len(line["bodies"]) == len(line["chunks"])
        assert all("completion_tokens" in body for body in line["bodies"])


def test_an_invalid_trial_shows_its_figures_and_why(stamped, cli):
    url = stamped("--rate", 400, "--ttft-ms", 20)
    done = cli(
        "--url", url, "--rate", 2000, "--concurrency", 2, "--requests", 10000, "--output-len", 4, "--deadline", 0.5
    )
    assert done.returncode == 1
    assert "deadline" in done.stderr
    done = cli("--url", url, "--concurrency", 4, "--requests", 200, "--output-len", 2, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["result"]["valid"] else 3)


def test_short_answers_are_invalid(cli):
    from .scripted import answer, serve

    with serve(lambda *_: answer(3)) as url:
        done = cli("--url", url, "--concurrency", 2, "--requests", 8, "--output-len", 4)
    assert done.returncode == 3
    assert "shorter than ordered" in done.stderr


def test_nobody_there(cli, free_port):
    done = cli("--url", f"http://127.0.0.1:{free_port}", "--concurrency", 2)
    assert done.returncode == 1
    assert "refused" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--url"),
        (["--url", "http://127.0.0.1:1"], "--concurrency"),
        (["--url", "nonsense", "--concurrency", "2"], "http://host:port"),
        (["--url", "http://127.0.0.1:1", "--concurrency", "2", "--input-len", "many"], "not a length"),
        (["--url", "http://127.0.0.1:1", "--rate", "2", "--trace", "x"], "exclude each other"),
    ],
)
def test_wrong_options_say_what_is_wrong(cli, arguments, words):
    done = cli(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_selftest_is_kept_and_goes_with_results(stamped, cli, tmp_path):
    done = cli("--selftest", "--concurrency", 16, "--json")
    outcome = json.loads(done.stdout)
    assert done.returncode == (0 if outcome["max_streams"] else 3)
    (level,) = outcome["levels"]
    assert level["streams"] == 16
    assert 0 <= level["lag_p50_ms"] <= level["lag_p99_ms"]
    assert json.loads((tmp_path / "cache" / "sglang-perf" / "load-floor.json").read_text()) == outcome
    url = stamped("--rate", 400, "--ttft-ms", 20)
    report = tmp_path / "report.json"
    cli("--url", url, "--concurrency", 4, "--requests", 8, "--output-len", 4, "--json", report)
    assert json.loads(report.read_text())["result"]["audit"]["floor"]["streams"] == 16
