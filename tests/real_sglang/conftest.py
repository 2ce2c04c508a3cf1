"""A real sglang on the CPU, with a tiny model, as the suite of a user's project.

Set up by ``scripts/real-sglang``. Without it these tests are skipped with the reason; where
``SGLANG_PERF_REQUIRE_REAL_SGLANG`` is set (as in CI) a missing sglang is a failure.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEFAULT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-perf/sglang-0.5.23/bin/python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real_sglang)


@pytest.fixture(scope="session")
def sglang_python() -> str:
    python = os.environ.get("SGLANG_PERF_SGLANG_PYTHON") or str(DEFAULT)
    probe = (
        subprocess.run(
            [python, "-c", "import importlib.metadata as m; print(m.version('sglang'))"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if Path(python).exists()
        else None
    )
    if probe is None or probe.returncode != 0:
        reason = f"no sglang in {python}: run scripts/real-sglang"
        if os.environ.get("SGLANG_PERF_REQUIRE_REAL_SGLANG"):
            pytest.fail(reason)
        pytest.skip(reason)
    return python


@pytest.fixture(scope="session")
def tiny_model(sglang_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    subprocess.run([sglang_python, str(HERE / "tiny_model.py"), str(folder)], check=True, timeout=120)
    return folder


SUITE = """
default_node: here
nodes:
  here: {{kind: local}}
{extra_nodes}
servers:
  base:
    model: {model}
    python: {python}
    args:
      device: cpu
      model-impl: transformers
      load-format: dummy
      attention-backend: torch_native
      sampling-backend: pytorch
      dtype: float32
      mem-fraction-static: 0.3
      max-total-tokens: 8192
      random-seed: 7
      disable-radix-cache: true
    env: {{OMP_NUM_THREADS: 1, SGLANG_PYSPY_DUMP_BEFORE_CRASH: 0, SGLANG_CUDA_COREDUMP_BEFORE_CRASH: 0}}
  one-at-a-time: {{extends: base, args: {{max-running-requests: 1}}}}
  unknown-flag: {{extends: base, args: {{disable-piecewise-cuda-graph: true}}}}
  no-memory: {{extends: base, args: {{max-total-tokens: null, mem-fraction-static: 0.0001}}}}
  no-model: {{extends: base, model: /nowhere/at/all}}
workloads:
  short: {{input_len: 64, output_len: 32, concurrency: [1, 8], requests: {{1: 12, 8: 48}}, vocab: [300, 1900]}}
margins: {{output_throughput: 0.3, tpot_p50: 0.3}}
trials: 2
boots: 1
"""


class Project:
    """A user's project in a folder of its own, run as a user would."""

    def __init__(self, pytester: pytest.Pytester, model: Path, python: str) -> None:
        self.pytester = pytester
        self._suite = {"model": model, "python": python, "extra_nodes": ""}
        self.env = {"SGLANG_PERF_TTL": "20", "SGLANG_PERF_GRACE": "2"}
        self.write_suite()

    def write_suite(self, **overrides: str) -> None:
        self._suite.update(overrides)
        self.pytester.path.joinpath("sglang-perf.yaml").write_text(SUITE.format(**self._suite), encoding="utf-8")

    def write_tests(self, source: str) -> None:
        self.pytester.path.joinpath("test_perf.py").write_text(
            "import pytest\n" + textwrap.dedent(source), encoding="utf-8"
        )

    def run(self, *args: str) -> pytest.RunResult:
        for name, value in self.env.items():
            os.environ[name] = value
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *args, timeout=480)


@pytest.fixture
def project(
    pytester: pytest.Pytester, tiny_model: Path, sglang_python: str, monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("SGLANG_PERF_TTL", "20")
    monkeypatch.setenv("SGLANG_PERF_GRACE", "2")
    return Project(pytester, tiny_model, sglang_python)
