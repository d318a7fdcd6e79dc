"""What is counted for one function."""

from __future__ import annotations

import pytest

from gateway.metrics.requests import ROWS, SECONDS, SENDS


@pytest.mark.parametrize("bounds", [SECONDS, SENDS, ROWS])
def test_bounds_grow(bounds: tuple[float, ...]) -> None:
    """A value belongs to one bucket only."""
    assert list(bounds) == sorted(set(bounds))
