"""Settings of this repository's own tests; projects that use the plugin need no conftest.py of this kind."""

from __future__ import annotations

pytest_plugins = ["pytester"]
