"""``python -m pytest_sglang_perf.cli``, where the command itself is not on the path."""

from __future__ import annotations

import sys

from pytest_sglang_perf.cli import main

if __name__ == "__main__":
    sys.exit(main())
