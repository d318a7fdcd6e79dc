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


class RecordingOwner:
    """Owner of slots that records which were filled and which were freed."""

    def __init__(self) -> None:
        self.filled: list[BodySlot] = []
        self.freed: list[BodySlot] = []

    def on_filled(self, slot: BodySlot) -> None:
        self.filled.append(slot)

    def free(self, slot: BodySlot) -> None:
        self.freed.append(slot)


@pytest.fixture
def slab() -> Iterator[Slab]:
    """Slab of four blocks."""
    made = Slab(1, "default/digits@1", 4 * BLOCK + 5)
    yield made
    made.retire()
    made.close()


def test_a_slot_is_a_part_of_its_slab(slab: Slab) -> None:
    """Bytes written to a slot's view are readable at its range of the slab."""
    slot = BodySlot(RecordingOwner(), slab, BLOCK, 3)
    slot.view[:] = b"abc"

    mapped = map_for_reading(slab.descriptor, slab.size)

    assert (slab.size, len(slot.view)) == (4 * BLOCK, 3)
    assert mapped[BLOCK : BLOCK + 4] == b"abc\0"
    mapped.close()


def test_a_slot_is_freed_with_its_last_reference(slab: Slab) -> None:
    """A slot is freed by its last release, never earlier and never twice."""
    owner = RecordingOwner()
    slot = BodySlot(owner, slab, 0, 3)
    slot.acquire()
    slot.release()
    assert owner.freed == []
    slot.release()
    assert owner.freed == [slot]

    for misuse in (slot.release, slot.acquire):
        with pytest.raises(AssertionError):
            misuse()


def test_a_slot_is_reported_filled_once(slab: Slab) -> None:
    """A slot is reported as filled once: by `mark_filled`, or else when it is freed."""
    owner = RecordingOwner()
    told, untold = BodySlot(owner, slab, 0, 3), BodySlot(owner, slab, BLOCK, 3)
    told.mark_filled()
    told.mark_filled()
    assert owner.filled == [told]
    told.release()
    untold.release()

    assert owner.filled == [told, untold]


def test_a_retired_slab_is_unmapped_with_its_last_mapping() -> None:
    """A mapping in another process keeps a retired slab in memory."""
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


class RecordingLink:
    """Stand-in for a link; records the numbers of retired slabs."""

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
    """Slab pool with a capacity of 64 MiB."""
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
    """A small body goes in a frame; the first large body of a pool creates its slab."""
    assert slabs.allocate("a", SLAB_BODY_MIN - 1) is None
    assert slabs.touched == 0
    slot = taken(slabs, "a", SLAB_BODY_MIN)

    assert (len(slot.view), slabs.touched) == (SLAB_BODY_MIN, BLOCK)
    assert not slot.view.readonly
    drop(slot)


def test_a_slot_is_used_again_and_each_pool_has_its_own_slab(slabs: SlabPool) -> None:
    """A freed range is reused; bodies of one pool are never in memory that another pool's replicas
    map."""
    first, other = filled(slabs, "a", MIB), filled(slabs, "b", MIB)
    assert first.slab is not other.slab
    drop(first)
    again = filled(slabs, "a", MIB)

    assert (again.slab, again.offset) == (first.slab, first.offset)
    drop(again, other)


