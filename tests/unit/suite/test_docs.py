"""What the documentation shows is true."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from pytest_sglang_perf.agent.load import _spec as load_spec
from pytest_sglang_perf.baselines import BaselineFile
from pytest_sglang_perf.server.phases import LIMITS_S
from pytest_sglang_perf.suite import parse_suite
from pytest_sglang_perf.suite._yaml import read_yaml
from pytest_sglang_perf.suite.models import Limits, ServerModel, SuiteModel, WorkloadModel
from pytest_sglang_perf.suite.nodes import LocalNode, SimNode, SshNode, UrlNode

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("text", blocks("reference/suite-file.md", "yaml"))
def test_suites_in_the_reference_are_valid(text: str) -> None:
    suite = parse_suite(text.encode(), Path("suite.yaml"), name="suite.yaml")
    assert suite.servers
    assert suite.notes == ()


@pytest.mark.parametrize(
    "model",
    [SuiteModel, ServerModel, WorkloadModel, Limits, SimNode, LocalNode, SshNode, UrlNode],
    ids=lambda m: m.__name__,
)
def test_every_key_is_in_the_reference(model: type[SuiteModel]) -> None:
    page = (DOCS / "reference/suite-file.md").read_text()
    missing = [name for name in model.model_fields if f"`{name}`" not in page and name != "kind"]
    assert missing == []


def test_the_baseline_file_in_the_reference_is_one() -> None:
    (text,) = blocks("reference/baselines.md", "json")
    file = BaselineFile.from_text(text, file="f")
    assert json.loads(file.to_text()) == json.loads(text)


def test_the_workflow_is_pinned_and_names_our_options() -> None:
    text = (DOCS / "how-to/perf-gate.yml").read_text()
    uses = re.findall(r"uses: (\S+)", text)
    assert uses
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", use) for use in uses)
    assert read_yaml(text.replace("\non:", '\n"on":'), "perf-gate.yml").data["jobs"]["measure"]["steps"]
    for option in re.findall(r"--sglang-[a-z-]+", text):
        assert option in {"--sglang-changed-since", "--sglang-report"}


def test_the_boot_phases_in_the_reference_are_all() -> None:
    page = (DOCS / "reference/suite-file.md").read_text()
    assert f"boot phase ({', '.join(f'`{phase}`' for phase in LIMITS_S)})" in page


def test_the_limits_in_the_references_have_the_defaults_that_they_say() -> None:
    load = (DOCS / "reference/load-spec.md").read_text()
    suite = (DOCS / "reference/suite-file.md").read_text()
    for field in dataclasses.fields(load_spec.Limits):
        assert re.search(rf"`{field.name}`\s{field.default:g}\b", load), field.name
    for names, defaults in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([\d., ]+) \|", suite, re.MULTILINE):
        for name, default in zip(re.findall(r"\w+", names), defaults.split(", "), strict=True):
            if name in Limits.model_fields:
                assert float(default) == getattr(load_spec.Limits(), name), name
