"""Tests of shared memory links: the lifetime of slots, and checks of a replica's answers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.data_links import Delivered, HeldCall
from gateway.delivery import Delivery
from gateway.dispatch.redirects import RerunPolicy
from gateway.shared_memory import ANSWER_SLABS_MAX, LOST_MAX, NOTICES_MAX, BodySlot, SharedLink
from registry.errors import ReplicaDied
from runtime_image.contract.link import ANSWER_SLAB_MAX, SLAB_NOTICE, Flag, Kind, NotStarted
from runtime_image.link.shared_memory import SIZE_SEALS, SlabRange
from tests.support.peers import KEY, Client, failed, published
from tests.support.sharing_peer import SharingPeer

MIB = 2**20
BODY = os.urandom(MIB)
OTHER = "default/other@1"


def slot_of(delivery: Delivery, body: bytes = BODY, pool: str = KEY) -> BodySlot:
    slot = delivery.slabs.allocate(pool, len(body))
    assert slot is not None
    slot.view[:] = body
    slot.mark_filled()
    return slot


def call_of(client: Client, slot: BodySlot) -> HeldCall:
    return client.call(slot.view.toreadonly(), slot=slot)  # type: ignore[arg-type]  # a body is any bytes


def is_free(slot: BodySlot) -> bool:
    """Return whether the slot has no reference left."""
    return slot._references == 0


async def until_free(slot: BodySlot) -> None:
    async with asyncio.timeout(60):
        while not is_free(slot):  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0)


async def test_a_large_body_is_read_in_shared_memory(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """The frame names the body's range; the slot is free once the answer has arrived and the call
    has released it."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    frame, body = await sharing.request()
    assert (frame.flags & Flag.SLAB, body == BODY) == (Flag.SLAB, True)
    sharing.answer(frame.id, b"right")
    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert not is_free(slot)
    slot.release()
    assert is_free(slot)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.RESPONSE, b"{}"),
        (Kind.FAILED, failed(code="bad_input", message="m")),
        (Kind.CANCELLED, b""),
    ],
)
async def test_every_end_of_a_request_drops_its_reference(
    delivery: Delivery, sharing: SharingPeer, client: Client, kind: Kind, body: bytes
) -> None:
    """An answer, an error and a cancellation each release the link's reference to the slot."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    frame, _ = await sharing.request()
    if kind is Kind.RESPONSE:
        sharing.answer(frame.id, body)
    else:
        sharing.send(kind, frame.id, body)
    await client.outcomes.get()
    slot.release()

    assert is_free(slot)


async def test_a_cancelled_call_keeps_its_slot_until_confirmed(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """The slot is free only when the replica has confirmed the cancellation."""
    slot = slot_of(delivery)
    call = call_of(client, slot)
    delivery.submit(call)
    frame, _ = await sharing.request()
    delivery.cancel(call)
    slot.release()
    await sharing.next(Kind.CANCEL)
    assert not is_free(slot)

    sharing.send(Kind.CANCELLED, frame.id)

    await until_free(slot)


async def test_a_request_that_is_handed_back_is_sent_again_without_a_copy(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """A returned request is sent again with the same range and a new id; each send holds its own
    reference."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    first, _ = await sharing.request()
    sharing.send(Kind.NOT_STARTED, first.id, aux=NotStarted.FULL)
    sharing.send(Kind.WINDOW)
    again, body = await sharing.request()
    assert (again.body, again.id != first.id, body == BODY) == (first.body, True, True)
    sharing.answer(again.id)
    await client.outcomes.get()

    slot.release()

    assert is_free(slot)