def test_uploads_have_half(slabs: SlabPool) -> None:
    """Unfinished uploads get at most half of the capacity; a filled or released slot no longer
    counts as an upload."""
    uploads = [taken(slabs, pool, CAPACITY // 4) for pool in "ab"]
    assert slabs.allocate("c", SLAB_BODY_MIN) is None
    uploads[0].mark_filled()
    more = taken(slabs, "a", CAPACITY // 4)
    assert slabs.allocate("c", SLAB_BODY_MIN) is None
    drop(*uploads, more)

    drop(taken(slabs, "c", CAPACITY // 2))
    assert slabs.allocate("c", CAPACITY // 2 + 1) is None


def test_a_full_slab_gives_nothing(slabs: SlabPool) -> None:
    """Without room in the pool's slab the caller uses its own memory; other pools still have
    room."""
    held = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    assert slabs.allocate("a", SLAB_BODY_MIN) is None

    other = filled(slabs, "b", MIB)

    drop(*held, other)


def test_a_large_idle_slab_is_retired_after_a_short_time(slabs: SlabPool) -> None:
    """Its memory is freed and links are notified; the next slab has a new number."""
    link = RecordingLink(slabs)
    slots = [filled(slabs, "a", LARGE) for _ in range(3)]
    number = slots[0].slab.number
    slabs.sweep(100)
    drop(*slots)
    slabs.sweep(200)
    slabs.sweep(200 + SHORT_IDLE_S - 0.1)
    assert link.numbers == []
    slabs.sweep(200 + SHORT_IDLE_S)

    assert (link.numbers, slabs.touched) == ([number], 0)
    slot = filled(slabs, "a", MIB)
    assert slot.slab.number != number
    drop(slot)


def test_a_small_idle_slab_is_retired_after_a_long_time(slabs: SlabPool) -> None:
    """A slab with little memory in use is retired after LONG_IDLE_S; a new body restarts the
    period."""
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


def test_an_idle_slab_makes_room_for_another_pool(slabs: SlabPool) -> None:
    """When the budget is used up, the slab idle for longest is retired first; one in use never
    is."""
    slots = [filled(slabs, "a", CAPACITY // 2) for _ in range(2)]
    resting = {}
    for at, pool in enumerate("bc"):
        resting[pool] = filled(slabs, pool, CAPACITY // 2)
        drop(resting[pool])
        slabs.sweep(100 + at)
    assert slabs.touched == 2 * CAPACITY
    link = RecordingLink(slabs)
    slots.append(filled(slabs, "d", CAPACITY // 2))
    assert link.numbers == [resting["b"].slab.number]
    slots.append(filled(slabs, "d", CAPACITY // 2))
    assert link.numbers == [resting["b"].slab.number, resting["c"].slab.number]

    assert slabs.allocate("e", SLAB_BODY_MIN) is None
    drop(*slots)


def test_a_retired_slab_counts_while_it_is_mapped(slabs: SlabPool) -> None:
    """A replica that keeps retired slabs mapped cannot make the gateway's memory grow."""
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


def test_the_number_of_slabs_is_limited(slabs: SlabPool) -> None:
    """At the limit a slab is created only in place of an idle one."""
    slots = [filled(slabs, f"p{number}", SLAB_BODY_MIN) for number in range(SLABS_MAX)]
    assert slabs.allocate("more", SLAB_BODY_MIN) is None
    slots.pop().release()

    slots.append(filled(slabs, "more", SLAB_BODY_MIN))

    drop(*slots)


def test_a_capacity_below_one_block_means_no_slabs() -> None:
    """With a capacity below one block all bodies go in frames."""
    slabs = SlabPool(BLOCK - 1)

    assert slabs.allocate("a", SLAB_BODY_MIN) is None


def test_a_failed_allocation_is_retried_after_a_while() -> None:
    """Until the retry the server sends bodies in frames; each failure is logged once."""
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
    """A slab that fails to open, for instance at the limit of descriptors, leaks none."""
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


def test_close_keeps_the_bodies_of_running_calls(slabs: SlabPool) -> None:
    """After `close` no slot is allocated, links are closed, and slots in use stay readable."""
    link = RecordingLink(slabs)
    slot = filled(slabs, "a", MIB)
    slot.view[:3] = b"abc"
    slabs.close()

    assert slabs.allocate("a", MIB) is None
    assert slot.view[:3] == b"abc"
    assert link not in slabs.links
    slot.release()


def test_lost_links_are_counted_by_replica(slabs: SlabPool) -> None:
    """Only lost links that may still read slots are counted, per replica."""
    lost, live, others = RecordingLink(slabs), RecordingLink(slabs), RecordingLink(slabs)
    lost.is_lost = others.is_lost = True
    others.replica = "r2"

    assert slabs.lost_link_count("r1") == 1
    live.close()
    lost.close()
    assert slabs.lost_link_count("r1") == 0
