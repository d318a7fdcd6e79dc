"""How long a slot is kept for a replica, and what is believed of its answers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.data_links import Delivered, HeldCall
from gateway.delivery import Delivery
from gateway.dispatch.redirects import RerunPolicy
from gateway.shared_memory import ANSWER_SLABS_MAX, LOST_MAX, NOTICES_MAX, BodySlot, SharedLink
from registry.errors import ReplicaDied
from runtime_image.contract.link import ANSWER_SLAB_MAX, SLAB_NOTICE, Flag, Kind, NotStarted
from runtime_image.link.shared_memory import SIZE_SEALS, Place
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
    """Whether nobody refers to it any more."""
    return slot._references == 0


async def until_free(slot: BodySlot) -> None:
    async with asyncio.timeout(60):
        while not is_free(slot):  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0)


async def test_a_large_body_is_read_where_it_lies(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """The frame names its place; the slot is free when the answer has come and the call is over."""
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
async def test_every_end_of_a_request_lets_go(
    delivery: Delivery, sharing: SharingPeer, client: Client, kind: Kind, body: bytes
) -> None:
    """An answer, an error, and that it was given up."""
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


async def test_a_client_that_leaves_does_not_free_what_is_read(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Only when the replica has said that it stopped."""
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
    """The same place, under another id; each sending has a reference of its own."""
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
    """The replica may still run: the retry over a new link reads the same place, and the slot is
    free when the first link's side channel has ended as well."""
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


async def test_a_process_that_is_gone_reads_nothing(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Its side channel ends with it, and by that alone its link is given up, too; the call goes
    to the next replica."""
    slot = slot_of(delivery)
    delivery.submit(call_of(client, slot))
    await sharing.request()
    sharing.die(sharing.shared)
    assert await sharing.lost.get()
    await sharing.greet()
    again, body = await sharing.request()
    assert body == BODY
    sharing.answer(again.id)
    await client.outcomes.get()
    slot.release()

    assert is_free(slot)


@pytest.mark.parametrize("said", [b"", b"{}", b'{"slabs": 1}', b"[]"])
async def test_a_replica_that_does_not_agree_gets_frames(
    delivery: Delivery, client: Client, tmp_path: Path, said: bytes
) -> None:
    """As one of before does; the slot is held until the frame is answered, for the transport may
    not have taken all of it."""
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
async def test_a_greeting_that_is_none_ends_the_link(
    delivery: Delivery, tmp_path: Path, said: bytes
) -> None:
    """Nothing of it is believed."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet(said)
        await peer.lost.get()
        assert delivery.is_cold(KEY)
        delivery.receive_endpoints(published())


async def test_a_replica_that_reads_no_notices_gets_frames(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """What cannot be announced is sent as bytes, and nothing waits."""
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


async def test_a_call_that_follows_its_functions_traffic_is_sent_in_a_frame(
    delivery: Delivery, client: Client, tmp_path: Path
) -> None:
    """The new revision's replicas are not shown the memory of the old one's callers."""
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


async def test_a_replica_that_is_told_of_a_retired_slab_lets_go(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Its memory is free then, and the next body lies in another slab, announced anew."""
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


async def test_a_replica_with_too_many_lost_links_is_trusted_with_no_more(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """Each could keep slots; from then on its bodies come in frames, until those links ended."""
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


async def test_an_answer_is_copied_and_its_place_freed(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """What the replica writes there later changes nothing."""
    delivery.submit(client.call(b"1"))
    request = await sharing.next(Kind.REQUEST)
    packed = sharing.shared.answer(BODY)
    assert packed is not None
    sharing.answer(request.id, packed, flags=Flag.SLAB | Flag.FIRST, aux=7)
    freed = await sharing.next(Kind.FREED)
    sharing.shared.freed(freed.body)
    assert sharing.shared.answer(b"x" * MIB) == packed
    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert (outcome.body == BODY, outcome.json_length, outcome.is_first) == (True, 7, True)


async def test_a_slab_of_answers_can_be_replaced(
    delivery: Delivery, sharing: SharingPeer, client: Client
) -> None:
    """After it was withdrawn another may come, and its number may be used again."""
    for content in (b"one", b"two", b"six"):
        sharing.announce(1, content=content)
        delivery.submit(client.call(b"1"))
        sharing.answer_at((await sharing.next(Kind.REQUEST)).id, Place(1, 0, 3))
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
    """A sealed slab that cannot be read through what is passed."""
    descriptor = memfd(MIB)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
    os.close(descriptor)
    peer.pass_on(SLAB_NOTICE.pack(1, MIB), again)
    peer.answer_at(id, Place(1, 0, 5))


def at(*places: Place) -> Callable[[SharingPeer, int], None]:
    """An answer at a place that is none, in a slab of a MiB."""

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


def withdrawn(peer: SharingPeer, id: int) -> None:
    peer.announce(1)
    peer.side.retire(1)
    peer.answer_at(id, Place(1, 0, 5))


LIES: dict[str, Callable[[SharingPeer, int], object]] = {
    "a slab that was not announced": lambda peer, id: peer.answer_at(id, Place(1, 0, 5)),
    "a slab that was withdrawn": withdrawn,
    "no place": lambda peer, id: peer.answer(id, b"{}", flags=Flag.SLAB),
    "behind the end": at(Place(1, MIB, 1)),
    "over the end": at(Place(1, MIB - 4, 5)),
    "an answer over the limit": at(Place(1, 0, ANSWER_SLAB_MAX + 1)),
    "an offset over the limit": at(Place(1, 2**63, 1)),
    "numbers that wrap around": at(Place(1, 2**64 - 1, 2**64 - 1)),
    "a JSON part longer than the answer": lambda peer, id: [
        peer.announce(1),
        peer.answer_at(id, Place(1, 0, 5), aux=6),
    ],
    "a slab for writing only": write_only,
    "a device as a slab": passing(SLAB_NOTICE.pack(1, MIB), lambda: [null()]),
    "a socket as a slab": passing(SLAB_NOTICE.pack(1, MIB), lambda: [socket.socket().detach()]),
    "a slab that may shrink": passing(
        SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB, fcntl.F_SEAL_GROW)]
    ),
    "a slab that is shorter": passing(SLAB_NOTICE.pack(1, 2 * MIB), lambda: [memfd(MIB)]),
    "a slab over the limit": announced(1, size=ANSWER_SLAB_MAX + 1),
    "a slab twice": announced(1, 1),
    "too many slabs": announced(*range(ANSWER_SLABS_MAX + 1)),
    "two descriptors": passing(SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB), memfd(MIB)]),
    "fifty descriptors": passing(SLAB_NOTICE.pack(1, MIB), lambda: [memfd(MIB) for _ in range(50)]),
    "no descriptor": passing(SLAB_NOTICE.pack(1, MIB), list),
    "half a notice": passing(b"123", lambda: [null()]),
    "a long notice": passing(bytes(100_000), lambda: [null()]),
    "nothing withdrawn": lambda peer, _id: peer.side.retire(1),
    "notices without end": lambda peer, _id: [
        (peer.announce(1, 4096), peer.side.retire(1)) for _ in range(NOTICES_MAX)
    ],
    "an end": lambda peer, _id: peer.side.close(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
async def test_a_replica_that_lies_about_its_memory_loses_its_link_not_the_call(
    delivery: Delivery,
    sharing: SharingPeer,
    client: Client,
    lie: Callable[[SharingPeer, int], object],
) -> None:
    """Nothing of it reaches the client, no descriptor stays open, and the call is sent again."""
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
    """A process that lies about what it still reads is waited for no more; its new link is none
    the worse for it."""
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
