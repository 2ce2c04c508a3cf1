"""``serve``: become the agent."""

from __future__ import annotations

import asyncio
import os
from typing import List, Tuple

__all__ = ["main"]


def main(arguments: List[str]) -> int:
    """Serve one controller on standard input and output; returns the exit status."""
    del arguments
    read_fd, write_fd = _claim_standard_streams()
    from .service import Service

    status = asyncio.run(_serve(Service, read_fd, write_fd))
    # Threads may still block in reads and writes that nobody will end.
    os._exit(status)


async def _serve(service: type, read_fd: int, write_fd: int) -> int:
    return int(await service().run(read_fd, write_fd))


def _claim_standard_streams() -> Tuple[int, int]:
    """Take the protocol's descriptors out of the way of prints and of children."""
    read_fd, write_fd = os.dup(0), os.dup(1)  # not inheritable
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return read_fd, write_fd
