"""Secrets by value and by key."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_sglang_perf.agent.redact import Redactor
from pytest_sglang_perf.agent.secretfiles import SecretFiles


@given(st.binary(), st.text(min_size=4, max_size=20).filter(str.isprintable))
def test_masking_keeps_the_length_and_leaves_no_secret(data, secret):
    redactor = Redactor([secret])
    masked = redactor.mask(data + secret.encode() + data)
    assert len(masked) == len(data + secret.encode() + data)
    if set(secret) != {"*"}:
        assert secret.encode() not in masked


def test_keys_that_name_secrets_hide_any_value_and_others_do_not():
    info = {
        "api_key": "k",
        "admin_api_key": None,
        "ssl_keyfile_password": "p",
        "HF_TOKEN": "t",
        "max_total_tokens": 4096,
        "tokenizer_path": "tiny",
        "internal_states": [{"api_key": "k"}],
    }
    assert Redactor().structure(info) == {
        **info,
        "api_key": "***",
        "ssl_keyfile_password": "***",
        "HF_TOKEN": "***",
        "internal_states": [{"api_key": "***"}],
    }


def test_a_secret_is_also_found_as_json_writes_it():
    secret = 'quo"te\\d'
    assert "quo" not in Redactor([secret]).text(json.dumps({"key": secret}))


def test_the_values_of_secret_files():
    assert SecretFiles({"a": '{"api-key": "one"}', "b": "two\n"}).values() == ["one", "two"]
