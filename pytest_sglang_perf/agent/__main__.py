"""``python -m pytest_sglang_perf.agent load``: the load engine."""

from __future__ import annotations

import sys

from .load import main

if __name__ == "__main__":
    if sys.argv[1:] != ["load"]:
        sys.exit("usage: python -m pytest_sglang_perf.agent load")
    sys.exit(main())
