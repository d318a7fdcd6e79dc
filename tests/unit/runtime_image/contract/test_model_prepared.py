"""What both sides know of prepared files."""

from __future__ import annotations

import pytest

from runtime_image.contract.model import Part, files_max, patience_s

GIB = 2**30


@pytest.mark.parametrize(
    ("bundle_bytes", "bytes_max", "limit_s"), [(0, 2**26, 30.0), (GIB, 2 * GIB + 2**26, 60.0)]
)
def test_limits_grow_with_the_bundle(bundle_bytes: int, bytes_max: int, limit_s: float) -> None:
    """Files may have twice the bundle's bytes and a little more; the time for them grows too."""
    assert files_max(bundle_bytes) == bytes_max
    assert patience_s(bundle_bytes) == limit_s


def test_parts_have_the_numbers_of_the_link() -> None:
    """They stand in frames, so they never change."""
    assert [(part.name, int(part)) for part in Part] == [
        ("DESCRIPTION", 0),
        ("GRAPH", 1),
        ("WEIGHTS", 2),
    ]
