"""Pytest fixture of the NVML stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml import board as boards
from tests.support.nvml.board import Board


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """Driver without GPUs yet; after the test there is no driver."""
    made = Board(tmp_path / "nvml")
    made.write()
    boards.use(made.file)
    try:
        yield made
    finally:
        made.hang(False)
        boards.use(None)
