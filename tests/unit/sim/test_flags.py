"""The command line of both versions."""

from __future__ import annotations

import pytest

from pytest_sglang_perf.sim.flags import parse_flags
from pytest_sglang_perf.sim.settings import VERSIONS

MODEL = ["--model-path", "m"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("spelling", ["--tp", "--tp-size", "--tensor-parallel-size"])
def test_the_spellings_of_tensor_parallelism_are_one(version, spelling):
    assert parse_flags([*MODEL, spelling, "8"], version)["tp_size"] == 8


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--enable-mscclpp"], "enable_mscclpp", True),
        (["--enable-single-batch-overlap"], "enable_single_batch_overlap", True),
        (["--enable-flashinfer-allreduce-fusion"], "enable_flashinfer_allreduce_fusion", True),
        (["--enforce-piecewise-cuda-graph"], "enforce_piecewise_cuda_graph", True),
        (["--ep-size", "8"], "ep_size", 8),
        (["--expert-parallel-size", "8"], "ep_size", 8),
        (["--moe-runner-backend", "flashinfer_trtllm"], "moe_runner_backend", "flashinfer_trtllm"),
        (["--disable-cuda-graph"], "disable_cuda_graph", True),
        (["--disable-radix-cache"], "disable_radix_cache", True),
        (["--num-continuous-decode-steps", "16"], "num_continuous_decode_steps", 16),
        (["--max-running-requests", "2048"], "max_running_requests", 2048),
        (["--max-total-tokens", "4Ki"], "max_total_tokens", 4096),
        (["--max-total-tokens", "25.6k"], "max_total_tokens", 25600),
    ],
)
def test_the_campaigns_flags_exist_in_its_version(flags, field, value):
    assert parse_flags([*MODEL, *flags], "0.5.10")[field] == value


@pytest.mark.parametrize(
    ("flags", "version", "words"),
    [
        (["--no-such-flag"], "0.5.10", "launch_server.py: error: unrecognized arguments: --no-such-flag"),
        (["--disable-piecewise-cuda-graph"], "0.5.23", "sglang serve: error: unrecognized arguments: "),
        (["--tp", "eight"], "0.5.10", "invalid int value: 'eight'"),
        (["--moe-runner-backend", "magic"], "0.5.10", "invalid choice: 'magic'"),
    ],
)
def test_what_that_version_does_not_take_ends_with_2_and_its_words(flags, version, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags([*MODEL, *flags], version)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: ")
    assert words in error


def test_a_model_is_required(capsys):
    with pytest.raises(SystemExit):
        parse_flags([], "0.5.23")
    assert "--model-path" in capsys.readouterr().err


def test_a_deprecated_flag_warns_and_changes_nothing(capsys):
    args = parse_flags([*MODEL, "--enable-piecewise-cuda-graph"], "0.5.10")
    assert "deprecated" in capsys.readouterr().err
    assert args["enforce_piecewise_cuda_graph"] is False


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_are_there(version):
    args = parse_flags(MODEL, version)
    assert args["port"] == 30000
    assert args["served_model_name"] == args["tokenizer_path"] == "m"
    assert args["decode_log_interval"] == 40
    assert args["disable_radix_cache"] is False
    assert args["api_key"] is None
