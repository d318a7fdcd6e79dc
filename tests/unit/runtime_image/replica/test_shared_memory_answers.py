"""The slab in which a link's answers lie until their gateway has read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runtime_image.link.allocator import BLOCK
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import SideChannel, SlabRange
from runtime_image.replica.shared_memory import ANSWER_SLAB, KEPT_BYTES, REST_S, AnswerSlab
from tests.support.side import GatewaySide

SIZE = 2 * KEPT_BYTES


@pytest.fixture
def slab(side: GatewaySide, timers: Any) -> Iterator[AnswerSlab]:
    """One of two of what it keeps."""
    made = AnswerSlab(SideChannel(side.theirs), timers.after, SIZE)
    yield made
    made.close()


def put(slab: AnswerSlab, body: bytes) -> SlabRange:
    place = slab.put(body)
    assert place is not None
    return place


def test_an_answer_lies_where_its_place_says(slab: AnswerSlab, side: GatewaySide) -> None:
    """The slab is announced once, before the first place is told."""
    bodies = [bytes([number]) * (BLOCK + number) for number in range(3)]
    places = [put(slab, body) for body in bodies]

    notice = side.hear()
    assert notice is not None
    assert (notice.number, notice.size) == (ANSWER_SLAB, SIZE)
    assert [side.read(place) for place in places] == bodies
    assert side.hear() is None


def test_a_place_is_used_again_once_it_was_read(slab: AnswerSlab, side: GatewaySide) -> None:
    """Not before, even if no other is left."""
    first = put(slab, b"1" * (SIZE - BLOCK))
    assert slab.put(b"2" * 2 * BLOCK) is None
    slab.free(first)

    assert put(slab, b"2" * 2 * BLOCK).offset == 0


@pytest.mark.parametrize(
    "place", [SlabRange(1, BLOCK, 5), SlabRange(1, 0, 4), SlabRange(1, 2**60, 5)]
)
def test_only_what_was_told_can_be_freed(slab: AnswerSlab, place: SlabRange) -> None:
    """A gateway that frees something else, or twice, breaks the protocol."""
    first = put(slab, b"12345")

    with pytest.raises(LinkError, match="nothing to free"):
        slab.free(place)
    slab.free(first)
    with pytest.raises(LinkError, match="nothing to free"):
        slab.free(first)


def test_memory_is_given_back_after_a_rest(
    slab: AnswerSlab, side: GatewaySide, timers: Any
) -> None:
    """All but a little, and the slab can be used as before."""
    first = put(slab, b"1" * SIZE)
    side.hear()
    slab.free(first)
    assert side.in_memory(ANSWER_SLAB) == slab.touched == SIZE
    assert timers.due[0][0] == REST_S
    timers.ring()

    assert side.in_memory(ANSWER_SLAB) == slab.touched == KEPT_BYTES
    assert side.read(put(slab, b"2" * SIZE)) == b"2" * SIZE


def test_there_is_no_rest_while_answers_come(slab: AnswerSlab, timers: Any) -> None:
    """One that came and was read since begins the wait anew; one that lies there ends it."""
    slab.free(put(slab, b"1" * SIZE))
    slab.free(put(slab, b"2"))
    timers.ring()
    assert slab.touched == SIZE
    third = put(slab, b"3")
    timers.ring()
    assert (slab.touched, timers.due) == (SIZE, [])

    slab.free(third)
    timers.ring()

    assert slab.touched == KEPT_BYTES


def test_a_little_is_kept(slab: AnswerSlab, timers: Any) -> None:
    """Nobody waits to give back what would be asked for again at once."""
    slab.free(put(slab, b"1" * KEPT_BYTES))

    assert timers.due == []


def test_a_closed_slab_takes_nothing(slab: AnswerSlab, timers: Any) -> None:
    """Its link is gone; a rest that was waited for does nothing."""
    slab.free(put(slab, b"1" * SIZE))
    slab.close()
    timers.ring()

    assert slab.put(b"2") is None


def test_without_a_gateway_there_is_no_slab(slab: AnswerSlab, side: GatewaySide) -> None:
    """Answers go in frames then, and it is not tried again with each."""
    side.channel.close()

    assert slab.put(b"1") is None
    assert slab.put(b"2") is None


def test_a_slab_that_cannot_be_made_is_done_without(side: GatewaySide, timers: Any) -> None:
    """As where the memory for it is not to be had."""
    assert AnswerSlab(SideChannel(side.theirs), timers.after, 2**62).put(b"1") is None
