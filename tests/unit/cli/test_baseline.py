from __future__ import annotations

import json
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.baselines import BaselineStore
from pytest_sglang_perf.cli import main

from . import building
from .building import H200, SIM

if TYPE_CHECKING:
    from pathlib import Path


def told(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(["baseline", *argv]) == status
    return capsys.readouterr().out


def told_json(capsys, *argv: str, status: int = 0):
    return json.loads(told(capsys, *argv, "--json", status=status))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A user's ``baselines`` folder."""
    return tmp_path / "baselines"


# -- list and show --------------------------------------------------------------------------------------------


def test_list_has_a_line_for_each_and_says_simulated_on_the_line(capsys, root: Path) -> None:
    building.baseline(root)
    building.baseline(root, "mscclpp", boots=3, sglang="0.5.9")
    building.baseline(root, node=SIM)
    lines = told(capsys, "list", "--baselines", str(root)).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [H200.slug, "mscclpp"],
        [H200.slug, "sbo"],
        [SIM.slug, "sbo"],
    ]
    assert ["simulated" in line for line in lines[1:]] == [False, False, True]
    assert "0.5.9" in lines[1]
    assert "2026-01-06" in lines[2]
    (_, sbo, _) = told_json(capsys, "list", "--baselines", str(root))["stored"]
    assert (sbo["levels"], sbo["boots"], sbo["simulated"]) == ([1.0, 256.0], {"1": 5, "256": 5}, False)


def test_list_tells_of_a_damaged_file_and_shows_the_others(capsys, root: Path) -> None:
    building.baseline(root)
    (root / H200.slug / "broken.json").write_text("{", encoding="utf-8")
    assert main(["baseline", "list", "--baselines", str(root)]) == 2
    out, err = capsys.readouterr()
    assert "sbo" in out
    assert "broken.json is damaged" in err


def test_without_a_folder_the_error_says_how_to_get_one(capsys, root: Path) -> None:
    assert main(["baseline", "list", "--baselines", str(root)]) == 2
    assert "pytest --update-baselines" in capsys.readouterr().err


def test_show_gives_the_estimate_with_an_interval_that_covers_it(capsys, root: Path) -> None:
    building.baseline(root)
    (stored,) = told_json(capsys, "show", "sbo", "--baselines", str(root))["stored"]
    rows = {(row["metric"], row["level"]): row for row in stored["figures"]}
    row = rows["output_throughput", 256.0]
    assert row["low"] < row["value"] < row["high"]
    assert row["value"] == pytest.approx(1500, rel=0.02)
    assert (row["boots"], row["trials"]) == (5, 10)
    assert row["noise"]["source"].startswith("learned from 5 boots over 1 level")
    assert rows["boot_time", None]["boots"] == 5  # once, not once a level
    assert ("boot_time", 1.0) not in rows
    assert rows["failed_requests", 1.0]["value"] == 0  # a counted figure has no logarithm
    text = told(capsys, "show", "sbo", "--baselines", str(root), "--metric", "output_throughput")
    assert "ttft" not in text
    assert "tok/s" in text


@pytest.mark.parametrize("changed", [{"config": "c0ffee0000000002"}, {"workload": "f00d000000000002"}])
def test_show_leaves_out_boots_of_an_earlier_content_and_says_so(capsys, root: Path, changed) -> None:
    rng = random.Random(2)
    path = building.baseline(root, boots=2)
    document = json.loads(path.read_text(encoding="utf-8"))
    newer = building.stored(1, building.columns(rng, factor=2.0), session="later", day=20, **changed).to_dict()
    document["workloads"]["short"]["256"].append(newer)
    path.write_text(json.dumps(document), encoding="utf-8")
    (stored,) = told_json(capsys, "show", "sbo", "--baselines", str(root))["stored"]
    assert stored["stale_boots"] == 2
    (throughput,) = [row for row in stored["figures"] if row["metric"] == "output_throughput"]
    assert throughput["value"] == pytest.approx(3000, rel=0.03)
    assert "left out: 2 boots of an earlier content" in told(capsys, "show", "sbo", "--baselines", str(root))


