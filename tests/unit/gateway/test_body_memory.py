"""Tests of the memory of single large bodies."""

from __future__ import annotations

import os

import pytest

from gateway.body_memory import BODY_MIN, FILES_MAX, BodyMemories, GrowingBody


def test_a_large_body_can_be_read_through_its_file() -> None:
    """What is written to the view is in the file; a small body gets no memory of its own."""
    memories = BodyMemories()
    assert memories.allocate(BODY_MIN - 1) is None
    memory = memories.allocate(BODY_MIN)
    assert memory is not None
    memory.view[-5:] = b"hello"

    assert os.pread(memory.descriptor, 10, BODY_MIN - 5) == b"hello"


def test_a_file_counts_until_the_last_view_of_it_is_gone() -> None:
    """Bodies beyond FILES_MAX get memory without a file, until another one is gone."""
    memories = BodyMemories()
    held = [memories.allocate(BODY_MIN) for _ in range(FILES_MAX + 1)]
    assert [one.descriptor < 0 for one in held if one] == [False] * FILES_MAX + [True]

    part = held[0].view[:1] if held[0] else None
    del held[0]
    assert len(memories) == FILES_MAX
    del part
    assert len(memories) == FILES_MAX - 1
    made = memories.allocate(BODY_MIN)
    assert made is not None
    assert made.descriptor >= 0


def test_a_body_for_which_there_is_no_memory_gets_none() -> None:
    """The reader then uses a buffer."""
    assert BodyMemories().allocate(2**62) is None


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("size", [0, 7, BODY_MIN - 1, BODY_MIN, BODY_MIN + 3_000_000])
def test_a_growing_body_is_whole(size: int, has_room: bool) -> None:
    """A body of any length is what was added; it takes the room once, when it has become large."""
    room, asked = bytearray(2 * BODY_MIN), 0

    def take() -> memoryview | None:
        nonlocal asked
        asked += 1
        return memoryview(room) if has_room else None

    data = os.urandom(size)
    body = GrowingBody(take)
    for at in range(0, size, 1_000_003):
        body.add(data[at : at + 1_000_003])

    assert body.size == size
    assert body.whole() == data
    assert asked == (size >= BODY_MIN)
    assert (room[:size] == data) == (not size or (has_room and size >= BODY_MIN))
