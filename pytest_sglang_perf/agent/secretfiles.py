"""Secrets that a program takes from a file: written for this user's eyes only, and only while they are needed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Dict, List, Optional

from .protocol import OrderError

__all__ = ["SecretFiles"]

_PREFIX = "{secret_file:"
_KEYS = ("api-key", "admin-api-key")


class SecretFiles:
    """The files of one boot.

    Args:
        contents: placeholder in the command line (``{secret_file:NAME}``) to content.

    Attributes:
        places: placeholder to the path that takes its place; empty until `write`.
    """

    def __init__(self, contents: Dict[str, str]) -> None:
        self._contents = contents
        self.places: Dict[str, str] = {}

    @property
    def api_key(self) -> Optional[str]:
        """The server's key, where one is among them: whoever asks the server something needs it."""
        for content in self._contents.values():
            try:
                values = json.loads(content)
            except ValueError:
                continue
            if isinstance(values, dict):
                for name in _KEYS:
                    if values.get(name):
                        return str(values[name])
        return None

    def values(self) -> List[str]:
        """What must be hidden: the strings in files that are JSON objects; of others, the whole content."""
        values: List[str] = []
        for content in self._contents.values():
            try:
                parsed = json.loads(content)
            except ValueError:
                parsed = None
            if isinstance(parsed, dict):
                values.extend(str(value) for value in parsed.values())
            else:
                values.append(content.strip())
        return values

    def write(self, run_dir: Path, boot: str) -> None:
        """Write them; a file's suffix is kept, since programs look at it.

        Raises:
            OrderError: ``bad_request``, a placeholder that is none.
        """
        for place, content in self._contents.items():
            if not place.startswith(_PREFIX) or not place.endswith("}") or "/" in place:
                raise OrderError("bad_request", f"secret file {place!r:.80} is no {_PREFIX}NAME}}")
            path = run_dir / f"secret-{boot}-{place[len(_PREFIX) : -1]}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self.places[place] = str(path)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(content)

    def remove(self) -> None:
        """Remove what was written."""
        for path in self.places.values():
            try:
                os.unlink(path)
            except OSError:
                continue