def test_show_of_an_unknown_server_or_metric_names_the_known(capsys, root: Path) -> None:
    building.baseline(root)
    assert main(["baseline", "show", "sbi", "--baselines", str(root)]) == 2
    assert "Stored: sbo" in capsys.readouterr().err
    assert main(["baseline", "show", "sbo", "--baselines", str(root), "--metric", "ttft_p5"]) == 2
    assert "ttft_p50" in capsys.readouterr().err
    assert main(["baseline", "show", "sbo", "--baselines", str(root), "--node-class", "other"]) == 2
    assert H200.slug in capsys.readouterr().err


# -- diff -----------------------------------------------------------------------------------------------------


def test_diff_finds_a_regression_of_one_level_only_and_exits_1(capsys, root: Path, tmp_path: Path) -> None:
    building.baseline(root, levels=(1, 256))
    new = tmp_path / "new"
    path = building.baseline(new, levels=(1,), seed=8, session="new")
    slow = building.baseline(tmp_path / "slow", levels=(256,), factor=0.9, seed=9, session="new")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["workloads"]["short"] |= json.loads(slow.read_text(encoding="utf-8"))["workloads"]["short"]
    path.write_text(json.dumps(document), encoding="utf-8")
    (compared,) = told_json(capsys, "diff", str(root), str(new), status=1)["compared"]
    status = {(c["metric"], c["level"]): c["status"] for c in compared["changes"]}
    assert status["output_throughput", 256.0] == "violated"
    assert status["output_throughput", 1.0] == "holds"
    assert status["failed_requests", 256.0] == "holds"
    (moved,) = [c for c in compared["changes"] if (c["metric"], c["level"]) == ("output_throughput", 256.0)]
    assert moved["ratio"] == pytest.approx(0.9, abs=0.02)
    assert moved["interval"][0] < moved["ratio"] < moved["interval"][1]
    text = told(capsys, "diff", str(root), str(new), status=1)
    assert "violated" in text


def test_diff_the_other_way_round_is_no_regression(capsys, root: Path, tmp_path: Path) -> None:
    building.baseline(root, factor=0.9)
    building.baseline(tmp_path / "new", seed=8, session="new")
    assert "violated" not in told(capsys, "diff", str(root), str(tmp_path / "new"))


def test_diff_marks_every_line_of_a_simulated_class(capsys, root: Path, tmp_path: Path) -> None:
    building.baseline(root, node=SIM)
    building.baseline(tmp_path / "new", node=SIM, seed=8, session="new")
    lines = told(capsys, "diff", str(root), str(tmp_path / "new")).splitlines()
    rows = [line for line in lines if "output_throughput" in line or "boot_time" in line]
    assert len(rows) == 3
    assert all(line.endswith("simulated") for line in rows)


def test_boots_that_both_states_have_are_not_compared_with_themselves(capsys, root: Path, tmp_path: Path) -> None:
    """``--update-baselines`` adds boots: what was stored before is on both sides, and would hide what came in."""
    old = building.baseline(root, boots=2)
    new = building.baseline(tmp_path / "new", boots=2)
    assert old.read_bytes() == new.read_bytes()
    same = told_json(capsys, "diff", str(old), str(new))["compared"][0]
    assert same["changes"] == []
    assert same["notes"] == ["no new boots, so nothing to judge: short at 1, short at 256"]
    document = json.loads(new.read_text(encoding="utf-8"))
    added = building.stored(9, building.columns(random.Random(5), factor=0.7), session="new", day=9).to_dict()
    document["workloads"]["short"]["256"].append(added)
    new.write_text(json.dumps(document), encoding="utf-8")
    (compared,) = told_json(capsys, "diff", str(old), str(new), status=1)["compared"]
    found = {(c["metric"], c["level"]): c for c in compared["changes"]}
    assert ("output_throughput", 1.0) not in found
    moved = found["output_throughput", 256.0]
    assert moved["new"]["boots"] == 1
    assert moved["ratio"] == pytest.approx(0.7, abs=0.02)


