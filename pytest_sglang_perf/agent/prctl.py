"""Two services of the kernel that Python has no name for."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Optional

__all__ = ["become_subreaper", "dies_with_us"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _find_prctl() -> Optional[Callable[..., int]]:
    try:
        import ctypes

        function: Any = ctypes.CDLL(None, use_errno=True).prctl
        function.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    except (ImportError, OSError, AttributeError):  # a Python built without ctypes still supervises, by walking /proc
        return None
    return function  # type: ignore[no-any-return]


# Looked up once: after a fork there must be nothing left to import or to load.
_prctl = _find_prctl()


def become_subreaper() -> bool:
    """Let processes that lose their parent become ours, however often they forked; returns whether that works."""
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def dies_with_us() -> Callable[[], None]:
    """What a child runs between fork and exec, so that it is killed when its parent dies.

    The kernel ties this to the thread that forked, so that has to be one which lives as long as we do.
    """
    parent = os.getpid()

    def in_child() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return in_child
