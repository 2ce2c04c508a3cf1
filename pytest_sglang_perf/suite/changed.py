"""Selection by change: which tests have another meaning than at a git ref, and why.

What is compared is what a test resolves to, not lines of text: a server config with everything it inherits, the
workload, the node, the margins; and the test's own source, conftest.py files above it and helper modules beside the
suite. Reordering or commenting the suite file selects nothing, a flag in a common parent selects every child.

The comparison is with the point where the present state branched off from the ref, so that what others changed on
the main branch meanwhile selects nothing here. Uncommitted changes count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_sglang_perf.errors import SuiteError
from pytest_sglang_perf.suite._git import Repository
from pytest_sglang_perf.suite.loader import Suite, parse_suite

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Changes", "changed_since"]


@dataclass(frozen=True)
class Changes:
    """What changed since a ref. Pure data; ``reasons`` selects.

    Attributes:
        ref: the ref as the user named it.
        now: the suite as it is.
        before: the suite as it was, or None.
        everything: why all tests are selected, where ``before`` cannot be had.
        root: the repository's folder, absolute and without links.
        files: changed paths relative to ``root`` -> how they changed, in words.
    """

    ref: str
    now: Suite
    before: Suite | None
    root: Path
    everything: str | None = None
    files: Mapping[Path, str] = field(default_factory=dict)

    def reasons(
        self, *, server: str | None, control: str | None, workload: str | None, node: str | None, path: Path
    ) -> list[str]:
        """Why a test that declares these is selected; empty if nothing of it changed.

        Args:
            server: name of the server config under test; like the others, None where the test has none.
            control: name of the control.
            workload: name of the workload.
            node: name of the node.
            path: the file of the test.
        """
        if self.before is None:
            return [self.everything or f"the suite cannot be compared with {self.ref}"]
        found = [
            *self._server(self.before, server, "server config"),
            *self._server(self.before, control, "control"),
            *self._workload(self.before, workload),
            *self._node(self.before, node),
            *self._margins(self.before),
            *self._source(path),
        ]
        return list(dict.fromkeys(found))

    def _server(self, before: Suite, name: str | None, word: str) -> list[str]:
        if name is None or name not in self.now.servers:
            return []
        if name not in before.servers:
            return [f"{word} {name} is new"]
        new = self.now.servers[name]
        lines = []
        for line in before.servers[name].describe_difference(new):
            # The first of the chain that changed so is where somebody wrote it.
            origin = next((link for link in new.chain if line in self._differences(before, link)), name)
            lines.append(f"{word} {name}: {line}{f' (inherited from {origin})' if origin != name else ''}")
        return lines

    def _differences(self, before: Suite, name: str) -> list[str]:
        old, new = before.servers.get(name), self.now.servers.get(name)
        return old.describe_difference(new) if old and new else []

    def _workload(self, before: Suite, name: str | None) -> list[str]:
        if name is None or name not in self.now.workloads:
            return []
        if name not in before.workloads:
            return [f"workload {name} is new"]
        lines = before.workloads[name].describe_difference(self.now.workloads[name])
        return [f"workload {name}: {line}" for line in lines] + self._default(before, "workload", name)

    def _node(self, before: Suite, name: str | None) -> list[str]:
        if name is None or name not in self.now.nodes:
            return []
        if name not in before.nodes:
            return [f"node {name} is new"]
        old, new = before.nodes[name].model_dump(), self.now.nodes[name].model_dump()
        lines = [
            f"node {name}: {key} changed from {old.get(key)} to {new.get(key)}"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]
        return lines + self._default(before, "node", name)

    def _default(self, before: Suite, what: str, name: str) -> list[str]:
        old, new = (getattr(suite, f"default_{what}") for suite in (before, self.now))
        return [f"default_{what} changed from {old} to {new}"] if old != new and new == name else []

    def _margins(self, before: Suite) -> list[str]:
        old, new = before.margins, self.now.margins
        return [
            f"margins.{metric} changed from {old.get(metric, 'none')} to {new.get(metric, 'none')}"
            for metric in sorted(old.keys() | new.keys())
            if old.get(metric) != new.get(metric)
        ]

    def _source(self, path: Path) -> list[str]:
        try:
            own = path.resolve().relative_to(self.root)
        except ValueError:
            return [f"{path} is outside of the repository {self.root}, so that its changes cannot be seen"]
        lines = [f"{own} {how}"] if (how := self._changed(own)) else []
        above = set(own.parents)
        suite_folder = self.now.path.resolve().parent
        for file, change in sorted(self.files.items()):
            if file.name == "conftest.py":
                if file.parent in above:
                    lines.append(f"{file} {change}")
            elif file.suffix == ".py" and not _is_test(file) and (self.root / file).is_relative_to(suite_folder):
                lines.append(f"helper module {file} {change}")
        return lines

    def _changed(self, file: Path) -> str | None:
        """How a file changed; a folder that git knows as one thing (a submodule) stands for what is in it."""
        if file in self.files:
            return self.files[file]
        inside = next((parent for parent in file.parents if parent in self.files), None)
        return None if inside is None else f"is in {inside}, which {self.files[inside]}"


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") or file.stem.endswith("_test")


def changed_since(ref: str, suite: Suite, path: Path) -> Changes:
    """What changed since ``ref``.

    Args:
        ref: a git branch, tag or commit.
        suite: the suite as it is.
        path: the suite file.

    Raises:
        SuiteError: the suite is in no git repository, or ``ref`` is unknown there.
    """
    path = path.resolve()
    repository = Repository(path.parent)
    base = repository.base(repository.commit(ref))
    root = repository.root.resolve()
    files = repository.changes(base)
    own = path.relative_to(root)
    how = files.get(own, "")
    old = Path(how.removeprefix("renamed from ")) if how.startswith("renamed from ") else own

    def read_old(file: Path) -> bytes:
        try:
            inside = Path(file).resolve().relative_to(root)
        except ValueError:  # not under version control: all that is known is how it is now
            return file.read_bytes()
        return repository.show(base, inside)

    everything, before = None, None
    try:
        content = repository.show(base, old)
        before = parse_suite(content, root / old, name=f"{old} as of {ref}", read_file=read_old)
    except FileNotFoundError:
        everything = f"the suite file {own} did not exist at {ref}"
    except SuiteError as error:
        first = next(line for line in reversed(str(error).splitlines()) if line)
        everything = f"the suite file as of {ref} cannot be read by this version ({first})"
    return Changes(ref=ref, now=suite, before=before, root=root, everything=everything, files=files)
