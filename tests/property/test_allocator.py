"""Property tests of the slab allocator: ranges never overlap, and freeing all of them empties
it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_image.link.allocator import BLOCK, Allocator

BLOCKS = 12
lengths = st.one_of(st.integers(1, 5 * BLOCK), st.sampled_from([BLOCK, BLOCK + 1, BLOCKS * BLOCK]))
steps = st.lists(st.one_of(lengths, st.integers(-20, -1)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_ranges_never_overlap_and_the_lowest_gap_is_used(steps: list[int]) -> None:
    """The allocator agrees with a model of single blocks. A positive step allocates that many
    bytes, a negative one frees one of the ranges."""
    parts = Allocator(BLOCKS * BLOCK + 7)
    owner: list[int] = [0] * BLOCKS
    taken: list[tuple[int, int]] = []
    highest = 0
    for number, step in enumerate(steps, 1):
        if step < 0:
            if taken:
                offset, length = taken.pop(step % len(taken))
                parts.free(offset, length)
                owner = [0 if one == owner[offset // BLOCK] else one for one in owner]
            continue
        blocks = -(-step // BLOCK)
        free = [at for at in range(BLOCKS - blocks + 1) if not any(owner[at : at + blocks])]
        expected = free[0] * BLOCK if free else None
        assert parts.fit(step) == expected
        assert parts.take(step) == expected
        if expected is not None:
            owner[free[0] : free[0] + blocks] = [number] * blocks
            taken.append((expected, step))
            highest = max(highest, expected + blocks * BLOCK)
    assert parts.touched == highest
    assert parts.is_empty == (not taken)

    for offset, length in taken:
        parts.free(offset, length)

    assert parts.is_empty
    assert parts.take(BLOCKS * BLOCK) == 0
