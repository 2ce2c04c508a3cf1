"""Reading files of the run, part by part, and no others."""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path
from typing import Any, Dict

from .protocol import OrderError

__all__ = ["read_part"]


def read_part(run_dir: Path, path: str, offset: int, length: int) -> Dict[str, Any]:
    """A part of a file inside ``run_dir``: base64 of zlib, whether it reaches the end, and the file's size.

    Raises:
        OrderError: ``outside`` for a path that leads out of the folder, ``no_such_file``.
    """
    try:
        real = Path(os.path.realpath(run_dir / path))
    except ValueError:
        raise OrderError("no_such_file", f"{path!r:.300} can be no path") from None
    if Path(os.path.realpath(run_dir)) not in real.parents:
        raise OrderError("outside", f"{path} is not in the run's folder")
    if not real.is_file():  # a pipe would hold us up
        raise OrderError("no_such_file", f"{path} is no file")
    try:
        with real.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(offset)
            data = stream.read(length)
    except OSError as error:
        raise OrderError("no_such_file", f"{path}: {error.strerror or error}") from None
    return {
        "data": base64.b64encode(zlib.compress(data, 1)).decode("ascii"),
        "eof": offset + len(data) >= size,
        "size": size,
    }
