"""Tests of slabs and their slots: allocation, references, retirement, memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway import shared_memory
from gateway.shared_memory import (
    LONG_IDLE_S,
    SHORT_IDLE_S,
    SLABS_MAX,
    TOUCHED_MAX,
    BodySlot,
    Slab,
    SlabPool,
)
from runtime_image.contract.link import SLAB_BODY_MIN
from runtime_image.link.allocator import BLOCK
from runtime_image.link.shared_memory import map_for_reading, open_for_reading


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


MIB = 2**20
CAPACITY = 2 * TOUCHED_MAX
LARGE = TOUCHED_MAX // 2


class Heard:
    """A link's side: which slabs are used no more. `keeps`: it maps each slab that it is told of,
    and lets go of none."""

    replica = "r1"
    is_lost = False

    def __init__(self, slabs: SlabPool) -> None:
        self._slabs = slabs
        slabs.links.add(self)
        self.numbers: list[int] = []

    def on_retired(self, number: int) -> None:
        self.numbers.append(number)

    def close(self) -> None:
        self._slabs.links.discard(self)


@pytest.fixture
def slabs() -> Iterator[SlabPool]:
    """Of 64 MiB."""
    made = SlabPool(CAPACITY)
    yield made
    made.close()


def taken(slabs: SlabPool, pool: str, length: int) -> BodySlot:
    slot = slabs.allocate(pool, length)
    assert slot is not None
    return slot


def filled(slabs: SlabPool, pool: str, length: int) -> BodySlot:
    slot = taken(slabs, pool, length)
    slot.mark_filled()
    return slot


def drop(*slots: BodySlot) -> None:
    for slot in slots:
        slot.release()


def test_a_small_body_gets_no_slot(slabs: SlabPool) -> None:
    """It goes in a frame; the first large one of a pool makes its slab."""
    assert slabs.allocate("a", SLAB_BODY_MIN - 1) is None
    assert slabs.touched == 0
    slot = taken(slabs, "a", SLAB_BODY_MIN)

    assert (len(slot.view), slabs.touched) == (SLAB_BODY_MIN, BLOCK)
    assert not slot.view.readonly
    drop(slot)


def test_a_slot_is_used_again_and_each_pool_has_its_own_slab(slabs: SlabPool) -> None:
    """What one function's callers send is in no memory that another's replicas see."""
    first, other = filled(slabs, "a", MIB), filled(slabs, "b", MIB)
    assert first.slab is not other.slab
    drop(first)
    again = filled(slabs, "a", MIB)

    assert (again.slab, again.offset) == (first.slab, first.offset)
    drop(again, other)


def test_uploads_have_half(slabs: SlabPool) -> None:
    """Slow clients of all functions together cannot take more; a body that is whole, or given up,
    is no upload any more."""
    uploads = [taken(slabs, pool, CAPACITY // 4) for pool in "ab"]
    assert slabs.allocate("c", SLAB_BODY_MIN) is None
    uploads[0].mark_filled()
    more = taken(slabs, "a", CAPACITY // 4)
    assert slabs.allocate("c", SLAB_BODY_MIN) is None
    drop(*uploads, more)

    drop(taken(slabs, "c", CAPACITY // 2))
    assert slabs.allocate("c", CAPACITY // 2 + 1) is None


def test_a_full_slab_gives_nothing(slabs: SlabPool) -> None:
    """The caller uses memory of its own, and others have room still."""
    held = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    assert slabs.allocate("a", SLAB_BODY_MIN) is None

    other = filled(slabs, "b", MIB)

    drop(*held, other)


def test_a_slab_that_took_much_is_replaced_after_a_short_rest(slabs: SlabPool) -> None:
    """Its memory is free again, and whoever passed it on is told; the next one has a new number."""
    heard = Heard(slabs)
    slots = [filled(slabs, "a", LARGE) for _ in range(3)]
    number = slots[0].slab.number
    slabs.sweep(100)
    drop(*slots)
    slabs.sweep(200)
    slabs.sweep(200 + SHORT_IDLE_S - 0.1)
    assert heard.numbers == []
    slabs.sweep(200 + SHORT_IDLE_S)

    assert (heard.numbers, slabs.touched) == ([number], 0)
    slot = filled(slabs, "a", MIB)
    assert slot.slab.number != number
    drop(slot)


def test_a_slab_that_took_little_rests_longer(slabs: SlabPool) -> None:
    """Until its function is hardly called; a body meanwhile begins the rest anew."""
    drop(filled(slabs, "a", LARGE))
    slabs.sweep(100)
    slabs.sweep(100 + LONG_IDLE_S - 1)
    slot = filled(slabs, "a", MIB)
    slabs.sweep(100 + LONG_IDLE_S)
    drop(slot)
    slabs.sweep(101 + LONG_IDLE_S)
    slabs.sweep(100 + 2 * LONG_IDLE_S)
    assert slabs.touched == LARGE

    slabs.sweep(101 + 2 * LONG_IDLE_S)

    assert slabs.touched == 0


def test_a_slab_that_rests_makes_room_for_another_pool(slabs: SlabPool) -> None:
    """Where the budget is used up; the one that has rested for longest first, one in use never."""
    slots = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    resting = {}
    for at, pool in enumerate("bc"):
        resting[pool] = filled(slabs, pool, CAPACITY // 2)
        drop(resting[pool])
        slabs.sweep(100 + at)
    assert slabs.touched == 2 * CAPACITY
    heard = Heard(slabs)
    slots.append(filled(slabs, "d", CAPACITY // 2))
    assert heard.numbers == [resting["b"].slab.number]
    slots.append(filled(slabs, "d", CAPACITY // 2))
    assert heard.numbers == [resting["b"].slab.number, resting["c"].slab.number]

    assert slabs.allocate("e", SLAB_BODY_MIN) is None
    drop(*slots)


def test_memory_that_somebody_does_not_let_go_of_counts(slabs: SlabPool) -> None:
    """A replica that keeps what was retired cannot make the gateway's memory grow by that."""
    slots = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    mapped = map_for_reading(slots[0].slab.descriptor, slots[0].slab.size)
    drop(*slots)
    slabs.sweep(100)
    slabs.sweep(100 + SHORT_IDLE_S)
    assert slabs.touched == CAPACITY
    held = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    assert slabs.allocate("b", SLAB_BODY_MIN) is None
    mapped.close()
    slabs.sweep(120)

    held.append(filled(slabs, "b", SLAB_BODY_MIN))

    drop(*held)


