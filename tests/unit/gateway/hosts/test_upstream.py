"""Tests of exchanges with servers on other hosts, whose sidecar the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.delivery import Delivery
from gateway.hosts.greeting import Greeting
from gateway.upstream import HostLost, UpstreamConnection
from registry.errors import WaitBudgetOver
from runtime_image.contract.link import Flag, Kind, NotStarted
from tests.support.remote_peers import (
    Channel,
    RawChannel,
    RemoteSidecar,
    UnixHosts,
    published_afar,
)
from tests.support.sidecars import Proxy

PORT = 8000


@pytest.fixture
def proxy() -> Proxy:
    """Caller of exchanges."""
    return Proxy()


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[RemoteSidecar]:
    """Sidecar that listens."""
    async with RemoteSidecar(tmp_path / "r1").listening() as sidecar:
        yield sidecar


@pytest.fixture
async def link(delivery: Delivery, sidecar: RemoteSidecar) -> Channel:
    """The sidecar's end of the link."""
    delivery.receive_endpoints(published_afar(sidecar.endpoint()))
    return await sidecar.link()


async def opened(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, **changes: Any
) -> tuple[UpstreamConnection, RawChannel]:
    """Begin an exchange; return both ends of its connection."""
    call = proxy.call(**changes)
    proxy.calls.append(call)
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    channel = await sidecar.joined(id)
    link.send(Kind.OPEN, id, aux=PORT)
    return await proxy.connection(), channel


