"""The wire protocol's framing: JSON objects, one a line, and errors that carry a machine-readable word.

Used by both ends; `docs/reference/wire-protocol.md` describes the messages.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, List, Mapping, Optional

__all__ = ["MAX_LINE", "PROTOCOL", "LineBuffer", "OrderError", "Params", "decode", "encode"]

PROTOCOL = 1
MAX_LINE = 8 * 1024 * 1024
_REQUIRED = object()


class OrderError(Exception):
    """An order cannot be carried out; becomes the ``error`` of its answer."""

    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details

    def as_dict(self) -> Dict[str, Any]:
        """The ``error`` object of the wire."""
        return {"kind": self.kind, "message": str(self), **self.details}


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line of ASCII JSON with its newline.

    ASCII, because a path or an argument of a process may hold bytes that are no UTF-8 (lone surrogates in
    Python), and strict JSON: what is not finite becomes null.
    """
    try:
        text = json.dumps(message, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(message), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def decode(line: bytes) -> Dict[str, Any]:
    """The message in a line.

    Raises:
        OrderError: ``bad_message``, when it is no JSON object or too long.
    """
    if len(line) > MAX_LINE:
        raise OrderError("bad_message", f"a line of {len(line)} bytes; the limit is {MAX_LINE}")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OrderError("bad_message", f"not a line of JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise OrderError("bad_message", f"expected a JSON object, got {type(message).__name__}")
    return message


class LineBuffer:
    """Cuts a byte stream into lines, and gives up on a line that never ends.

    A line over the limit is handed on once, cut short just beyond the limit, so that `decode` refuses it; the
    rest of it is skipped.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: List[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that ``data`` completes, without their newlines."""
        start = 0
        while True:
            end = data.find(b"\n", start)
            part = data[start:] if end < 0 else data[start:end]
            if not self._skipping:
                self._parts.append(part)
                self._size += len(part)
            complete = end >= 0
            if self._size > self._limit:
                yield b"".join(self._parts)[: self._limit + 1]
                self._reset(skipping=not complete)
            elif complete:
                if self._skipping:
                    self._reset(skipping=False)
                else:
                    yield b"".join(self._parts)
                    self._reset(skipping=False)
            if not complete:
                return
            start = end + 1

    def rest(self) -> bytes:
        """The line that has begun and not ended, for another buffer to go on with."""
        return b"".join(self._parts)

    def _reset(self, *, skipping: bool) -> None:
        self._parts = []
        self._size = 0
        self._skipping = skipping


class Params:
    """The parameters of an order, each read with the type it must have.

    Every method raises `OrderError` (``bad_request``) with the parameter's name, what was found and what was
    expected.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def number(self, name: str, default: Any = _REQUIRED, *, low: float = 0.0, high: float = 1e9) -> float:
        """A finite number within ``low`` and ``high``, as a float."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, value, "a number")
        if not low <= value <= high:
            raise self._wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def integer(self, name: str, default: Any = _REQUIRED, *, low: int = 0, high: int = 2**62) -> int:
        """An integer within ``low`` and ``high``."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, value, f"an integer from {low} to {high}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def texts(self, name: str, default: Any = _REQUIRED) -> List[str]:
        """A list of strings."""
        value = self._get(name, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return list(value)

    def mapping(self, name: str, default: Any = _REQUIRED) -> Dict[str, Any]:
        """An object."""
        value = self._get(name, default)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return dict(value)

    def as_dict(self) -> Dict[str, Any]:
        """All of them."""
        return dict(self._values)

    def optional(self, name: str) -> Optional[Any]:
        """Whatever it is, or None when it is not there."""
        return self._values.get(name)

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise OrderError("bad_request", f"parameter {name!r} is missing")
            return default
        return value

    @staticmethod
    def _wrong(name: str, value: Any, expected: str) -> OrderError:
        return OrderError("bad_request", f"parameter {name!r} is {value!r:.200}; expected {expected}")
