"""Where a run keeps its files on the node: a private folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from .protocol import OrderError

__all__ = ["make", "prune", "root"]

_RUN = re.compile(r"[0-9a-f]{32}\Z")
_KEPT_DAYS = 14


def root() -> Path:
    """``~/.cache/sglang-perf``, or its twin under ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-perf"


def make(run: str) -> Path:
    """Make and return the folder of a run, mode 0700.

    Raises:
        OrderError: ``bad_request`` for a run id that is no uuid in hex, ``run_dir`` when it cannot be made.
    """
    if not _RUN.match(run):
        raise OrderError("bad_request", f"run {run!r:.80} is not a uuid of 32 lower-case hex digits")
    folder = root() / "runs" / run
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (root(), folder.parent, folder):
            path.chmod(0o700)
    except OSError as error:
        raise OrderError("run_dir", f"cannot make {folder}: {error}; XDG_CACHE_HOME moves it") from None
    return folder


def prune(keep: str) -> None:
    """Remove folders of runs that nobody touched for two weeks, never ``keep``."""
    oldest = time.time() - _KEPT_DAYS * 86400
    for folder in (root() / "runs").glob("*"):
        if folder.name != keep and _RUN.match(folder.name) and folder.lstat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)
