"""The plugin is loaded by every pytest run of its users: without a perf test it must stay out of the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HEAVY = ("scipy", "numpy", "pydantic", "paramiko", "yaml", "requests", "rich", "jinja2", "asyncio", "multiprocessing")


def test_nothing_heavy_is_imported_without_a_perf_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_it():
            heavy = [name for name in {HEAVY!r} if name in sys.modules]
            ours = sorted(name for name in sys.modules if name.startswith("pytest_sglang_perf."))
            assert heavy == []
            assert ours == ["pytest_sglang_perf.declaration", "pytest_sglang_perf.errors",
                            "pytest_sglang_perf.options", "pytest_sglang_perf.plugin"]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:rerunfailures", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)


def test_no_suite_is_looked_for_without_a_perf_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("--sglang-node", "nowhere")
    result.assert_outcomes(passed=1)
    assert "sglang-perf:" not in result.stdout.str()
