"""A test's folder with a short path."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test with a short path: the socket of a function's server, below the data
    folder, has at most 107 bytes (AF_UNIX)."""
    return tmp_path_factory.mktemp("t")
