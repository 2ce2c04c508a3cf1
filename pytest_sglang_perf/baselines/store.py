"""The folder of baselines: ``<root>/<node class>/<server config>.json`` and its history beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_sglang_perf.baselines.files import append_lines, clean_leftovers, write_atomically
from pytest_sglang_perf.baselines.model import BaselineFile
from pytest_sglang_perf.errors import BaselineError, BaselineUnwritable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_sglang_perf.baselines.node_class import NodeClass

__all__ = ["BaselineStore"]


class BaselineStore:
    """Reads and writes the baselines below ``root``. Only the session's controller writes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, node_class: NodeClass, server: str) -> Path:
        """Where the baseline of a server config on a node class is stored, whether or not it exists."""
        return self.root / node_class.slug / f"{server}.json"

    def history_path(self, node_class: NodeClass, server: str) -> Path:
        """Where every judged boot of a server config on a node class is appended."""
        return self.root / node_class.slug / f"{server}.history.jsonl"

    def load(self, node_class: NodeClass, server: str) -> BaselineFile | None:
        """What is stored, or None.

        Raises:
            BaselineError: the file cannot be read, is damaged, or is written by a newer version.
        """
        path = self.path(node_class, server)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except UnicodeDecodeError:
            text = ""  # reported as damaged, with the advice
        except OSError as error:
            raise BaselineError(f"the baseline file {path} cannot be read: {error.strerror}.") from None
        return BaselineFile.from_text(text, file=str(path))

    def save(self, node_class: NodeClass, file: BaselineFile) -> Path:
        """Write a file atomically; equal content leaves it untouched.

        Raises:
            BaselineUnwritable: the folder or file cannot be written. What was stored before is intact.
        """
        path = self.path(node_class, file.server)
        try:
            clean_leftovers(path.parent)
            write_atomically(path, file.to_text())
        except OSError as error:
            raise _unwritable(path, error) from None
        return path

    def other_classes(self, node_class: NodeClass, server: str) -> list[str]:
        """Slugs of other node classes for which a baseline of this server config is stored."""
        found = sorted(path.parent.name for path in self.root.glob(f"*/{server}.json"))
        return [slug for slug in found if slug != node_class.slug]

    def append_history(self, node_class: NodeClass, server: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Append judged boots, one JSON line each.

        Raises:
            BaselineUnwritable: the folder or file cannot be written.
        """
        path = self.history_path(node_class, server)
        lines = [json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False) for entry in entries]
        try:
            append_lines(path, lines)
        except OSError as error:
            raise _unwritable(path, error) from None

    def history(self, node_class: NodeClass, server: str) -> list[dict[str, Any]]:
        """Everything appended so far, oldest first; lines that a crash tore are left out.

        Raises:
            BaselineError: the file cannot be read.
        """
        path = self.history_path(node_class, server)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BaselineError(f"the history file {path} cannot be read: {error.strerror}.") from None
        found = []
        for line in raw.split(b"\n"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found


def _unwritable(path: Path, error: OSError) -> BaselineUnwritable:
    return BaselineUnwritable(
        f"{path} cannot be written: {error.strerror or error}. What was stored before is intact. "
        f"Make the folder writable for this user, or free some space, and run again with --update-baselines."
    )