def test_files_of_two_node_classes_get_no_verdict(capsys, root: Path) -> None:
    one, other = building.baseline(root), building.baseline(root, node=SIM)
    document = told_json(capsys, "diff", str(one), str(other), status=3)
    assert document["comparable"] is False
    assert "compared" not in document
    assert main(["baseline", "diff", str(one), str(other)]) == 3
    out, err = capsys.readouterr()
    assert "holds" not in out
    assert "node classes differ" in err


def test_another_content_of_a_workload_is_not_judged(capsys, root: Path, tmp_path: Path) -> None:
    building.baseline(root)
    building.baseline(tmp_path / "new", seed=8, session="new", workload="f00d000000000002", factor=0.5)
    (compared,) = told_json(capsys, "diff", str(root), str(tmp_path / "new"))["compared"]
    at_levels = [c for c in compared["changes"] if c["level"] is not None]
    assert [c["status"] for c in at_levels] == ["not judged", "not judged"]
    assert "content differs" in at_levels[0]["note"]


def test_a_changed_config_and_version_is_said(capsys, root: Path, tmp_path: Path) -> None:
    building.baseline(root)
    building.baseline(tmp_path / "new", seed=8, session="new", config="c0ffee0000000002", sglang="0.5.11")
    text = told(capsys, "diff", str(root), str(tmp_path / "new"))
    assert "content changed (c0ffee0000000001 to c0ffee0000000002)" in text
    assert "sglang 0.5.10 to 0.5.11" in text


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with baselines committed in a folder below its root, and the present folder there."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    top = tmp_path / "repository"
    building.baseline(top / "project" / "baselines")
    building.baseline(top / "project" / "baselines", "gone")
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "baselines"],
    ):
        subprocess.run(["git", "-C", str(top), *command], check=True)
    monkeypatch.chdir(top / "project")
    return top / "project"


def test_diff_with_a_git_ref(capsys, repository: Path) -> None:
    building.baseline(repository / "baselines", factor=0.9, seed=8, session="new")
    (repository / "baselines" / H200.slug / "gone.json").unlink()
    document = told_json(capsys, "diff", "HEAD", status=1)
    assert [one["server"] for one in document["compared"]] == ["sbo"]
    assert document["only"] == [f"only in HEAD:baselines: gone on {H200.slug}"]


@pytest.mark.usefixtures("repository")
def test_diff_with_a_git_ref_when_nothing_changed(capsys) -> None:
    text = told(capsys, "diff", "main")
    assert "no new boots" in text
    assert text.endswith("nothing to judge\n")


@pytest.mark.usefixtures("repository")
def test_diff_with_a_ref_that_is_none(capsys) -> None:
    assert main(["baseline", "diff", "no-such-branch"]) == 2
    assert "baseline diff: 'no-such-branch' is no commit" in capsys.readouterr().err


def test_correction_for_many_claims_takes_back_a_weak_violation(capsys, root: Path, tmp_path: Path) -> None:
    """Two boots that are barely beyond the margin: violated alone, not among many claims."""
    building.baseline(root, boots=5, levels=(1, 2, 4, 8, 16, 32))
    building.baseline(tmp_path / "new", boots=5, levels=(1, 2, 4, 8, 16, 32), seed=8, session="new", factor=0.964)
    plain = told_json(capsys, "diff", str(root), str(tmp_path / "new"), status=1)
    fixed = told_json(capsys, "diff", str(root), str(tmp_path / "new"), "--correct", "holm")
    assert plain["counts"]["violated"] > 0
    assert fixed["counts"].get("violated", 0) < plain["counts"]["violated"]
    taken = [c for c in fixed["compared"][0]["changes"] if "corrected for" in c["note"]]
    assert len(taken) == plain["counts"]["violated"] - fixed["counts"].get("violated", 0)


# -- history --------------------------------------------------------------------------------------------------


