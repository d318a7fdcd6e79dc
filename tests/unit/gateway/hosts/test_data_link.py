"""Tests of data links to replicas on other hosts: two channels, breaks, and what is sent where."""

from __future__ import annotations

import asyncio

import pytest

from gateway.data_links import Delivered
from gateway.delivery import Delivery
from gateway.links import IDLE_FRAMES_MAX
from registry.errors import ReplicaDied
from runtime_image.contract.link import SPOKEN, Flag, Kind
from tests.support.peers import ANSWER, KEY, Client
from tests.support.remote_peers import Channel, RemotePeer, UnixHosts, published_afar

LARGE = b"x" * 100_000


@pytest.fixture
async def pair(delivery: Delivery, peer: RemotePeer) -> tuple[Channel, Channel]:
    """The replica's ends of both channels of a link."""
    delivery.receive_endpoints(published_afar(peer.endpoint()))
    return await peer.pair()


async def both_up(delivery: Delivery, client: Client, pair: tuple[Channel, Channel]) -> None:
    """Wait until the gateway uses the channel for bodies: it answers HELLO a moment later."""
    reads = [asyncio.ensure_future(each.next(Kind.REQUEST)) for each in pair]
    is_up = False
    while not is_up:
        delivery.submit(client.call(LARGE))
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        is_up = reads[1].done()
        for channel, read in zip(pair, reads, strict=True):
            if read.done():
                channel.answer(read.result().id)
                assert isinstance(await client.outcomes.get(), Delivered)
        if not is_up:
            reads[0] = asyncio.ensure_future(pair[0].next(Kind.REQUEST))
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)


async def test_bodies_have_a_channel_of_their_own(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel], hosts: UnixHosts
) -> None:
    """Small requests go by one connection, large ones by the other; answers come back likewise."""
    calls, bodies = pair
    await both_up(delivery, client, pair)
    delivery.submit(client.call(b"small"))
    delivery.submit(client.call(LARGE))

    small, large = await calls.next(Kind.REQUEST), await bodies.next(Kind.REQUEST)
    bodies.answer(large.id, b"2")
    second = await client.outcomes.get()
    calls.answer(small.id, b"1" * 100_000)
    first = await client.outcomes.get()

    assert bytes(large.body) == LARGE
    assert isinstance(first, Delivered)
    assert isinstance(second, Delivered)
    assert (bytes(first.body), second.body) == (b"1" * 100_000, b"2")
    assert first.host == second.host == "gpu2"
    assert (hosts.calls.dials, hosts.bodies.dials) == (1, 1)


async def test_each_channel_is_greeted_in_the_replicas_link_version(
    delivery: Delivery, peer: RemotePeer, client: Client
) -> None:
    """A replica that an earlier server started gets its own version on both channels."""
    link = SPOKEN[0]
    delivery.receive_endpoints(published_afar(peer.endpoint(link=link)))
    small = await peer.channel(greets=False)
    await small.greet(link=link)
    large = await peer.channel(greets=False)
    await large.greet(link=link)

    await both_up(delivery, client, (small, large))


async def test_a_link_is_up_without_its_channel_for_bodies(
    delivery: Delivery, client: Client, peer: RemotePeer
) -> None:
    """A call does not wait for the second channel: all frames go by the first one."""
    delivery.receive_endpoints(published_afar(peer.endpoint()))
    calls = await peer.channel()
    bodies = await peer.channel(greets=False)
    delivery.submit(client.call(LARGE))

    request = await calls.next(Kind.REQUEST)
    calls.answer(request.id)

    assert isinstance(await client.outcomes.get(), Delivered)
    assert (await bodies.next(Kind.HELLO)).kind is Kind.HELLO


