"""Secrets that can be told anywhere: made up for one test, set in its environment, and looked for afterwards."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["WATCH_COMMAND_LINES", "found_in_files", "found_in_text", "markers"]

#: The body of a test in a user's project: notes which command lines on this machine hold a marker while servers run.
WATCH_COMMAND_LINES = """
import os, pathlib

def exposed():
    markers = [os.environ[name].encode() for name in ("HF_TOKEN", "MY_API_KEY")]
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if any(marker in line for marker in markers):
            found.add(line.replace(b"\\0", b" ").decode(errors="replace")[:80])
    return found
"""


def markers() -> dict[str, str]:
    """Values for ``HF_TOKEN`` and for the variable that holds the API key."""
    return {"HF_TOKEN": f"hf_{secrets.token_hex(16)}", "MY_API_KEY": f"key-{secrets.token_hex(16)}"}


def found_in_text(text: str, values: Mapping[str, str]) -> list[str]:
    """The names of secrets in a text, as they are or in base64."""
    return [
        name
        for name, value in values.items()
        if value in text or base64.b64encode(value.encode()).decode().rstrip("=") in text
    ]


def found_in_files(folders: Iterable[Path], values: Mapping[str, str]) -> dict[str, list[str]]:
    """Every file that holds a secret: path to the names of those in it."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                names = found_in_text(path.read_bytes().decode("utf-8", "replace"), values)
                if names:
                    found[str(path.relative_to(folder))] = names
    return found
