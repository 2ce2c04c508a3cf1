"""The JSON Schema of suite files, for editors: completion and errors while typing."""

from __future__ import annotations

import json
from typing import Any

import pydantic

from pytest_sglang_perf.suite._flags import KNOWN
from pytest_sglang_perf.suite.models import SuiteModel

_PYDANTIC = ".".join(pydantic.VERSION.split(".")[:2])

__all__ = ["json_schema", "json_schema_text"]


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a suite file.

    It proposes the known flags of sglang and accepts others. What a schema cannot say (a parent that is
    missing, one argument under two names) is found when the file is read.
    """
    schema = SuiteModel.model_json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    schema["$comment"] = f"made by python -m pytest_sglang_perf.suite.schema with pydantic {_PYDANTIC}"
    schema["title"] = "pytest-sglang-perf suite"
    args = schema["$defs"]["ServerModel"]["properties"]["args"]
    value = args["additionalProperties"]
    args["properties"] = dict.fromkeys(sorted(KNOWN), True)
    args["additionalProperties"] = value
    return schema


def json_schema_text() -> str:
    """The schema as it stands in ``docs/reference/sglang-perf.schema.json``."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(json_schema_text(), end="")
