"""Files that are true only while who wrote them lives, in a folder that several Unix users share.

Whoever publishes a file holds a kernel lock (``flock``) on it, which ends with the process however that ends. A
file that nobody has locked is a leftover, and never believed. Names are unique, so that a leftover can be removed
without touching what somebody else writes at that moment.

Others may write to the folder, so nothing in it is trusted: links and what is no regular file are refused, and what
is read is bounded, of known type and printable.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

__all__ = [
    "Published",
    "alive",
    "is_at",
    "is_locked",
    "open_folder",
    "plain",
    "publish",
    "try_lock",
    "unlock",
    "withdraw",
]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = ".new-"
_NEW_KEPT_S = 60.0
_MAX_BYTES = 16 * 1024
_MAX_TEXT = 400


class Published(NamedTuple):
    """A file of somebody who lives: its name, what it says, and seconds since it was last touched."""

    name: str
    content: Dict[str, Any]
    age_s: float


def open_folder(path: str, *, make: bool) -> int:
    """Open the shared folder, made with mode 1777 when it is not there and ``make``; returns its descriptor.

    Raises:
        OSError: it cannot be made or opened, is a link or no folder, or lets users remove each other's files.
    """
    made = False
    if make:
        try:
            Path(path).mkdir(mode=0o700, parents=True)
            made = True
        except FileExistsError:
            pass
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _share(folder, path, made=made)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _share(folder: int, path: str, *, made: bool) -> None:
    status = os.fstat(folder)
    # Also when who made it was killed before it could be opened to others.
    if made or (status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700):
        os.fchmod(folder, 0o1777)
    elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, "everybody may remove everybody's files there; set its mode to 1777", path)


def is_at(folder: int, path: str) -> bool:
    """Whether the open folder is still the one at ``path``, which others would find."""
    try:
        there = Path(path).lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(folder), there)


def publish(folder: int, name: str, content: Dict[str, Any]) -> int:
    """Write a file, locked and readable by all before it gets its name; returns its descriptor.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f"{_NEW}{secrets.token_hex(8)}"
    descriptor = os.open(
        temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(content).encode("ascii"))
        os.fchmod(descriptor, 0o644)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(descriptor)
        _remove(folder, temporary)
        raise
    return descriptor


def withdraw(path: str, name: str, descriptor: int) -> None:
    """Remove what was published in the folder at ``path``."""
    try:
        Path(path, name).unlink()
    except OSError:
        pass
    unlock(descriptor)


def alive(folder: int, prefix: str) -> Iterator[Published]:
    """Files whose names begin so and whose writers live, by name; leftovers of this user are removed on the way."""
    for name in sorted(os.listdir(folder)):
        if name.startswith((prefix, _NEW)):
            published = _look(folder, name)
            if published is not None and name.startswith(prefix):
                yield published


def _look(folder: int, name: str) -> Optional[Published]:
    try:
        descriptor = _open_regular(folder, name)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        age_s = time.time() - status.st_mtime
        if name.startswith(_NEW) and age_s < _NEW_KEPT_S:
            return None  # about to be locked by who makes it, whom we must not be in the way of
        if _lock(descriptor, fcntl.LOCK_SH):
            if status.st_uid == os.geteuid():
                _remove(folder, name)
            return None
        return Published(name, _content(os.read(descriptor, _MAX_BYTES)), age_s)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _content(data: bytes) -> Dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {plain(key): plain(value) for key, value in values.items()}


def plain(value: Any) -> Any:
    """What a stranger wrote, in a form that can be shown on a terminal."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else "?" for c in value[:_MAX_TEXT])
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    return None


def try_lock(folder: int, name: str, kind: int) -> Optional[int]:
    """Lock a file that stays (made when missing, never removed by us), or None when somebody else has it.

    ``kind`` is ``fcntl.LOCK_EX`` or ``LOCK_SH``. It is opened for reading: that is enough for flock, and no
    protection of files in shared folders (``fs.protected_regular``) is in the way.

    Raises:
        OSError: it cannot be opened or made, or is no regular file.
    """
    try:
        descriptor = _open_regular(folder, name)
    except FileNotFoundError:
        _make_empty(folder, name)
        descriptor = _open_regular(folder, name)
    try:
        if _lock(descriptor, kind) and _is_there(descriptor, folder, name):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_there(descriptor: int, folder: int, name: str) -> bool:
    """Whether it still has that name: a cleaner of temporary files may have taken it away since we opened it."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def is_locked(folder: int, name: str) -> bool:
    """Whether somebody has locked a file for itself alone."""
    try:
        descriptor = _open_regular(folder, name)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Give a lock back. Closing alone would not, while a child between fork and exec has a copy."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_regular(folder: int, name: str) -> int:
    descriptor = os.open(name, _READ, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a regular file", name)
    return descriptor


def _make_empty(folder: int, name: str) -> None:
    """An empty file that all can read, with that mode from the start whatever the umask."""
    temporary = f"{_NEW}{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.fchmod(descriptor, 0o644)
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        pass
    finally:
        os.close(descriptor)
        _remove(folder, temporary)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return
