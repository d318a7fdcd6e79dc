"""One slab of a pool, and the references to its slots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.shared_memory import BodySlot, Slab
from runtime_image.link.allocator import BLOCK
from runtime_image.link.shared_memory import map_for_reading


class Ledger:
    """Who gave slots out: what came back."""

    def __init__(self) -> None:
        self.whole: list[BodySlot] = []
        self.back: list[BodySlot] = []

    def on_filled(self, slot: BodySlot) -> None:
        self.whole.append(slot)

    def free(self, slot: BodySlot) -> None:
        self.back.append(slot)


@pytest.fixture
def slab() -> Iterator[Slab]:
    """Four blocks."""
    made = Slab(1, "default/digits@1", 4 * BLOCK + 5)
    yield made
    made.retire()
    made.close()


def test_a_slot_is_a_part_of_its_slab(slab: Slab) -> None:
    """What is written to its view is what others read there."""
    slot = BodySlot(Ledger(), slab, BLOCK, 3)
    slot.view[:] = b"abc"

    mapped = map_for_reading(slab.descriptor, slab.size)

    assert (slab.size, len(slot.view)) == (4 * BLOCK, 3)
    assert mapped[BLOCK : BLOCK + 4] == b"abc\0"
    mapped.close()


def test_a_slot_comes_back_with_its_last_reference(slab: Slab) -> None:
    """Whoever drops it last; not before, and never twice."""
    ledger = Ledger()
    slot = BodySlot(ledger, slab, 0, 3)
    slot.acquire()
    slot.release()
    assert ledger.back == []
    slot.release()
    assert ledger.back == [slot]

    for misuse in (slot.release, slot.acquire):
        with pytest.raises(AssertionError):
            misuse()


def test_a_body_is_whole_once(slab: Slab) -> None:
    """Said by who reads it, or by its end where nobody did."""
    ledger = Ledger()
    told, untold = BodySlot(ledger, slab, 0, 3), BodySlot(ledger, slab, BLOCK, 3)
    told.mark_filled()
    told.mark_filled()
    assert ledger.whole == [told]
    told.release()
    untold.release()

    assert ledger.whole == [told, untold]


def test_a_retired_slab_is_gone_when_nobody_has_it() -> None:
    """A mapping of somebody else's keeps it in memory."""
    slab = Slab(1, "default/digits@1", 4 * BLOCK)
    mapped = map_for_reading(slab.descriptor, slab.size)
    slab.retire()
    assert not slab.is_unmapped()
    mapped.close()

    assert slab.is_unmapped()
    slab.close()