async def test_a_broken_channel_leaves_the_other_one_serving(
    delivery: Delivery,
    client: Client,
    peer: RemotePeer,
    pair: tuple[Channel, Channel],
    hosts: UnixHosts,
) -> None:
    """The large call may have run: a handler's fails, a model's runs again. The channel returns."""
    calls, bodies = pair
    await both_up(delivery, client, pair)
    delivery.submit(client.call(b"small"))
    delivery.submit(client.call(LARGE, may_rerun=False))
    delivery.submit(client.call(LARGE))
    small = await calls.next(Kind.REQUEST)
    await bodies.next(Kind.REQUEST)

    hosts.bodies.break_off()
    handlers = await client.outcomes.get()
    again = await calls.next(Kind.REQUEST)
    calls.answer(again.id)
    models = await client.outcomes.get()
    calls.answer(small.id)

    assert isinstance(handlers, ReplicaDied)
    assert "connection to the replica's host broke" in handlers.message
    assert isinstance(models, Delivered)
    assert bytes(again.body) == LARGE
    assert isinstance(await client.outcomes.get(), Delivered)
    hosts.bodies.heal()
    await both_up(delivery, client, (calls, await peer.channel()))


async def test_a_host_that_breaks_fails_a_handlers_call_once(
    delivery: Delivery,
    client: Client,
    peer: RemotePeer,
    pair: tuple[Channel, Channel],
    hosts: UnixHosts,
) -> None:
    """Both connections break: 502 at once, and the link comes back without a second run."""
    delivery.submit(client.call(may_rerun=False))
    await pair[0].next(Kind.REQUEST)

    hosts.calls.break_off()
    hosts.bodies.break_off()
    outcome = await client.outcomes.get()
    hosts.calls.heal()
    hosts.bodies.heal()
    calls, _ = await peer.pair()
    delivery.submit(client.call(b"next"))

    assert isinstance(outcome, ReplicaDied)
    assert (await calls.next(Kind.REQUEST)).body == b"next"
    calls.answer(1)
    await client.outcomes.get()


async def test_a_replica_that_closes_its_channels_has_died(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel], peer: RemotePeer
) -> None:
    """All frames have arrived: a call that had not started runs again, also a handler's."""
    calls, bodies = pair
    delivery.submit(client.call(b"a", may_rerun=False))
    await calls.next(Kind.REQUEST)

    calls.stream.abort("ends")
    bodies.stream.abort("ends")
    calls, _ = await peer.pair()
    request = await calls.next(Kind.REQUEST)
    calls.answer(request.id)

    assert request.body == b"a"
    assert isinstance(await client.outcomes.get(), Delivered)


async def test_goaway_on_one_channel_returns_its_requests_only(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel]
) -> None:
    """A large request that was accepted later, on the other channel, is not sent twice."""
    calls, bodies = pair
    await both_up(delivery, client, pair)
    delivery.submit(client.call(b"small"))
    delivery.submit(client.call(LARGE))
    small, large = await calls.next(Kind.REQUEST), await bodies.next(Kind.REQUEST)

    calls.send(Kind.GOAWAY, aux=small.id)
    calls.answer(small.id)
    await client.outcomes.get()
    bodies.answer(large.id)

    assert isinstance(await client.outcomes.get(), Delivered)
    assert calls.frames.empty()
    assert bodies.frames.empty()


async def test_goaway_on_a_channel_that_is_being_opened_ends_no_call(
    delivery: Delivery, client: Client, peer: RemotePeer
) -> None:
    """A replica begins to drain before it has read the HELLO of the channel for bodies."""
    delivery.receive_endpoints(published_afar(peer.endpoint()))
    calls = await peer.channel()
    delivery.submit(client.call(b"small"))
    request = await calls.next(Kind.REQUEST)
    bodies = await peer.channel(greets=False)
    for channel in (calls, bodies):
        channel.send(Kind.GOAWAY, aux=request.id if channel is calls else 0)
    await bodies.greet()

    calls.answer(request.id)

    assert isinstance(await client.outcomes.get(), Delivered)
    assert calls.lost.empty()
    assert bodies.lost.empty()


async def test_a_flood_of_goaway_ends_the_link(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel], peer: RemotePeer
) -> None:
    """Frames that a replica sends at will are counted, this one too."""
    calls, bodies = pair
    await both_up(delivery, client, pair)

    for _ in range(IDLE_FRAMES_MAX + 1):
        bodies.send(Kind.GOAWAY, aux=2**32 - 1)

    assert await asyncio.wait_for(calls.lost.get(), 60)
    await peer.pair()


