"""Writing files that are never seen half written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from pathlib import Path

__all__ = ["append_lines", "clean_leftovers", "write_atomically"]

_SUFFIX = ".sglang-perf-tmp"
_LEFTOVER_AGE_S = 3600.0  # no write takes an hour; a younger one may be somebody's at work


def write_atomically(path: Path, text: str) -> bool:
    """Replace the content of ``path``; a crash, a kill or a power cut leaves the old content or the new.

    The folder is made where it is missing, the mode of an existing file is kept, a symbolic link stays one.

    Returns:
        Whether anything was written: equal content leaves the file as it is.

    Raises:
        OSError: the folder or file cannot be written; the old content is untouched.
    """
    path = Path(os.path.realpath(path))
    data = text.encode("utf-8")
    mode = None
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
        mode = stat.S_IMODE(path.stat().st_mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_SUFFIX}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if mode is not None:
                os.fchmod(handle, mode)
            _write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return True


def append_lines(path: Path, lines: list[str]) -> None:
    """Append whole lines, after closing a line that an earlier crash tore.

    Raises:
        OSError: the folder or file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
        _write_all(handle, ("\n" * torn + "".join(f"{line}\n" for line in lines)).encode("utf-8"))
        os.fsync(handle)
    finally:
        os.close(handle)


def clean_leftovers(folder: Path) -> list[Path]:
    """Remove what killed writers left in ``folder``: only our own temporary files, only old ones."""
    removed = []
    with contextlib.suppress(OSError):
        for leftover in folder.glob(f".*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                found = leftover.lstat()
                ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                if ours and time.time() - found.st_mtime > _LEFTOVER_AGE_S:
                    leftover.unlink()
                    removed.append(leftover)
    return removed


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sync_folder(folder: Path) -> None:
    # The new name must survive a power cut as well; some file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
