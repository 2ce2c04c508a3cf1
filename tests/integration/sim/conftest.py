from __future__ import annotations

import pytest

from ._node import Node


@pytest.fixture
def node(tmp_path):
    """A simulated node of the profile ``tiny``."""
    return Node(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One ready server for tests that change nothing in it."""
    with Node(tmp_path_factory.mktemp("node")).server("--enable-metrics") as running:
        yield running
