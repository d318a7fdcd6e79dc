"""One link's bodies in shared memory, from the replica's side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from runtime_image.contract.link import SLAB_BODY_MIN
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import SideChannel, SlabRange, unpack_range
from runtime_image.replica.shared_memory import SLABS_MAX, LinkBodies
from tests.support.side import GatewaySide

MIB = 2**20


@pytest.fixture
def bodies(side: GatewaySide, timers: Any) -> Iterator[LinkBodies]:
    """Those of a link to `side`."""
    made = LinkBodies(SideChannel(side.theirs), timers.after)
    yield made
    made.drop()
    made.channel.close()


def test_a_request_is_read_where_it_lies(side: GatewaySide, bodies: LinkBodies) -> None:
    """A notice that nobody has read yet is read then: it came before the request. No copy is
    made: what is written later is seen."""
    side.announce(1)
    body = bodies.request_body(side.put(1, b"abc", 70).pack())
    assert body == b"abc"
    side.put(1, b"xyz", 70)

    assert body == b"xyz"
    assert body.readonly
    bodies.release()


@pytest.mark.parametrize(
    "place",
    [
        SlabRange(2, 0, 1),
        SlabRange(1, MIB, 1),
        SlabRange(1, 0, MIB + 1),
        SlabRange(1, 2**63, 2**63),
        SlabRange(1, MIB - 1, 2),
    ],
)
def test_a_place_outside_of_every_slab_breaks_the_protocol(
    side: GatewaySide, bodies: LinkBodies, place: SlabRange
) -> None:
    """Every number is held against the slab."""
    side.announce(1)

    with pytest.raises(LinkError, match=r"not announced|outside of its slab"):
        bodies.request_body(place.pack())


def test_a_slab_that_is_used_no_more_is_unmapped(side: GatewaySide, bodies: LinkBodies) -> None:
    """A request that is still read keeps it; no further one can name it."""
    side.announce(1)
    body = bodies.request_body(side.put(1, b"abc").pack())
    side.channel.retire(1)
    bodies.read_notices()

    assert body == b"abc"
    with pytest.raises(LinkError, match="was not announced"):
        bodies.request_body(SlabRange(1, 0, 1).pack())


def test_slabs_are_not_collected(side: GatewaySide, bodies: LinkBodies) -> None:
    """Nor is one announced twice: a gateway that does so is broken."""
    for number in range(SLABS_MAX):
        side.announce(number)
    bodies.read_notices()
    side.announce(SLABS_MAX)

    with pytest.raises(LinkError, match="one too many"):
        bodies.read_notices()


def test_a_slab_of_another_size_is_refused(side: GatewaySide, bodies: LinkBodies) -> None:
    """Reading behind its end would end this process."""
    null = os.open(os.devnull, os.O_RDONLY)
    side.channel.announce(1, MIB, null)
    os.close(null)

    with pytest.raises(LinkError, match="expected a memfd"):
        bodies.read_notices()


def test_a_small_answer_goes_in_a_frame(side: GatewaySide, bodies: LinkBodies) -> None:
    """It costs less there; a large one lies in the slab until it is freed."""
    assert bodies.put_answer(b"x" * (SLAB_BODY_MIN - 1)) is None
    packed = bodies.put_answer(b"x" * SLAB_BODY_MIN)
    assert packed is not None
    side.hear()

    assert side.read(unpack_range(packed)) == b"x" * SLAB_BODY_MIN
    bodies.on_freed(packed)
    with pytest.raises(LinkError, match="nothing to free"):
        bodies.on_freed(packed)


def test_the_side_channel_ends_with_the_last_request(side: GatewaySide, bodies: LinkBodies) -> None:
    """After its link is lost the gateway is told by that when nothing is read any more."""
    side.announce(1)
    for _ in range(2):
        bodies.request_body(side.put(1, b"abc").pack())
    bodies.release()
    bodies.drop()
    assert not bodies.is_closed
    assert side.hear() is None
    assert bodies.put_answer(b"x" * SLAB_BODY_MIN) is None

    bodies.release()

    assert bodies.is_closed
    with pytest.raises(EOFError):
        side.hear()


def test_a_gateway_that_is_gone_is_noticed(side: GatewaySide, bodies: LinkBodies) -> None:
    """By who waits for notices as an end, by a request that names a slab as a breach."""
    side.channel.close()

    with pytest.raises(EOFError):
        bodies.read_notices()
    with pytest.raises(LinkError, match="has ended"):
        bodies.request_body(SlabRange(1, 0, 1).pack())