async def test_a_lost_link_alone_frees_nothing(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """The replica may still be running: a retry over the new link reads the same range, and the
    slot is free only when the first link's side channel has ended as well."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    first, _ = await sharing.request()
    before = sharing.shared
    sharing.hang_up()
    await sharing.greet()
    again, body = await sharing.request()
    assert (again.body, body == BODY) == (first.body, True)
    sharing.answer(again.id)
    await client.outcomes.get()
    slot.release()
    assert not is_free(slot)

    sharing.die(before)

    await until_free(slot)


async def test_a_dead_process_loses_its_link_and_its_slots(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """The end of the side channel alone ends the link; the call goes to the next replica. No line
    of the log says so: replicas that go to sleep end like this, too."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    await sharing.request()
    with capture_logs() as logs:
        sharing.die(sharing.shared)
        assert await sharing.lost.get()
    assert [(one["event"], one["log_level"]) for one in logs] == [("a data link ended", "debug")]
    await sharing.greet()
    again, body = await sharing.request()
    assert body == BODY
    sharing.answer(again.id)
    await client.outcomes.get()
    slot.release()

    assert is_free(slot)


@pytest.mark.parametrize("said", [b"", b"{}", b'{"slabs": 1}', b"[]"])
async def test_a_replica_without_shared_memory_gets_frames(
    delivery: Delivery, client: Client, tmp_path: Path, said: bytes
) -> None:
    """A replica that does not accept slabs gets bodies in frames, as older ones do; the slot is
    held until the request has ended, because the transport may still read from it."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet(said)
        slot = slot_of(delivery)
        call = call_of(client, slot)
        delivery.submit(call)
        frame, body = await peer.request()
        assert (frame.flags & Flag.SLAB, body == BODY) == (0, True)
        with pytest.raises(EOFError):
            peer.side.receive()
        delivery.cancel(call)
        slot.release()
        assert not is_free(slot)
        peer.hang_up()
        await until_free(slot)
        delivery.receive_endpoints(published())


@pytest.mark.parametrize("said", [b"{", b"[" * 4000, b" " * 4097])
async def test_an_invalid_greeting_ends_the_link(
    delivery: Delivery, tmp_path: Path, said: bytes
) -> None:
    """A HELLO whose body is not valid ends the link; the pool stays cold."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet(said)
        await peer.lost.get()
        assert delivery.is_cold(KEY)
        delivery.receive_endpoints(published())


async def test_a_replica_that_reads_no_notices_gets_frames(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """A body whose slab cannot be announced is sent in a frame without delay."""
    delivery.submit(client.call(b"1"))
    sharing.answer((await sharing.next(Kind.REQUEST)).id)
    await client.outcomes.get()
    [link] = delivery.slabs.links
    assert isinstance(link, SharedLink)
    while link._channel.retire(99):
        pass
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))

    frame = await sharing.next(Kind.REQUEST)

    assert (frame.flags & Flag.SLAB, frame.body == BODY) == (0, True)
    sharing.answer(frame.id)
    await client.outcomes.get()
    slot.release()
    assert is_free(slot)


async def test_a_moved_call_is_sent_in_a_frame(
    delivery: Delivery, client: Client, tmp_path: Path
) -> None:
    """A slab is never shared with the replicas of another revision."""
    slot = slot_of(delivery, pool=OTHER)
    delivery.submit(client.call(slot.view.toreadonly(), slot=slot, pool=OTHER))  # type: ignore[arg-type]  # a body is any bytes
    delivery.move(OTHER, KEY, RerunPolicy(may_rerun=True, timeout_s=60.0))
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        frame, body = await peer.request()
        assert (frame.flags & Flag.SLAB, body == BODY) == (0, True)
        peer.answer(frame.id)
        await client.outcomes.get()
        delivery.receive_endpoints(published())
    slot.release()
    assert is_free(slot)