@pytest.mark.parametrize("is_other", [False, True])
async def test_an_answer_without_a_request_ends_the_link(
    delivery: Delivery,
    client: Client,
    peer: RemotePeer,
    pair: tuple[Channel, Channel],
    *,
    is_other: bool,
) -> None:
    """An answer to nothing, or on the channel that its request was not sent on: both channels end,
    and the call runs again over a new link."""
    calls, bodies = pair
    await both_up(delivery, client, pair)
    delivery.submit(client.call(b"a"))
    request = await calls.next(Kind.REQUEST)

    if is_other:
        bodies.answer(request.id)
    else:
        calls.answer(request.id + 1)
    await asyncio.wait_for(calls.lost.get(), 60)
    await asyncio.wait_for(bodies.lost.get(), 60)
    again, _ = await peer.pair()
    request = await again.next(Kind.REQUEST)
    again.answer(request.id)

    assert isinstance(await client.outcomes.get(), Delivered)


async def test_an_answer_in_shared_memory_ends_the_link(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel], peer: RemotePeer
) -> None:
    """There is none between hosts."""
    calls, _ = pair
    delivery.submit(client.call())
    request = await calls.next(Kind.REQUEST)

    calls.send(Kind.RESPONSE, request.id, b"x" * 20, meta=ANSWER, flags=int(Flag.SLAB))
    again, _ = await peer.pair()
    request = await again.next(Kind.REQUEST)
    again.answer(request.id)

    assert isinstance(await client.outcomes.get(), Delivered)


async def test_a_late_answer_is_dropped(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel]
) -> None:
    """A client that has left gets nothing; the link goes on."""
    calls, _ = pair
    call = client.call(b"a")
    delivery.submit(call)
    request = await calls.next(Kind.REQUEST)
    delivery.cancel(call)
    assert (await calls.next(Kind.CANCEL)).id == request.id

    calls.answer(request.id)
    delivery.submit(client.call(b"b"))
    later = await calls.next(Kind.REQUEST)
    calls.answer(later.id)

    assert isinstance(await client.outcomes.get(), Delivered)
    assert client.outcomes.empty()


async def test_a_body_in_shared_memory_travels_in_a_frame(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel]
) -> None:
    """Its place is held until the replica has released the request."""
    _, bodies = pair
    await both_up(delivery, client, pair)
    slot = delivery.slabs.allocate(KEY, len(LARGE))
    assert slot is not None
    slot.view[:] = LARGE
    delivery.submit(client.call(slot.view, slot=slot))

    request = await bodies.next(Kind.REQUEST)
    slot.release()  # as the front does when the call has ended
    taken = slot.slab.allocator.is_empty
    bodies.answer(request.id)
    await client.outcomes.get()

    assert (bytes(request.body), request.flags & Flag.SLAB) == (LARGE, 0)
    assert not taken
    assert slot.slab.allocator.is_empty


async def test_draining_replicas_keep_their_channels(
    delivery: Delivery, client: Client, pair: tuple[Channel, Channel], hosts: UnixHosts
) -> None:
    """A replica that is not listed any more finishes its calls."""
    calls, _ = pair
    delivery.submit(client.call(b"a"))
    request = await calls.next(Kind.REQUEST)

    delivery.receive_endpoints(published_afar())
    calls.answer(request.id)

    assert isinstance(await client.outcomes.get(), Delivered)
    assert not hosts.calls.is_closed


async def test_shutdown_closes_everything(
    delivery: Delivery, pair: tuple[Channel, Channel], hosts: UnixHosts
) -> None:
    """Channels first, then the connections."""
    await delivery.close()

    for channel in pair:
        await asyncio.wait_for(channel.lost.get(), 60)
    assert all(each.is_closed for each in hosts.made)
    assert not any(each.channels for each in hosts.made)
