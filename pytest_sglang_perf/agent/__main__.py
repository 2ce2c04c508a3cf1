"""What the zipapp can be: ``serve`` (the agent) or ``load`` (the load process)."""

from __future__ import annotations

import sys
from typing import List, Optional

__all__ = ["main"]


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[0] if arguments else ""
    if command == "serve":
        from .serve import main as serve

        return serve(arguments[1:])
    if command == "load":
        from .load import main as load

        return load()
    print("usage: agent serve [--max-runtime SECONDS] | agent load", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main())
