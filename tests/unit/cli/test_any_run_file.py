"""Whatever stands in a run file, commands answer with an exit status and a sentence, never with a traceback."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_sglang_perf.cli import main
from pytest_sglang_perf.stored_boots import of_run

from . import building

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def whole() -> dict[str, Any]:
    """A run with one of everything."""
    run = building.run("r1", {"sbo": 1.0, "mscclpp": 0.9}, boots=1, levels=(1,))
    now = list(of_run(run)["sbo"].levels["short", 1].boots["output_throughput"])
    claim = building.claim("output_throughput", 0.97, now, building.boots([1500.0, 1490.0]), level=1)
    crash = {"kind": "crashed", "class": "oom", "phase": "weights", "level": 1.0}
    run.tests = [
        building.one_test("a.py::test_a", claim, outcome="failed"),
        building.one_test("a.py::test_b", server="ep8", outcome="failed", text="crashed", error=crash),
    ]
    run.problems, run.baselines = ["p"], ["b"]
    found: dict[str, Any] = json.loads(json.dumps(run.to_dict()))
    return found


WHOLE = whole()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


PLACES = [path for path in places(WHOLE) if path]
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.sampled_from([0, -1, 1e300, -1e300, 1e-300, "<b>", [1, 2], {"a": [1]}]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), anything), min_size=1, max_size=3), drop=st.booleans())
def test_any_change_of_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes, drop: bool) -> None:
    document = copy.deepcopy(WHOLE)
    for path, value in changes:
        holder: Any = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            if drop:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    changed, intact = tmp_path / "changed.json", tmp_path / "intact.json"
    changed.write_text(json.dumps(document), encoding="utf-8")
    intact.write_text(json.dumps(WHOLE | {"session": WHOLE["session"] | {"run": "r0"}}), encoding="utf-8")
    assert main(["report", str(changed), "--html", str(tmp_path / "r.html")]) in {0, 2}
    assert main(["report", str(changed)]) in {0, 2}
    assert main(["compare", str(changed), str(intact)]) in {0, 1, 2, 3}
    assert main(["compare", str(intact), str(changed), "--json"]) in {0, 1, 2, 3}
    assert "Traceback" not in capsys.readouterr().err
