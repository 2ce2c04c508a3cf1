"""Selection by change, in real git repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite import load_suite
from pytest_sglang_perf.suite.changed import Changes, changed_since

SUITE = """\
default_node: sim
nodes:
  sim: {kind: sim}
  gpu: {kind: ssh, host: a}
servers:
  base: {model: m, args: {tp: 8}}
  mscclpp: {extends: base, args: {enable-mscclpp: true}}
  sbo: {extends: mscclpp, args: {enable-single-batch-overlap: true}}
  other: {model: n}
workloads:
  short: {input_len: 128, output_len: 128, concurrency: [1, 8]}
  long: {input_len: 4096, output_len: 128, concurrency: 1}
default_workload: short
"""


class Project:
    """A git repository with a suite in ``perf``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.write("perf/sglang-perf.yaml", SUITE)
        self.write("perf/test_sbo.py", "def test_it(): ...\n")
        self.write("perf/deep/test_deep.py", "def test_deep(): ...\n")
        self.write("perf/conftest.py", "# a\n")
        self.write("perf/helpers.py", "# a\n")
        self.write("src/code.py", "# a\n")
        self.commit()

    def git(self, *arguments: str) -> str:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        for who in ("AUTHOR", "COMMITTER"):
            environ |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@example.org"}
        command = ["git", "-C", str(self.root), "-c", "protocol.file.allow=always", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout

    def write(self, name: str, content: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def edit(self, old: str, new: str) -> None:
        assert old in SUITE
        self.write("perf/sglang-perf.yaml", SUITE.replace(old, new))

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x", "--allow-empty")
        return self.git("rev-parse", "HEAD").strip()

    def changes(self, ref: str = "main", suite: str = "perf/sglang-perf.yaml") -> Changes:
        path = self.root / suite
        return changed_since(ref, load_suite(path), path)

    def reasons(self, ref: str = "main", **test) -> list[str]:
        declared = {"server": "sbo", "control": None, "workload": "short", "node": "sim"} | test
        path = self.root / declared.pop("path", "perf/test_sbo.py")
        return self.changes(ref).reasons(path=path, **declared)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_nothing_changed_selects_nothing(project: Project) -> None:
    assert project.reasons() == []
    assert project.reasons(server="base", control="sbo", workload="long", node="gpu") == []


def test_form_is_not_content(project: Project) -> None:
    project.edit(
        "  base: {model: m, args: {tp: 8}}", "  # why\n  base:\n    args: {tensor_parallel_size: 8}\n    model: m"
    )
    assert project.reasons() == []


def test_a_changed_flag_selects_the_config_and_its_heirs(project: Project) -> None:
    project.edit("tp: 8", "tp: 4")
    change = "args.tp-size changed from 8 to 4"
    assert project.reasons(server="base") == [f"server config base: {change}"]
    assert project.reasons(server="sbo") == [f"server config sbo: {change} (inherited from base)"]
    assert project.reasons(server="other") == []
    assert project.reasons(server="other", control="mscclpp") == [f"control mscclpp: {change} (inherited from base)"]


@pytest.mark.parametrize(
    ("old", "new", "test", "reason"),
    [
        (
            "{enable-single-batch-overlap: true}",
            "{}",
            {},
            "server config sbo: args.enable-single-batch-overlap removed",
        ),
        (
            "sbo: {extends: mscclpp",
            "sbo: {env: {A: 1}, extends: mscclpp",
            {},
            "server config sbo: env.A added (1)",
        ),
        ("  other: {model: n}", "  new: {model: n}", {"server": "new"}, "server config new is new"),
        ("[1, 8]", "[1, 9]", {}, "workload short: concurrency changed from [1, 8] to [1, 9]"),
        ("[1, 8]", "[1, 9]", {"workload": "long"}, None),
        (
            "short: {input_len: 128",
            "short: {input_len: {kind: uniform, low: 1, high: 9}",
            {},
            "workload short: input_len changed from 128 to {kind: uniform, low: 1, high: 9}",
        ),
        ("  long:", "  fresh:", {"workload": "fresh"}, "workload fresh is new"),
        ("host: a", "host: b", {"node": "gpu"}, "node gpu: host changed from a to b"),
        ("host: a", "host: b", {"node": "sim"}, None),
        ("gpu: {kind: ssh, host: a}", "big: {kind: local}", {"node": "big"}, "node big is new"),
        ("default_node: sim", "default_node: gpu", {"node": "gpu"}, "default_node changed from sim to gpu"),
        ("default_node: sim", "default_node: gpu", {"node": "sim"}, None),
        ("default_workload: short", "default_workload: long", {"workload": "long"}, "default_workload changed from"),
        ("default_node", "margins: {ttft_p50: 0.1}\ndefault_node", {}, "margins.ttft_p50 changed from none to 0.1"),
    ],
)
def test_what_a_test_resolves_to(project: Project, old: str, new: str, test: dict, reason: str | None) -> None:
    project.edit(old, new)
    found = project.reasons(**test)
    if reason is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith(reason)


def test_test_sources(project: Project) -> None:
    project.write("perf/test_sbo.py", "def test_it(): assert True\n")
    assert project.reasons() == ["perf/test_sbo.py changed"]
    assert project.reasons(path="perf/deep/test_deep.py") == []


def test_a_conftest_selects_what_is_below_it(project: Project) -> None:
    project.write("perf/deep/conftest.py", "# new\n")
    assert project.reasons(path="perf/deep/test_deep.py") == ["perf/deep/conftest.py added"]
    assert project.reasons() == []
    project.write("conftest.py", "# new\n")
    assert project.reasons() == ["conftest.py added"]


def test_helper_modules_beside_the_suite_select_all_of_it(project: Project) -> None:
    (project.root / "perf/helpers.py").unlink()
    project.write("src/code.py", "# b\n")
    assert project.reasons() == ["helper module perf/helpers.py removed"]
    assert project.reasons(path="perf/deep/test_deep.py") == ["helper module perf/helpers.py removed"]


@pytest.mark.parametrize("state", ["unstaged", "staged", "committed", "untracked"])
def test_every_way_of_being_changed_counts(project: Project, state: str) -> None:
    project.git("switch", "-q", "-c", "work")
    name = "perf/test_new.py" if state == "untracked" else "perf/test_sbo.py"
    project.write(name, "# changed\n")
    if state == "staged":
        project.git("add", "-A")
    if state == "committed":
        project.commit()
    assert project.reasons(path=name) == [f"{name} {'added' if state == 'untracked' else 'changed'}"]


def test_ignored_files_do_not_count(project: Project) -> None:
    project.write(".gitignore", "*_local.py\n")
    project.commit()
    project.write("perf/my_local.py", "")
    assert project.reasons() == []


def test_what_others_changed_on_the_ref_meanwhile_does_not_count(project: Project) -> None:
    project.git("switch", "-q", "-c", "work")
    project.write("perf/deep/test_deep.py", "# mine\n")
    project.commit()
    project.git("switch", "-q", "main")
    project.edit("tp: 8", "tp: 2")
    project.commit()
    project.git("switch", "-q", "work")
    assert project.reasons() == []
    assert project.reasons(path="perf/deep/test_deep.py") == ["perf/deep/test_deep.py changed"]


def test_a_ref_without_common_history_is_compared_itself(project: Project) -> None:
    project.git("switch", "-q", "--orphan", "work")
    project.git("checkout", "-q", "main", "--", ".")
    project.edit("tp: 8", "tp: 2")
    project.commit()
    assert project.reasons(server="base") == ["server config base: args.tp-size changed from 8 to 2"]


def test_renamed_files(project: Project) -> None:
    project.git("mv", "perf/sglang-perf.yaml", "perf/renamed.yaml")
    project.git("mv", "perf/test_sbo.py", "perf/test_overlap.py")
    changes = project.changes(suite="perf/renamed.yaml")
    test = {"server": "sbo", "control": None, "workload": "short", "node": "sim"}
    assert changes.reasons(path=project.root / "perf/deep/test_deep.py", **test) == []
    assert changes.reasons(path=project.root / "perf/test_overlap.py", **test) == [
        "perf/test_overlap.py renamed from perf/test_sbo.py"
    ]


def test_a_suite_that_did_not_exist_selects_everything(project: Project) -> None:
    project.write("new/sglang-perf.yaml", "servers: {s: {model: m, args: {quite: different}}}")
    changes = project.changes(suite="new/sglang-perf.yaml")
    reasons = changes.reasons(server="s", control=None, workload=None, node=None, path=project.root / "new/test_a.py")
    assert reasons == ["the suite file new/sglang-perf.yaml did not exist at main"]


def test_a_suite_that_was_unreadable_selects_everything(project: Project) -> None:
    project.edit("model: m", "model: on")
    old = project.commit()
    project.write("perf/sglang-perf.yaml", SUITE)
    (reason,) = project.reasons(old)
    assert reason.startswith(f"the suite file as of {old} cannot be read by this version (perf/sglang-perf.yaml as of")
    assert "only true and false are booleans" in reason


def test_referred_files_are_compared_too(project: Project) -> None:
    text = SUITE.replace("short: {input_len: 128", "short: {input_len: {kind: file, path: lengths.txt}")
    project.write("perf/sglang-perf.yaml", text)
    project.write("perf/lengths.txt", "1\n")
    project.commit()
    assert project.reasons() == []
    project.write("perf/lengths.txt", "2\n")
    assert project.reasons() == ["workload short: the content of lengths.txt changed"]
    project.git("rm", "-q", "--cached", "perf/lengths.txt")
    project.git("commit", "-q", "-m", "forgotten")
    assert "(perf/sglang-perf.yaml as of main" in project.reasons()[0]
    assert "not there as of" in project.reasons()[0]


def test_a_test_outside_of_the_repository_is_selected(project: Project, tmp_path: Path) -> None:
    (reason,) = project.reasons(path=str(tmp_path / "elsewhere/test_x.py"))
    assert "is outside of the repository" in reason


def test_submodules(project: Project, tmp_path: Path) -> None:
    inner = Project(tmp_path / "inner")
    project.git("submodule", "--quiet", "add", str(inner.root), "vendored")
    project.commit()
    path = project.root / "vendored/perf/test_sbo.py"
    assert project.reasons(path=str(path)) == []
    path.write_text("# changed in the submodule\n")
    assert project.reasons(path=str(path)) == [
        "vendored/perf/test_sbo.py is in vendored, which changed",
    ]
    # A suite inside of a submodule is compared within it.
    assert project.changes(suite="vendored/perf/sglang-perf.yaml").files == {Path("perf/test_sbo.py"): "changed"}


def test_links_and_odd_names(project: Project, tmp_path: Path) -> None:
    project.write("perf/test_ä b\n.py", "# new\n")
    (tmp_path / "link").symlink_to(project.root)
    suite = tmp_path / "link/perf/sglang-perf.yaml"
    changes = changed_since("main", load_suite(suite), suite)
    test = {"server": "sbo", "control": None, "workload": "short", "node": "sim"}
    assert changes.reasons(path=tmp_path / "link/perf/test_ä b\n.py", **test) == ["perf/test_ä b\n.py added"]
    assert changes.reasons(path=tmp_path / "link/perf/test_sbo.py", **test) == []


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    suite = tmp_path / "sglang-perf.yaml"
    suite.write_text(SUITE)
    with pytest.raises(SuiteError, match=r"is in none\. Leave the option out to run everything"):
        changed_since("main", load_suite(suite), suite)


@pytest.mark.parametrize("ref", ["nowhere", "--output=x", "main:perf", ""])
def test_an_unknown_ref(project: Project, ref: str) -> None:
    with pytest.raises(SuiteError, match=r"is no commit in .* fetch a remote branch first"):
        project.changes(ref)


def test_a_shallow_clone_is_told_how_to_deepen(project: Project, tmp_path: Path) -> None:
    project.commit()
    project.git("clone", "-q", "--depth=1", f"file://{project.root}", str(tmp_path / "clone"))
    suite = tmp_path / "clone/perf/sglang-perf.yaml"
    with pytest.raises(SuiteError, match=r"clone is shallow: .*fetch-depth: 0"):
        changed_since("HEAD~1", load_suite(suite), suite)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    os.chown(project.root, 12345, 12345)
    with pytest.raises(SuiteError, match=r"belongs to another user\. Allow it: git config --global --add safe"):
        project.changes()


def test_a_referred_file_outside_of_the_repository(project: Project, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("1\n")
    text = SUITE.replace("short: {input_len: 128", "short: {input_len: {kind: file, path: ../../lengths.txt}")
    project.write("perf/sglang-perf.yaml", text)
    project.commit()
    assert project.reasons() == []


def test_without_git(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SuiteError, match="needs git, which is not installed"):
        project.changes()


def test_inside_of_a_git_hook(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Project(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.root / ".git/index"))
    project.edit("tp: 8", "tp: 4")
    assert len(project.reasons()) == 1