def test_there_are_so_many_slabs_at_most(slabs: SlabPool) -> None:
    """One more is made only in the place of one that rests."""
    slots = [filled(slabs, f"p{number}", SLAB_BODY_MIN) for number in range(SLABS_MAX)]
    assert slabs.allocate("more", SLAB_BODY_MIN) is None
    slots.pop().release()

    slots.append(filled(slabs, "more", SLAB_BODY_MIN))

    drop(*slots)


def test_too_little_to_hold_is_done_without() -> None:
    """Where fewer bytes may be held than a block has, all bodies go in frames."""
    slabs = SlabPool(BLOCK - 1)

    assert slabs.allocate("a", SLAB_BODY_MIN) is None


def test_memory_that_cannot_be_had_is_asked_for_again_after_a_while() -> None:
    """Till then the server goes on with frames, and its log says so."""
    slabs = SlabPool(2**62)
    with capture_logs() as logs:
        assert slabs.allocate("a", SLAB_BODY_MIN) is None
        assert slabs.allocate("b", SLAB_BODY_MIN) is None

        for now in (100.0, 109.0):
            slabs.sweep(now)
            assert slabs.allocate("a", SLAB_BODY_MIN) is None
        assert len(logs) == 1
        slabs.sweep(110.0)
        assert slabs.allocate("a", SLAB_BODY_MIN) is None

    said = "no shared memory: large bodies are copied for now"
    assert [line["event"] for line in logs] == [said, said]


def test_a_slab_that_cannot_be_opened_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the process has as many as it may."""
    opened: list[int] = []

    def once(descriptor: int) -> int:
        if opened:
            raise OSError(errno.EMFILE, "too many")
        opened.append(open_for_reading(descriptor))
        return opened[0]

    monkeypatch.setattr(shared_memory, "open_for_reading", once)
    assert SlabPool(2**20).allocate("a", SLAB_BODY_MIN) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_calls_that_go_on_keep_their_bodies_when_the_process_goes(slabs: SlabPool) -> None:
    """Nothing new is given out, links are told, and what is held stays readable."""
    heard = Heard(slabs)
    slot = filled(slabs, "a", MIB)
    slot.view[:3] = b"abc"
    slabs.close()

    assert slabs.allocate("a", MIB) is None
    assert slot.view[:3] == b"abc"
    assert heard not in slabs.links
    slot.release()


def test_lost_links_are_counted_by_replica(slabs: SlabPool) -> None:
    """Those alone that may still be read."""
    lost, live, others = Heard(slabs), Heard(slabs), Heard(slabs)
    lost.is_lost = others.is_lost = True
    others.replica = "r2"

    assert slabs.lost_link_count("r1") == 1
    live.close()
    lost.close()
    assert slabs.lost_link_count("r1") == 0