async def test_a_retired_slab_is_freed_by_its_replica(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Its memory is free after the replica unmapped it; the next body is in a new slab, announced
    again."""
    numbers = set()
    for _ in range(2):
        slot = slot_of(delivery)
        numbers.add(slot.slab.number)
        delivery.submit(call_of(client, slot))
        frame, body = await sharing.request()
        assert body == BODY
        sharing.answer(frame.id)
        await client.outcomes.get()
        slot.release()
        for now in (1000.0, 2000.0):
            delivery.slabs.sweep(now)
        assert delivery.slabs.touched
        sharing.shared.read_notices()
        delivery.slabs.sweep(2001)
        assert not delivery.slabs.touched

    assert len(numbers) == 2


async def test_a_replica_with_too_many_lost_links_gets_no_shared_memory(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Each lost link may keep slots; beyond the limit bodies go in frames until one of the links
    has ended."""
    lost = []
    for _ in range(LOST_MAX):
        slot = slot_of(delivery)
        call = call_of(client, slot)
        delivery.submit(call)
        await sharing.request()
        lost.append(sharing.shared)
        delivery.cancel(call)
        slot.release()
        await sharing.next(Kind.CANCEL)
        sharing.hang_up()
        await sharing.lost.get()
        await sharing.greet()
    assert sharing.passed == 0
    sharing.die(lost[0])
    sharing.hang_up()
    await sharing.greet()

    assert sharing.passed == 1


async def test_an_answer_is_copied_and_its_range_freed(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Later writes of the replica to the same range do not change the answer."""
    delivery.submit(client.call(b"1"))
    request = await sharing.next(Kind.REQUEST)
    packed = sharing.shared.put_answer(BODY)
    assert packed is not None
    sharing.answer(request.id, packed, flags=Flag.SLAB | Flag.FIRST, aux=7)
    freed = await sharing.next(Kind.FREED)
    sharing.shared.on_freed(freed.body)
    assert sharing.shared.put_answer(b"x" * MIB) == packed
    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert (outcome.body == BODY, outcome.json_length, outcome.is_first) == (True, 7, True)


async def test_a_slab_of_answers_can_be_replaced(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """After a slab of answers was withdrawn, another may take its number."""
    for content in (b"one", b"two", b"six"):
        sharing.announce(1, content=content)
        delivery.submit(client.call(b"1"))
        sharing.answer_at((await sharing.next(Kind.REQUEST)).id, SlabRange(1, 0, 3))
        outcome = await client.outcomes.get()
        assert isinstance(outcome, Delivered)
        assert outcome.body == content
        await sharing.next(Kind.FREED)
        sharing.side.retire(1)


def memfd(size: int, seals: int = SIZE_SEALS) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def write_only(peer: SharingPeer, id: int) -> None:
    """Announce a sealed slab whose descriptor cannot be read."""
    descriptor = memfd(MIB)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
    os.close(descriptor)
    peer.pass_on(SLAB_NOTICE.pack(1, MIB), again)
    peer.answer_at(id, SlabRange(1, 0, 5))


def at(*places: SlabRange) -> Callable[[SharingPeer, int], None]:
    """Return a lie: answers at invalid ranges of a 1 MiB slab."""

    def lie(peer: SharingPeer, id: int) -> None:
        peer.announce(1)
        for place in places:
            peer.answer_at(id, place)

    return lie


def passing(notice: bytes, make: Callable[[], list[int]]) -> Callable[[SharingPeer, int], None]:
    return lambda peer, _id: peer.pass_on(notice, *make())


def null() -> int:
    return os.open(os.devnull, os.O_RDWR)


def announced(*numbers: int, size: int = MIB) -> Callable[[SharingPeer, int], None]:
    return lambda peer, _id: [peer.announce(number, size) for number in numbers] and None


def answer_in_withdrawn_slab(peer: SharingPeer, id: int) -> None:
    peer.announce(1)
    peer.side.retire(1)
    peer.answer_at(id, SlabRange(1, 0, 5))


LIES: dict[str, Callable[[SharingPeer, int], object]] = {
    "a slab that was not announced": lambda peer, id: peer.answer_at(id, SlabRange(1, 0, 5)),
    "a slab that was withdrawn": answer_in_withdrawn_slab,
    "no range": lambda peer, id: peer.answer(id, b"{}", flags=Flag.SLAB),
    "behind the end": at(SlabRange(1, MIB, 1)),
    "over the end": at(SlabRange(1, MIB - 4, 5)),
    "an answer over the limit": at(SlabRange(1, 0, ANSWER_SLAB_MAX + 1)),
    "an offset over the limit": at(SlabRange(1, 2**63, 1)),
    "numbers that wrap around": at(SlabRange(1, 2**64 - 1, 2**64 - 1)),
    "a JSON part longer than the answer": lambda peer, id: [
        peer.announce(1),
        peer.answer_at(id, SlabRange(1, 0, 5), aux=6),
    ],
    "a write-only slab": write_only,
    "a device as a slab": passing(SLAB_NOTICE.pack(1, MIB), lambda: [null()]),
    "a socket as a slab": passing(SLAB_NOTICE.pack(1, MIB), lambda: [socket.socket().detach()]),
    "a slab that may shrink": passing(
        SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB, fcntl.F_SEAL_GROW)]
    ),
    "a slab that is shorter": passing(SLAB_NOTICE.pack(1, 2 * MIB), lambda: [memfd(MIB)]),
    "a slab over the limit": announced(1, size=ANSWER_SLAB_MAX + 1),
    "a slab announced twice": announced(1, 1),
    "too many slabs": announced(*range(ANSWER_SLABS_MAX + 1)),
    "two descriptors": passing(SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB), memfd(MIB)]),
    "fifty descriptors": passing(SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB) for _ in range(50)]),
    "no descriptor": passing(SLAB_NOTICE.pack(1, MIB), list),
    "half a notice": passing(b"123", lambda: [null()]),
    "a long notice": passing(bytes(100_000), lambda: [null()]),
    "nothing withdrawn": lambda peer, _id: peer.side.retire(1),
    "too many notices": lambda peer, _id: [
        (peer.announce(1, 4096), peer.side.retire(1)) for _ in range(NOTICES_MAX)
    ],
    "an end": lambda peer, _id: peer.side.close(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
async def test_a_lie_about_shared_memory_ends_the_link_not_the_call(
    delivery: Delivery,
    sharing: SharingPeer,
    client: Client,
    lie: Callable[[SharingPeer, int], object],
) -> None:
    """No data of the lie reaches the client, no descriptor stays open, and the call is sent
    again."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    frame, _ = await sharing.request()
    lie(sharing, frame.id)
    await sharing.lost.get()
    await sharing.greet()
    again, body = await sharing.request()
    assert body == BODY
    sharing.answer(again.id, b"right")
    outcome = await client.outcomes.get()
    slot.release()

    assert isinstance(outcome, Delivered)
    assert outcome.body == b"right"


async def test_a_lost_link_that_is_spammed_ends(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Too many notices on a lost link's side channel close it; the replica's new link is not
    affected."""
    slot = slot_of(delivery)
    delivery.submit(
        call_of(
            client,
            slot,
        )
    )
    await sharing.request()
    liar = sharing.side
    sharing.hang_up()
    await sharing.greet()
    again, _ = await sharing.request()
    for _ in range(NOTICES_MAX + 1):
        liar.retire(5)
    sharing.answer(again.id)
    outcome = await client.outcomes.get()
    slot.release()

    await until_free(slot)
    assert not isinstance(outcome, ReplicaDied)
