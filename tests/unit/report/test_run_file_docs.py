from __future__ import annotations

from pathlib import Path

import pytest

from pytest_sglang_perf.report import _shape

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "run-file.md"


@pytest.mark.parametrize(
    "shape", [_shape.Session, _shape.Test, _shape.Claim, _shape.Side, _shape.Verdict, _shape.Measured, _shape.Error]
)
def test_every_key_that_is_read_is_documented(shape) -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = {field.alias or name for name, field in shape.model_fields.items()}
    assert {key for key in keys if f"`{key}`" not in text} == set()
