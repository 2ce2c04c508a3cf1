"""Keep secrets out of what we say and store: by value, wherever it turns up, and by key in structured answers."""

from __future__ import annotations

import json
import re
from typing import Any, Iterable, List, Tuple

__all__ = ["Redactor"]

_SECRET_KEY = re.compile(r"(?i)(^|[_-])(api[_-]?keys?|password|secret|credentials?)$|^(hf|hugging_face_hub)_token$")
_SHORTEST = 4  # hiding every "1" would hide everything else as well


class Redactor:
    """Masks known secrets by asterisks of the same length, so that positions stay true.

    Args:
        values: the secrets.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        unique = {value for value in values if len(value) >= _SHORTEST}
        # As bytes, and as JSON would write it; the longest first, since one may hold another.
        spelled = {value.encode("utf-8", "surrogateescape") for value in unique}
        spelled.update(json.dumps(value)[1:-1].encode() for value in unique)
        self._secrets: List[bytes] = sorted(spelled, key=len, reverse=True)

    @property
    def longest(self) -> int:
        """The length of the longest secret in bytes, 0 without any."""
        return len(self._secrets[0]) if self._secrets else 0

    def find(self, data: bytes) -> List[Tuple[int, int]]:
        """Where secrets are in ``data``: pairs of start and length."""
        found = []
        for secret in self._secrets:
            position = data.find(secret)
            while position >= 0:
                found.append((position, len(secret)))
                position = data.find(secret, position + 1)
        return found

    def mask(self, data: bytes) -> bytes:
        """``data`` with its secrets masked."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        return data

    def text(self, text: str) -> str:
        """``text`` with its secrets masked."""
        if not self._secrets:
            return text
        return self.mask(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def structure(self, value: Any) -> Any:
        """A JSON value with secrets masked, and with what stands under a secret's name masked whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.structure(item) for item in value]
        if isinstance(value, dict):
            return {self.text(str(key)): self._entry(str(key), item) for key, item in value.items()}
        return value

    def _entry(self, key: str, value: Any) -> Any:
        if _SECRET_KEY.search(key) and value not in (None, "", [], {}):
            return "***"
        return self.structure(value)
