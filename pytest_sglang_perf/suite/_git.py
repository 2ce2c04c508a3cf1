"""The few questions that selection by change, and comparing baselines, ask git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pytest_sglang_perf.errors import SuiteError

__all__ = ["Repository"]

_TIMEOUT_S = 120.0
# A hook's environment points at the repository that is being committed to, which need not be the suite's.
_FROM_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class Repository:
    """The git repository (or submodule) that holds a folder; ``asked_by`` begins its errors.

    Raises:
        SuiteError: on construction, when the folder is in none or git cannot be used; the message advises.
    """

    def __init__(self, folder: Path, *, asked_by: str = "--sglang-changed-since") -> None:
        self.root = folder
        self._asked_by = asked_by
        done = self._run("rev-parse", "--show-toplevel")
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            if "dubious ownership" in said:
                raise SuiteError(
                    f"git refuses to read {folder}, which belongs to another user. "
                    f"Allow it: git config --global --add safe.directory {folder}"
                )
            raise SuiteError(
                f"{self._asked_by} needs {folder} in a git repository, but it is in none."
                + (" Leave the option out to run everything." if self._asked_by.startswith("--") else "")
            )
        self.root = Path(os.fsdecode(done.stdout.removesuffix(b"\n")))

    def commit(self, ref: str) -> str:
        """The commit that a ref names.

        Raises:
            SuiteError: there is no such commit here.
        """
        done = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if done.returncode != 0:
            shallow = self._run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
            advice = (
                "This clone is shallow: fetch the whole history first (git fetch --unshallow; "
                "in GitHub Actions, fetch-depth: 0 for actions/checkout)."
                if shallow
                else "Name a branch, tag or commit; fetch a remote branch first (git fetch origin)."
            )
            raise SuiteError(f"{self._asked_by}: {ref!r} is no commit in {self.root}. {advice}")
        return done.stdout.decode("ascii").strip()

    def base(self, commit: str) -> str:
        """Where the present state branched off from ``commit``; ``commit`` itself if they share no history."""
        done = self._run("merge-base", commit, "HEAD")
        return done.stdout.decode("ascii").strip() if done.returncode == 0 else commit

    def show(self, commit: str, path: Path) -> bytes:
        """A file's content as of a commit; ``path`` is relative to the root.

        Raises:
            FileNotFoundError: it did not exist there.
        """
        done = self._run("show", f"{commit}:{path.as_posix()}")
        if done.returncode != 0:
            raise FileNotFoundError(2, f"not there as of {commit[:12]}", str(path))
        return done.stdout

    def files(self, commit: str, folder: Path) -> list[Path]:
        """Files below a folder as of a commit; all paths are relative to the root.

        Raises:
            SuiteError: git failed.
        """
        below = [] if folder == Path() else ["--", f"{folder.as_posix()}/"]
        listed = self._ask("ls-tree", "-r", "-z", "--full-tree", "--name-only", commit, *below)
        return [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]

    def changes(self, commit: str) -> dict[Path, str]:
        """Paths that differ between a commit and the files as they are now -> how, in words.

        Everything counts that is not as it was: commits, staged and unstaged changes, and new files that are not
        ignored. A renamed file is there under both names.

        Raises:
            SuiteError: git failed.
        """
        found: dict[Path, str] = {}
        fields = self._ask(
            "diff", "--name-status", "-z", "--find-renames", "--ignore-submodules=none", commit, "--"
        ).split(b"\0")
        items = iter(fields)
        for status in items:
            if not status:
                break
            path = Path(os.fsdecode(next(items)))
            if status[:1] in (b"R", b"C"):
                new = Path(os.fsdecode(next(items)))
                found[new] = f"renamed from {path}"
                if status[:1] == b"R":
                    found[path] = f"renamed to {new}"
            else:
                found[path] = {b"A": "added", b"D": "removed"}.get(status[:1], "changed")
        for name in self._ask("ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
            if name:
                found[Path(os.fsdecode(name))] = "added"
        return found

    def _ask(self, *arguments: str) -> bytes:
        done = self._run(*arguments)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise SuiteError(f"{self._asked_by}: git {arguments[0]} failed in {self.root}: {said}")
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        environ = {key: value for key, value in os.environ.items() if key not in _FROM_HOOKS}
        environ |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
        try:
            return subprocess.run(
                ["git", "-C", str(self.root), *arguments],
                capture_output=True,
                check=False,
                env=environ,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
            )
        except FileNotFoundError:
            raise SuiteError(f"{self._asked_by} needs git, which is not installed here.") from None
        except subprocess.TimeoutExpired:
            raise SuiteError(f"{self._asked_by}: git {arguments[0]} took longer than {_TIMEOUT_S:.0f} s") from None