def history(root: Path, factors: list[float], *, sd: float = 0.002, level: int = 256, **more) -> None:
    """A stored file with the first boot, and a history of one boot for each factor."""
    rng = random.Random(11)
    building.baseline(root, boots=1, levels=(level,), session="h")
    entries = []
    for day, factor in enumerate(factors, 2):
        boot = building.stored(1, building.columns(rng, factor=factor, sd=sd), session=f"h{day}", day=day, **more)
        entries.append({"level": level, "workload_name": "short", **boot.to_dict()})
    BaselineStore(root).append_history(H200, "sbo", entries)


def test_history_finds_where_the_level_changed(capsys, root: Path) -> None:
    history(root, [1.0] * 7 + [0.9] * 8)
    (series,) = told_json(capsys, "history", "output_throughput", "--baselines", str(root))["series"]
    assert len(series["boots"]) == 16
    assert [boot["in_baseline"] for boot in series["boots"]] == [True] + [False] * 15
    (point,) = series["change_points"]
    assert point["index"] == 8
    assert point["ratio"] == pytest.approx(0.9, abs=0.01)
    text = told(capsys, "history", "output_throughput", "--baselines", str(root))
    assert sum("|" in line for line in text.splitlines()) == 16
    assert "changed at 2026-01-10T10:00:00Z" in text


def test_history_tells_of_a_drift_that_every_gate_let_pass(capsys, root: Path) -> None:
    history(root, [1 - 0.005 * n for n in range(14)])
    (series,) = told_json(capsys, "history", "output_throughput", "--baselines", str(root), "--level", "256")["series"]
    assert series["slow_drift"]["hidden"] is True
    assert series["slow_drift"]["ratio"] < 0.95
    text = told(capsys, "history", "output_throughput", "--baselines", str(root), "--level", "256")
    assert "it passed under every single gate" in text


def test_history_without_a_change_says_so(capsys, root: Path) -> None:
    history(root, [1.0] * 12)
    (series,) = told_json(capsys, "history", "output_throughput", "--baselines", str(root))["series"]
    assert (series["change_points"], series["slow_drift"]) == ([], None)
    assert "no change and no slow drift in 13 boots" in told(
        capsys, "history", "output_throughput", "--baselines", str(root)
    )


def test_a_drift_is_judged_since_the_content_of_the_config_changed(capsys, root: Path) -> None:
    """A gate never compares boots of two contents, so a fall between them is a change and no drift."""
    rng = random.Random(4)
    building.baseline(root, boots=1, levels=(256,), session="h")
    entries = []
    for day in range(2, 20):
        new = day >= 10
        boot = building.stored(
            1,
            building.columns(rng, factor=0.8 if new else 1.0, sd=0.002),
            session=f"h{day}",
            day=day,
            config="c0ffee0000000002" if new else "c0ffee0000000001",
        )
        entries.append({"level": 256, "workload_name": "short", **boot.to_dict()})
    BaselineStore(root).append_history(H200, "sbo", entries)
    (series,) = told_json(capsys, "history", "output_throughput", "--baselines", str(root))["series"]
    (point,) = series["change_points"]
    assert point["with"] == ["the config's content c0ffee0000000001 to c0ffee0000000002"]
    assert series["slow_drift"] is None
    assert series["drift_judged_from"] == point["index"] == 9


def test_history_of_a_boot_time_counts_a_boot_once(capsys, root: Path) -> None:
    building.baseline(root, boots=4, levels=(1, 256))
    (series,) = told_json(capsys, "history", "boot_time", "--baselines", str(root))["series"]
    assert [boot["value"] for boot in series["boots"]] == [46.1, 46.2, 46.3, 46.4]


def test_history_lives_with_torn_and_foreign_lines_and_counted_metrics(capsys, root: Path) -> None:
    history(root, [1.0, 1.0])
    path = BaselineStore(root).history_path(H200, "sbo")
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"level": 256}\n{"workload_name": "short", "level": "x"}\n{"torn')
    (series,) = told_json(capsys, "history", "failed_requests", "--baselines", str(root))["series"]
    assert len(series["boots"]) == 3
    assert "counted" in series["note"]
    assert main(["baseline", "history", "power_draw", "--baselines", str(root)]) == 2
    assert "no boot with power_draw" in capsys.readouterr().err
