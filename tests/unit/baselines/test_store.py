from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pytest_sglang_perf.baselines import BaselineFile, BaselineStore, NodeClass, write_atomically
from pytest_sglang_perf.baselines.files import clean_leftovers
from pytest_sglang_perf.errors import BaselineError, BaselineUnwritable

from .conftest import boot

if TYPE_CHECKING:
    from pathlib import Path

NODE = NodeClass("sim-x", {"simulated": "x"})
FILE = BaselineFile("sbo", "sim-x", {"simulated": "x"}, {"short": {"8": (boot(1),)}})


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def test_what_is_saved_is_loaded(store: BaselineStore) -> None:
    assert store.load(NODE, "sbo") is None
    path = store.save(NODE, FILE)
    assert path == store.root / "sim-x" / "sbo.json" == store.path(NODE, "sbo")
    assert store.load(NODE, "sbo") == FILE
    assert path.read_text() == FILE.to_text()
    assert list(path.parent.iterdir()) == [path]


def test_other_classes(store: BaselineStore) -> None:
    store.save(NODE, FILE)
    assert store.other_classes(NODE, "sbo") == []
    assert store.other_classes(NodeClass("8x-h200", {}), "sbo") == ["sim-x"]
    assert store.other_classes(NodeClass("8x-h200", {}), "base") == []


def test_equal_content_is_not_written(store: BaselineStore) -> None:
    path = store.save(NODE, FILE)
    before = path.stat()
    store.save(NODE, FILE)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_mode_and_links_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    write_atomically(real, "1")
    real.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    assert write_atomically(link, "2")
    assert link.is_symlink()
    assert real.read_text() == "2"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_has_the_mode_that_others_have(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_atomically(tmp_path / "ours", "1")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_an_unwritable_place_is_one_clear_error_and_loses_nothing(store: BaselineStore) -> None:
    store.root.parent.joinpath("baselines").write_text("a file where the folder should be")
    with pytest.raises(BaselineUnwritable, match=r"sbo\.json cannot be written: .* Make the folder writable"):
        store.save(NODE, FILE)
    with pytest.raises(BaselineUnwritable):
        store.append_history(NODE, "sbo", [{}])
    assert store.load(NODE, "sbo") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(store: BaselineStore) -> None:
    store.save(NODE, FILE)
    folder = store.root / "sim-x"
    folder.chmod(0o500)
    try:
        with pytest.raises(BaselineUnwritable, match="Permission denied"):
            store.save(NODE, BaselineFile("sbo", "sim-x"))
        assert store.load(NODE, "sbo") == FILE
    finally:
        folder.chmod(0o700)


def test_a_full_disk_keeps_the_old_content_and_leaves_nothing(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.save(NODE, FILE)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BaselineUnwritable, match="No space left on device"):
        store.save(NODE, BaselineFile("sbo", "sim-x"))
    monkeypatch.undo()
    assert store.load(NODE, "sbo") == FILE
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_file_names_itself(store: BaselineStore) -> None:
    path = store.save(NODE, FILE)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BaselineError, match=rf"{path} is damaged"):
        store.load(NODE, "sbo")
    path.unlink()
    path.mkdir()
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        store.load(NODE, "sbo")


def test_leftovers_go_only_if_they_are_ours_and_old(tmp_path: Path) -> None:
    old, young, foreign = (tmp_path / name for name in (".a.sglang-perf-tmp", ".b.sglang-perf-tmp", ".c.tmp"))
    for file in (old, young, foreign):
        file.touch()
    for file in (old, foreign):
        os.utime(file, (time.time() - 7200,) * 2)
    assert clean_leftovers(tmp_path) == [old]
    assert sorted(tmp_path.iterdir()) == [young, foreign]
    assert clean_leftovers(tmp_path / "none") == []


def test_history_is_appended_and_survives_a_torn_line(store: BaselineStore) -> None:
    assert store.history(NODE, "sbo") == []
    store.append_history(NODE, "sbo", [{"n": 1}, {"n": 2}])
    path = store.history_path(NODE, "sbo")
    with path.open("a") as stream:
        stream.write('{"n": 3, "torn')
    assert store.history(NODE, "sbo") == [{"n": 1}, {"n": 2}]
    store.append_history(NODE, "sbo", [{"n": 4}])
    assert store.history(NODE, "sbo") == [{"n": 1}, {"n": 2}, {"n": 4}]


_WRITER = """
import sys
from pathlib import Path
from pytest_sglang_perf.baselines import write_atomically
path = Path(sys.argv[1])
print("go", flush=True)
for number in range(1000):
    write_atomically(path, ("%d " % number) * 20000 + "end")
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_atomically(path, "0 end")
    seen = set()
    for _ in range(12):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))  # the moment of the kill is the point
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=30)
        writer.stdout.close()
        words = path.read_text().split()
        assert words.pop() == "end"
        assert len(set(words)) == 1
        seen.add(words[0])
    assert len(seen) > 3  # it was really writing
    leftovers = [file for file in tmp_path.iterdir() if file != path]
    for file in leftovers:
        os.utime(file, (time.time() - 7200,) * 2)
    assert sorted(clean_leftovers(tmp_path)) == sorted(leftovers)
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_history_names_itself(store: BaselineStore) -> None:
    path = store.history_path(NODE, "sbo")
    path.mkdir(parents=True)
    with pytest.raises(BaselineError, match=rf"the history file {path} cannot be read"):
        store.history(NODE, "sbo")


def test_history_lines_are_json(store: BaselineStore) -> None:
    store.append_history(NODE, "sbo", [boot(1).to_dict()])
    (line,) = store.history_path(NODE, "sbo").read_text().splitlines()
    assert json.loads(line)["session"] == "s1"
