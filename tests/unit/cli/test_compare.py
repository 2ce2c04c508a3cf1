from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.cli import main

from . import building
from .building import SIM

if TYPE_CHECKING:
    from pathlib import Path


def compared(capsys, *argv: str, status: int = 0):
    assert main(["compare", *argv, "--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return building.write_run(tmp_path / "a", building.run("a", {"sbo": 1.0, "mscclpp": 0.9})).parent


def statuses(document) -> dict[tuple[str, float | None], str]:
    return {(c["metric"], c["level"]): c["status"] for pair in document["pairs"] for c in pair["changes"]}


def test_a_slower_run_is_violated_and_exits_1(capsys, a: Path, tmp_path: Path) -> None:
    b = building.write_run(tmp_path / "b", building.run("b", {"sbo": 0.85}))
    document = compared(capsys, str(a), str(b), status=1)
    assert [(pair["a"], pair["b"]) for pair in document["pairs"]] == [("sbo", "sbo")]
    found = statuses(document)
    assert found["output_throughput", 256.0] == "violated"
    assert found["boot_time", None] == "holds"
    assert ("boot_time", 256.0) not in found
    assert main(["compare", str(a), str(b)]) == 1
    text = capsys.readouterr().out
    assert "violated" in text
    assert "simulated" not in text


def test_two_configs_of_one_run(capsys, a: Path) -> None:
    document = compared(capsys, f"{a}:mscclpp", f"{a}:sbo")
    (throughput,) = [
        c for c in document["pairs"][0]["changes"] if (c["metric"], c["level"]) == ("output_throughput", 1.0)
    ]
    assert throughput["ratio"] == pytest.approx(1 / 0.9, abs=0.02)
    assert throughput["old"]["label"] == "mscclpp"
    assert compared(capsys, f"{a}:sbo", f"{a}:mscclpp", status=1)["counts"]["violated"] > 0


def test_power_has_a_ratio_and_no_verdict(capsys, tmp_path: Path) -> None:
    one = building.write_run(tmp_path / "one", building.run("one", {"sbo": 1.0}, power_draw_per_gpu=500.0))
    other = building.write_run(tmp_path / "other", building.run("other", {"sbo": 1.0}, power_draw_per_gpu=640.0))
    document = compared(capsys, str(one), str(other), "--metric", "power_draw_per_gpu")
    (change, _) = document["pairs"][0]["changes"]
    assert change["status"] == "no direction"
    assert change["ratio"] == pytest.approx(1.28)


def test_another_node_class_is_never_judged(capsys, a: Path, tmp_path: Path) -> None:
    sim = building.write_run(tmp_path / "sim", building.run("sim", {"sbo": 0.5}, node=SIM))
    document = compared(capsys, str(a), str(sim), status=3)
    assert document["comparable"] is False
    assert "pairs" not in document
    assert main(["compare", str(a), str(sim)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "different node classes" in err
    assert "tiny there" in err


def test_simulated_is_on_every_line(capsys, tmp_path: Path) -> None:
    runs = [
        str(building.write_run(tmp_path / name, building.run(name, {"sbo": 1.0}, node=SIM))) for name in ("s1", "s2")
    ]
    assert main(["compare", *runs]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "tok/s" in line or " ms " in line]
    assert len(lines) > 4
    assert all(line.endswith("simulated") for line in lines)


def test_a_server_that_crashed_in_b_is_worse(capsys, a: Path, tmp_path: Path) -> None:
    crash = building.one_test(
        "test_sbo.py::test_it",
        outcome="failed",
        text="the server crashed",
        error={"kind": "crashed", "class": "oom-kv-cache", "phase": "running", "level": 256.0, "requests": 3},
    )
    b = building.write_run(tmp_path / "b", building.run("b", {}, tests=(crash,)))
    (pair,) = compared(capsys, str(a), str(b), status=1)["pairs"]
    assert pair["crashed"] == "oom-kv-cache at concurrency 256"
    assert main(["compare", str(a), str(b)]) == 1
    assert "sbo crashed in B: oom-kv-cache at concurrency 256" in capsys.readouterr().out


def test_the_margins_are_those_of_bs_suite(capsys, a: Path, tmp_path: Path) -> None:
    record = building.run("b", {"sbo": 0.9})
    record.session["margins"] = {"output_throughput": 0.25}
    b = building.write_run(tmp_path / "b", record)
    found = statuses(compared(capsys, str(a), str(b), status=1))
    assert found["output_throughput", 256.0] == "holds"
    assert found["tpot_p50", 256.0] in {"violated", "inconclusive"}


def test_failures_are_counted_not_estimated(capsys, a: Path, tmp_path: Path) -> None:
    b = building.write_run(tmp_path / "b", building.run("b", {"sbo": 1.0}, failed_requests=2.0))
    assert statuses(compared(capsys, str(a), str(b), status=1))["failed_requests", 1.0] == "violated"


def test_nothing_in_common(capsys, a: Path, tmp_path: Path) -> None:
    b = building.write_run(tmp_path / "b", building.run("b", {"ep8": 1.0}, levels=(64,)))
    assert main(["compare", str(a), str(b)]) == 3
    err = capsys.readouterr().err
    assert "ep8 (short at 64)" in err
    assert main(["compare", f"{a}:sbo", f"{b}:ep8"]) == 3
    capsys.readouterr()
    assert main(["compare", f"{a}:nobody", str(b)]) == 2
    assert 'nothing of server config "nobody" was measured. Measured: sbo, mscclpp' in capsys.readouterr().err


def test_stored_boots_tell_the_noise_that_one_boot_cannot(capsys, tmp_path: Path) -> None:
    one = building.write_run(tmp_path / "one", building.run("one", {"sbo": 1.0}, boots=1))
    other = building.write_run(tmp_path / "other", building.run("other", {"sbo": 1.0}, boots=1))
    root = tmp_path / "baselines"

    def width() -> float:
        document = compared(capsys, str(one), str(other), "--baselines", str(root), "--metric", "output_throughput")
        low, high = document["pairs"][0]["changes"][0]["interval"]
        return float(high - low)

    without = width()
    building.baseline(root, node=SIM)
    assert width() == without  # another node class tells nothing
    path = building.baseline(root)
    assert width() < 0.7 * without
    text = path.read_text(encoding="utf-8")
    for number in range(1, 6):
        text = text.replace(f'"session{number}"', '"one"')
    path.write_text(text, encoding="utf-8")
    assert width() == without  # boots that are on a side already are not counted again


def test_a_run_is_not_compared_with_itself(capsys, a: Path) -> None:
    assert main(["compare", str(a), str(a / "run.json")]) == 2
    assert "the same boots" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no run file"),
        ("{", "is not a run file"),
        ("[]", "some other JSON"),
        ('{"format": 99}', "Upgrade pytest-sglang-perf"),
        (
            '{"format": 1, "session": {}, "tests": [], "measured": [{"server": "sbo"}]}',
            "measured.0.config: field required",
        ),
        ('{"format": 1, "session": {}, "tests": [{}], "measured": []}', "tests.0.nodeid: field required"),
        ('{"format": 1, "session": 3, "tests": [], "measured": []}', "is damaged"),
        (b"\xff\xfe", "is not a run file"),
    ],
)
def test_what_is_no_run_file_is_refused_without_a_traceback(capsys, a: Path, tmp_path: Path, content, said) -> None:
    path = tmp_path / "other" / "run.json"
    path.parent.mkdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["compare", str(a), str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_help_of_every_command_tells_its_exit_statuses(capsys) -> None:
    for command in ("baseline", "compare", "report", "reap"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert "Exit status" in " ".join(capsys.readouterr().out.split())
