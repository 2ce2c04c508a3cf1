"""Baseline files as the subcommands read them: all of a folder, or one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_sglang_perf.baselines import BaselineFile
from pytest_sglang_perf.errors import BaselineError, NoBaseline

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_file", "read_folder", "simulated"]


def simulated(file: BaselineFile) -> bool:
    """Whether a file's figures come from a simulated node."""
    return bool(file.node.get("simulated")) or file.node_class.startswith("sim-")


def read_folder(root: Path) -> tuple[list[BaselineFile], list[str]]:
    """All baseline files below a folder, sorted by node class and server; and what is wrong with the others.

    Raises:
        NoBaseline: there is no such folder.
    """
    if not root.is_dir():
        raise NoBaseline(
            f"there is no folder {root}. Name it with --baselines DIR, or record baselines: pytest --update-baselines"
        )
    files, problems = [], []
    for path in sorted(root.glob("*/*.json")):
        try:
            files.append(read_file(path))
        except BaselineError as error:
            problems.append(str(error))
    return files, problems


def read_file(path: Path) -> BaselineFile:
    """One baseline file.

    Raises:
        BaselineError: it cannot be read or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BaselineError(f"the baseline file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        text = ""
    return BaselineFile.from_text(text, file=str(path))