async def test_an_exchange_gets_a_channel_that_is_joined_to_the_server(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, hosts: UnixHosts
) -> None:
    """OPEN on the link, CONNECT on a channel of the connection for bodies; then raw bytes."""
    connection, channel = await opened(delivery, sidecar, link, proxy)

    connection.write(b"request")
    there = await channel.read(7)
    channel.transport.write(b"answer")

    assert there == b"request"
    assert await asyncio.wait_for(proxy.received.get(), 60) == b"answer"
    assert (connection.port, connection.is_reused) == (PORT, False)
    assert (hosts.calls.dials, hosts.bodies.dials) == (1, 1)
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_nothing_is_sent_before_the_sidecar_has_connected(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """The channel may be joined before the server is connected to, or after."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    await sidecar.joined(id)
    assert proxy.opened.empty()
    link.send(Kind.OPEN, id)
    await proxy.connection()

    second = proxy.call()
    delivery.submit_exchange(second)
    id = (await link.next(Kind.OPEN)).id
    link.send(Kind.OPEN, id)
    await sidecar.joined(id)
    assert (await proxy.connection()).port == 0
    for each in (call, second):
        delivery.end_exchange(each, kept=False)


async def test_an_idle_connection_is_reused(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, hosts: UnixHosts
) -> None:
    """Without a round trip; the sidecar is informed as on this machine."""
    connection, channel = await opened(delivery, sidecar, link, proxy)
    delivery.end_exchange(proxy.calls[0], kept=True)

    again = proxy.call()
    delivery.submit_exchange(again)
    reused = await proxy.connection()
    reused.write(b"next")

    assert reused is connection
    assert reused.is_reused
    assert reused.is_silent
    assert await channel.read(4) == b"next"
    assert hosts.bodies.dials == 1
    delivery.end_exchange(again, kept=False)


@pytest.mark.parametrize("says", [b"", b"surplus"])
async def test_an_idle_connection_that_is_not_silent_is_closed(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, says: bytes
) -> None:
    """Its server has ended it or sent bytes: the next exchange gets a new one."""
    _, channel = await opened(delivery, sidecar, link, proxy)
    delivery.end_exchange(proxy.calls[0], kept=True)
    if says:
        channel.transport.write(says)
    else:
        channel.transport.write_eof()
    await channel.end()

    again = proxy.call()
    delivery.submit_exchange(again)
    frames = [await asyncio.wait_for(link.frames.get(), 60)]
    while frames[-1].kind is not Kind.OPEN:
        frames.append(await asyncio.wait_for(link.frames.get(), 60))

    assert not frames[-1].flags & Flag.REUSE
    delivery.cancel(again)


async def test_half_close_passes_both_ways(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """The server's end leaves the gateway's side open, and the reverse."""
    connection, channel = await opened(delivery, sidecar, link, proxy)
    channel.transport.write_eof()
    assert await asyncio.wait_for(proxy.received.get(), 60) == b""
    connection.write(b"more")
    connection.write_eof()

    assert await channel.read(4) == b"more"
    assert await asyncio.wait_for(channel.received.get(), 60) == b""
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_an_upload_that_is_not_read_pauses_its_sender(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """Memory is bounded by the write buffer; it goes on when the server reads."""
    connection, channel = await opened(delivery, sidecar, link, proxy)
    channel.transport.pause_reading()
    sent = 0
    while "paused" not in proxy.events:
        connection.write(b"x" * 65536)
        sent += 65536

    channel.transport.resume_reading()
    assert len(await channel.read(sent)) == sent
    assert proxy.events == ["paused", "resumed"]
    delivery.end_exchange(proxy.calls[0], kept=False)


@pytest.mark.parametrize("reason", [NotStarted.FULL, NotStarted.REFUSED, NotStarted.DRAINING])
async def test_a_refusal_ends_the_channel(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, reason: NotStarted
) -> None:
    """Refusals come on the link; the exchange waits at its old place."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    channel = await sidecar.joined(id)

    link.send(Kind.NOT_STARTED, id, aux=reason)

    await channel.end()
    assert delivery.loads()[call.pool].queued == 1
    delivery.cancel(call)


async def test_a_client_that_leaves_ends_the_request(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """END on the link, and the channel is closed; a late OPEN means nothing."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    channel = await sidecar.joined(id)
    delivery.cancel(call)

    assert (await link.next(Kind.END)).id == id
    await channel.end()
    link.send(Kind.OPEN, id)
    await opened(delivery, sidecar, link, proxy)
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_an_impostor_gets_no_key(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """The socket was replaced since the link was opened: nothing is sent to it."""
    sidecar.greeting = "00" * 32
    call = proxy.call(wait_until_s=asyncio.get_running_loop().time() + 0.3)
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    channel = await asyncio.wait_for(sidecar.channels.get(), 60)

    assert (await link.next(Kind.END)).id == id
    assert isinstance(await asyncio.wait_for(proxy.errors.get(), 60), WaitBudgetOver)
    assert channel.frames.empty()


async def test_bytes_between_greeting_and_connect_are_refused(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """They cannot be the server's."""
    sidecar.greeting += "x"  # the greeting's frame announces a longer body
    assert not Greeting(sidecar.greeting).is_complete
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id

    assert (await link.next(Kind.END)).id == id
    delivery.cancel(call)


async def test_a_broken_connection_differs_from_an_end(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, hosts: UnixHosts
) -> None:
    """The proxy must know: what was sent may have run, what was answered may be lost."""
    await opened(delivery, sidecar, link, proxy)

    hosts.bodies.break_off()

    assert isinstance(await asyncio.wait_for(proxy.lost.get(), 60), HostLost)
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_a_broken_link_ends_its_exchanges(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, hosts: UnixHosts
) -> None:
    """The link and the connections of its exchanges end together, for the same reason."""
    await opened(delivery, sidecar, link, proxy)

    hosts.calls.break_off()

    assert isinstance(await asyncio.wait_for(proxy.lost.get(), 60), HostLost)
    assert delivery.has_lost_link(proxy.calls[0])
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_a_dead_sidecar_is_no_broken_connection(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy
) -> None:
    """Its link was closed by the other side."""
    await opened(delivery, sidecar, link, proxy)

    link.stream.abort("it dies")
    error = await asyncio.wait_for(proxy.lost.get(), 60)

    assert isinstance(error, ConnectionAbortedError)
    assert not isinstance(error, HostLost)
    delivery.end_exchange(proxy.calls[0], kept=False)


async def test_without_the_second_connection_the_exchange_waits(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel, proxy: Proxy, hosts: UnixHosts
) -> None:
    """Its request is given back, and repeated."""
    hosts.bodies.break_off()
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await link.next(Kind.OPEN)).id
    assert (await link.next(Kind.END)).id == id

    hosts.bodies.heal()
    id = (await link.next(Kind.OPEN)).id
    await sidecar.joined(id)
    link.send(Kind.OPEN, id)
    await proxy.connection()
    delivery.end_exchange(call, kept=False)


@pytest.mark.parametrize(("answer", "listens"), [(Kind.OPEN, True), (Kind.NOT_STARTED, False)])
async def test_the_probe_of_a_server_takes_no_channel(
    delivery: Delivery,
    sidecar: RemoteSidecar,
    link: Channel,
    proxy: Proxy,
    answer: Kind,
    *,
    listens: bool,
) -> None:
    """Whether it listens takes no channel."""
    await opened(delivery, sidecar, link, proxy)
    answers: asyncio.Queue[bool] = asyncio.Queue()
    delivery.ask_server(proxy.calls[0], answers.put_nowait)
    asked = await link.next(Kind.OPEN)

    link.send(answer, asked.id, aux=0 if listens else NotStarted.REFUSED)

    assert asked.flags & Flag.FREE
    assert await asyncio.wait_for(answers.get(), 60) is listens
    assert sidecar.channels.empty()
    delivery.end_exchange(proxy.calls[0], kept=False)


@pytest.mark.parametrize(
    "hello", [b"", b"{}", b"[]", b'{"key": 5}', b'{"key": "short"}', b"x" * 5000]
)
async def test_a_malformed_hello_ends_the_link(
    delivery: Delivery, sidecar: RemoteSidecar, hello: bytes
) -> None:
    """Without a key no connection can be had."""
    delivery.receive_endpoints(published_afar(sidecar.endpoint()))
    link = await sidecar.channel(greets=False)
    await link.next(Kind.HELLO)
    link.send(Kind.HELLO, body=hello, aux=7)

    await asyncio.wait_for(link.lost.get(), 60)


async def test_a_port_out_of_range_ends_the_link(
    delivery: Delivery, sidecar: RemoteSidecar, link: Channel
) -> None:
    """It would get into Location fields."""
    link.send(Kind.OPEN, 1, aux=65536)

    await asyncio.wait_for(link.lost.get(), 60)
