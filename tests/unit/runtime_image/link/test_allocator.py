"""Allocation of ranges in a slab."""

from __future__ import annotations

import pytest

from runtime_image.link.allocator import BLOCK, Allocator


def test_the_lowest_gap_that_fits_is_taken() -> None:
    """The lowest free gap that is large enough is used first."""
    parts = Allocator(10 * BLOCK)
    first, second, third = (parts.take(2 * BLOCK) for _ in range(3))
    assert (first, second, third) == (0, 2 * BLOCK, 4 * BLOCK)
    parts.free(2 * BLOCK, 2 * BLOCK)

    assert parts.take(3 * BLOCK) == 6 * BLOCK
    assert parts.take(1) == 2 * BLOCK
    assert parts.take(BLOCK) == 3 * BLOCK


def test_a_full_slab_gives_nothing() -> None:
    """An allocation without a large enough gap fails and changes nothing."""
    parts = Allocator(3 * BLOCK)
    for _ in range(3):
        parts.take(BLOCK)
    assert parts.take(1) is None
    parts.free(0, BLOCK)
    parts.free(2 * BLOCK, BLOCK)

    assert parts.take(2 * BLOCK) is None
    assert parts.take(BLOCK) == 0


def test_a_slab_smaller_than_a_block_is_no_slab() -> None:
    """A slab smaller than one block allocates nothing."""
    assert Allocator(BLOCK - 1).take(1) is None


@pytest.mark.parametrize(("offset", "length"), [(BLOCK, 5), (0, 6), (5, 5), (2 * BLOCK, 5)])
def test_only_what_was_taken_can_be_given_back(offset: int, length: int) -> None:
    """Freeing another offset or length, or the same range twice, is an error."""
    parts = Allocator(4 * BLOCK)
    parts.take(5)
    with pytest.raises(KeyError):
        parts.free(offset, length)
    parts.free(0, 5)

    with pytest.raises(KeyError):
        parts.free(0, 5)


def test_the_highest_end_is_remembered() -> None:
    """The highest end ever allocated counts, not the current use."""
    parts = Allocator(10 * BLOCK)
    parts.take(3 * BLOCK)
    parts.take(1)
    parts.free(0, 3 * BLOCK)
    assert parts.touched == 4 * BLOCK

    parts.given_back(BLOCK)

    assert parts.touched == BLOCK
