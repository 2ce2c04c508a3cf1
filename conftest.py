"""Settings of this repository's own tests; projects that use the plugin need no conftest.py of this kind."""

from __future__ import annotations

import signal

pytest_plugins = ["pytester"]


def pytest_configure() -> None:
    """Hear Ctrl-C also where a shell started us in the background, deaf to it: what the tests start inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
