"""Tests of sidecars' links: connections requested, granted, reused, recalled and lost."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import msgspec
import pytest
import uvloop
from structlog.testing import capture_logs

from gateway.delivery import Delivery
from gateway.dispatch.call import Stage
from gateway.dispatch.keeping import LATE_S
from gateway.dispatch.redirects import RerunPolicy
from gateway.links import IDLE_FRAMES_MAX
from gateway.server_sockets import IDLE_S, LATE_MAX
from gateway.upstream import WRITE_BUFFER_MAX, UpstreamConnection
from registry.errors import UpstreamFailed, WaitBudgetOver
from runtime_image.contract.link import SOCKET_NOTICE, VERSION, Flag, Kind, NotStarted
from runtime_image.link.frames import Frame
from tests.support.peers import KEY, ListeningManager, delivering, published
from tests.support.sidecars import Proxy, Sidecar


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    """A sidecar that accepts links."""
    async with Sidecar(tmp_path / "r1").listening() as listening:
        yield listening


@pytest.fixture
async def delivery(sidecar: Sidecar) -> AsyncIterator[Delivery]:
    """A gateway with a link to the sidecar."""
    async with delivering(ListeningManager()) as made:
        made.receive_endpoints(published(sidecar.endpoint()))
        yield made


@pytest.fixture
def proxy() -> Proxy:
    """A caller of exchanges."""
    return Proxy()


async def open_exchange(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> tuple[UpstreamConnection, int]:
    """Submit an exchange and grant its connection; return that and the id of its OPEN."""
    proxy.calls.append(proxy.call())
    delivery.submit_exchange(proxy.calls[-1])
    id = (await sidecar.next(Kind.OPEN)).id
    sidecar.grant(id)
    return await proxy.connection(), id


async def keep_one(delivery: Delivery, sidecar: Sidecar, proxy: Proxy) -> tuple[int, Frame]:
    """Open an exchange and end it; return the id of its idle connection and its END."""
    _, id = await open_exchange(delivery, sidecar, proxy)
    delivery.end_exchange(proxy.calls[-1], kept=True)
    return id, await sidecar.next(Kind.END)


async def is_closed(server: socket.socket) -> bool:
    """Return whether the server reads the end of its connection."""
    loop = asyncio.get_running_loop()
    try:
        return not await asyncio.wait_for(loop.sock_recv(server, 100), 60)
    except ConnectionResetError:
        return True


async def test_a_link_that_stays_through_a_sleep_tells_of_the_wake(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Its replica serves since the wake, whose phases it then has; published again without a
    change, nothing is new."""
    connection, _ = await open_exchange(delivery, sidecar, proxy)
    began_s, started = connection.connected_s, sidecar.endpoint()
    delivery.receive_endpoints(published(started))
    assert (connection.connected_s, connection.endpoint.phases) == (began_s, started.phases)

    woken = msgspec.structs.replace(started, phases={"wake": 1_900.0, "verify": 180.0})
    delivery.receive_endpoints(published(woken))

    assert connection.connected_s > began_s
    assert connection.endpoint == woken
    delivery.end_exchange(proxy.calls[0], kept=False)


# The ordinary way


async def exchange_twice(sidecar: Sidecar, proxy: Proxy) -> None:
    """Exchange twice over one connection, with all checks."""
    async with delivering(ListeningManager()) as delivery:
        delivery.receive_endpoints(published(sidecar.endpoint()))
        connection, id = await open_exchange(delivery, sidecar, proxy)
        server, loop = sidecar.servers[id], asyncio.get_running_loop()
        end = connection.endpoint
        facts = connection.is_reused, end.id, end.devices, end.phases
        assert facts == (False, "r1", ("cpu:0",), {"load": 5.0})
        assert 0 < connection.connected_s <= monotonic()
        connection.write(b"GET")
        assert await loop.sock_recv(server, 10) == b"GET"
        await loop.sock_sendall(server, b"200")
        assert await proxy.received.get() == b"200"

        delivery.end_exchange(proxy.calls[0], kept=True)
        kept = await sidecar.next(Kind.END)
        assert (kept.id, kept.flags) == (id, Flag.KEPT)
        assert kept.aux >= LATE_S * 1e3 - 1
        second = proxy.call()
        delivery.submit_exchange(second)

        reused = await sidecar.next(Kind.OPEN)
        assert (reused.flags, reused.aux) == (Flag.REUSE, id)
        assert await proxy.connection() is connection
        assert connection.is_reused is True
        delivery.end_exchange(second, kept=False)
        end = await sidecar.next(Kind.END)
        assert (end.id, end.flags) == (reused.id, 0)
        assert await is_closed(server)
        assert delivery.balance().ended["completed"] == 2


async def test_an_exchange_gets_a_connection_and_the_next_one_reuses_it(
    sidecar: Sidecar, proxy: Proxy
) -> None:
    """OPEN brings a connected socket; END with KEPT leaves it idle, and the next OPEN names it."""
    await exchange_twice(sidecar, proxy)


def test_connections_work_on_the_loop_of_servers(tmp_path: Path) -> None:
    """The same holds on uvloop."""

    async def main() -> None:
        async with Sidecar(tmp_path / "r1").listening() as sidecar:
            await exchange_twice(sidecar, Proxy())

    uvloop.run(main())


async def test_tcp_connections_do_not_wait_for_more_bytes(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """TCP_NODELAY is set on connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    passed = socket.create_connection(listener.getsockname())
    watched = passed.dup()
    delivery.submit_exchange(proxy.call())
    sidecar.pass_descriptors((await sidecar.next(Kind.OPEN)).id, [passed.fileno()])
    passed.close()

    assert await proxy.connection()
    assert watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    watched.close()
    listener.close()


async def test_a_fresh_connection_replaces_the_oldest_idle_one(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A call that wants no used connection gives one back before it requests its own; the others
    stay."""
    ids = [(await open_exchange(delivery, sidecar, proxy))[1] for _ in range(2)]
    for call in proxy.calls:
        delivery.end_exchange(call, kept=True)
        await sidecar.next(Kind.END)
    delivery.submit_exchange(proxy.call(wants_fresh=True))

    end, fresh = await sidecar.next(Kind.END), await sidecar.next(Kind.OPEN)
    assert (end.id, end.flags, fresh.flags) == (ids[0], 0, 0)
    assert await is_closed(sidecar.servers[ids[0]])
    sidecar.grant(fresh.id)
    assert not (await proxy.connection()).is_reused
    delivery.submit_exchange(proxy.call())
    assert (await sidecar.next(Kind.OPEN)).aux == ids[1]


async def test_a_free_exchange_neither_reuses_nor_keeps_a_connection(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """OPEN has the flag FREE, whatever is idle, and END never KEPT."""
    await keep_one(delivery, sidecar, proxy)
    free = proxy.call(is_free=True)
    delivery.submit_exchange(free)
    opened = await sidecar.next(Kind.OPEN)
    assert opened.flags == Flag.FREE
    sidecar.grant(opened.id)
    await proxy.connection()

    delivery.end_exchange(free, kept=True)

    assert (await sidecar.next(Kind.END)).flags == 0


async def test_a_slow_server_pauses_the_proxy(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Unsent bytes beyond the limit pause the handler; it resumes when the server reads."""
    connection, id = await open_exchange(delivery, sidecar, proxy)
    while "paused" not in proxy.events:
        connection.write(b"x" * WRITE_BUFFER_MAX)
    loop, server = asyncio.get_running_loop(), sidecar.servers[id]
    while "resumed" not in proxy.events:
        await loop.sock_recv(server, 2**20)
    assert proxy.events == ["paused", "resumed"]


async def test_a_proxy_that_does_not_read_gets_nothing(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Nothing is received between `pause_reading` and `resume_reading`."""
    connection, id = await open_exchange(delivery, sidecar, proxy)
    connection.pause_reading()
    connection.pause_reading()
    sidecar.servers[id].send(b"1")
    await sidecar.round_trip()
    assert proxy.received.empty()
    connection.resume_reading()
    connection.resume_reading()
    assert await proxy.received.get() == b"1"


async def test_either_side_may_end_its_stream(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """`write_eof` and `upstream_eof` leave the other direction open."""
    connection, id = await open_exchange(delivery, sidecar, proxy)
    server, loop = sidecar.servers[id], asyncio.get_running_loop()
    connection.write(b"last")
    connection.write_eof()
    connection.write_eof()
    assert await loop.sock_recv(server, 10) == b"last"
    assert await loop.sock_recv(server, 10) == b""
    server.send(b"answer")
    server.shutdown(socket.SHUT_WR)
    assert [await proxy.received.get(), await proxy.received.get()] == [b"answer", b""]
    assert proxy.events == ["eof"]

    delivery.end_exchange(proxy.calls[0], kept=True)
    assert (await sidecar.next(Kind.END)).flags == 0


async def test_a_closed_connection_is_not_kept(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A connection with unsent bytes, or one that was aborted, is given back."""
    unsent, _ = await open_exchange(delivery, sidecar, proxy)
    unsent.write(b"x" * 2**22)
    delivery.end_exchange(proxy.calls[-1], kept=True)
    assert (await sidecar.next(Kind.END)).flags == 0
    connection, _ = await open_exchange(delivery, sidecar, proxy)
    connection.abort()
    assert await proxy.lost.get() is None
    connection.write(b"dropped")
    connection.write_eof()
    connection.pause_reading()
    assert not connection.is_flushed
    assert not connection.is_silent
    delivery.end_exchange(proxy.calls[-1], kept=True)
    assert (await sidecar.next(Kind.END)).flags == 0


# Idle connections


@pytest.mark.parametrize("how", ["byte", "eof", "time", "recall"])
async def test_an_idle_connection_ends(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, how: str
) -> None:
    """Bytes, EOF, two seconds and RECALL close an idle connection; the sidecar is told once."""
    id, _ = await keep_one(delivery, sidecar, proxy)
    if how == "byte":
        sidecar.servers[id].send(b"HTTP/1.1 408 ")
    elif how == "eof":
        sidecar.servers[id].close()
    elif how == "recall":
        sidecar.send(Kind.RECALL, id)
    else:
        delivery._servers.sweep(monotonic() + IDLE_S / 2)
        delivery._servers.sweep(monotonic() + IDLE_S)

    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (id, 0)
    delivery.submit_exchange(proxy.call())
    assert (await sidecar.next(Kind.OPEN)).flags == 0


async def test_the_newest_idle_connection_is_used(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Of two idle connections the one that became idle last is reused."""
    ids = [(await open_exchange(delivery, sidecar, proxy))[1] for _ in range(2)]
    for call in proxy.calls:
        delivery.end_exchange(call, kept=True)
        await sidecar.next(Kind.END)

    delivery.submit_exchange(proxy.call())

    assert (await sidecar.next(Kind.OPEN)).aux == ids[1]


async def test_a_late_recall_costs_the_connection_at_its_next_end(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """RECALL for a connection that was reused meanwhile is answered when that exchange ends."""
    id, _ = await keep_one(delivery, sidecar, proxy)
    again = proxy.call()
    delivery.submit_exchange(again)
    reused = await sidecar.next(Kind.OPEN)
    sidecar.send(Kind.RECALL, id)
    await sidecar.round_trip()

    delivery.end_exchange(again, kept=True)

    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (reused.id, 0)


async def test_a_full_link_gives_its_idle_connections_back(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """FULL ends a connection that has just become idle; an offer is taken or declined."""
    _, first = await open_exchange(delivery, sidecar, proxy)
    waiting = proxy.call()
    delivery.submit_exchange(waiting)
    second = (await sidecar.next(Kind.OPEN)).id
    delivery.end_exchange(proxy.calls[0], kept=True)
    sidecar.send(Kind.NOT_STARTED, second, aux=NotStarted.FULL)

    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (first, 0)
    sidecar.send(Kind.WINDOW, aux=1)
    third = await sidecar.next(Kind.OPEN)
    assert (third.id, third.flags) == (second + 1, 0)
    sidecar.send(Kind.WINDOW, aux=1)
    assert (await sidecar.next(Kind.END)).id == 0


async def test_an_exchange_at_once_after_another_needs_no_frames(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """The sidecar sees one exchange; its end is told a little later, or at once if links wait."""
    connection, id = await open_exchange(delivery, sidecar, proxy)
    for _ in range(3):
        delivery.end_exchange(proxy.calls[-1], kept=True)
        proxy.calls.append(proxy.call())
        delivery.submit_exchange(proxy.calls[-1])
        assert await proxy.connection() is connection
    delivery.end_exchange(proxy.calls[-1], kept=True)
    sidecar.send(Kind.RECALL)

    end = await sidecar.next(Kind.END)

    assert (end.id, end.flags) == (id, Flag.KEPT)
    proxy.calls.append(proxy.call())
    delivery.submit_exchange(proxy.calls[-1])
    assert (await sidecar.next(Kind.OPEN)).aux == id
    delivery.end_exchange(proxy.calls[-1], kept=True)
    assert (await sidecar.next(Kind.END)).flags == Flag.KEPT
    sidecar.send(Kind.WINDOW)
    await sidecar.round_trip()
    sidecar.send(Kind.QUIESCE)
    assert (await sidecar.next(Kind.END)).flags == 0
    assert (await sidecar.next(Kind.QUIESCED)).aux == 0


# Ends, failures, retries


async def test_a_connection_for_a_cancelled_exchange_is_closed(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """END gives up a request; a connection that arrives nevertheless is closed."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await sidecar.next(Kind.OPEN)).id
    delivery.cancel(call)
    assert (await sidecar.next(Kind.END)).id == id

    assert await is_closed(sidecar.grant(id))
    sidecar.send(Kind.NOT_STARTED, id, aux=NotStarted.FULL)
    delivery.submit_exchange(proxy.call())
    await sidecar.next(Kind.OPEN)
    assert delivery.balance().ended["cancelled"] == 1


async def test_an_exchange_that_is_cancelled_while_its_connection_is_prepared(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A connection whose exchange ends before it is ready is closed and not handed over."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await sidecar.next(Kind.OPEN)).id
    server = sidecar.grant(id)
    live = delivery._servers._sockets("r1")._live
    for _ in range(100):
        if live[id] is not None:
            break
        await asyncio.sleep(0)
    delivery.cancel(call)

    assert (await sidecar.next(Kind.END)).id == id
    assert await is_closed(server)
    assert proxy.opened.empty()


async def test_an_open_exchange_can_be_cancelled(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """The connection is closed, the handler hears nothing more, and nothing is in flight."""
    _, id = await open_exchange(delivery, sidecar, proxy)
    delivery.cancel(proxy.calls[0])

    assert (await sidecar.next(Kind.END)).id == id
    assert await is_closed(sidecar.servers[id])
    assert proxy.lost.empty()
    assert delivery.loads() == {}
    delivery.end_exchange(proxy.calls[0], kept=False)
    delivery.fail_exchange(proxy.calls[0], UpstreamFailed("late"))
    assert delivery.balance().ended == {**delivery.balance().ended, "cancelled": 1, "failed": 0}


async def test_a_reset_connection_is_retried(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """The handler hears of the loss; a retry ends the old id and requests a new connection."""
    _, id = await open_exchange(delivery, sidecar, proxy)
    sidecar.servers[id].close()
    assert await proxy.received.get() == b""

    delivery.retry_exchange(proxy.calls[0])

    end, again = await sidecar.next(Kind.END), await sidecar.next(Kind.OPEN)
    assert (end.id, end.flags, again.id) == (id, 0, id + 1)
    assert not delivery.has_lost_link(proxy.calls[0])


async def test_a_retry_beyond_its_wait_budget_expires(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """`done` gets WaitBudgetOver, and the ledger counts an expired call."""
    await open_exchange(delivery, sidecar, proxy)
    proxy.calls[0].wait_until_s = 0.0

    delivery.retry_exchange(proxy.calls[0])

    assert isinstance(await proxy.errors.get(), WaitBudgetOver)
    assert delivery.balance().ended["expired"] == 1


async def test_a_lost_link_closes_its_connections(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Open exchanges lose their connection with an error, so that no answer looks complete, and
    may be retried; requested ones are sent again."""
    _, id = await open_exchange(delivery, sidecar, proxy)
    requested = proxy.call()
    delivery.submit_exchange(requested)
    await sidecar.next(Kind.OPEN)
    sidecar.hang_up()

    assert isinstance(await proxy.lost.get(), ConnectionAbortedError)
    assert delivery.has_lost_link(proxy.calls[0])
    assert await is_closed(sidecar.servers[id])
    delivery.retry_exchange(proxy.calls[0])
    assert not delivery.has_lost_link(proxy.calls[0])
    assert delivery.is_cold(KEY)
    assert proxy.calls[0].was_held
    again = [(await sidecar.next(Kind.OPEN)).id for _ in range(2)]
    assert again == [1, 2]
    assert (proxy.calls[0].id, requested.id) == (1, 2)


async def test_a_lost_link_closes_idle_connections(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Nothing of a lost link is reused after the reconnect."""
    id, _ = await keep_one(delivery, sidecar, proxy)
    sidecar.hang_up()
    assert await is_closed(sidecar.servers[id])

    delivery.submit_exchange(proxy.call())

    assert (await sidecar.next(Kind.OPEN)).flags == 0


async def test_the_error_of_a_dead_replica_has_its_cause(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A failed exchange waits for the cause of its replica's death; others do not wait."""
    _, id = await open_exchange(delivery, sidecar, proxy)
    delivery.fail_exchange(proxy.calls[0], UpstreamFailed("no answer"))
    assert (await proxy.errors.get()).message == "no answer"
    assert (await sidecar.next(Kind.UNANSWERED)).id == id
    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (id, Flag.FAILED)
    await open_exchange(delivery, sidecar, proxy)
    sidecar.hang_up()
    await proxy.lost.get()

    delivery.fail_exchange(proxy.calls[1], UpstreamFailed("the connection was lost"))
    assert proxy.errors.empty()
    delivery.receive_endpoints(published(ended={"r1": "was killed: out of memory"}))

    error = await proxy.errors.get()
    assert error.message == "the connection was lost: it was killed: out of memory"
    assert delivery.balance().ended["failed"] == 2


async def test_a_proxy_with_a_defect_gives_its_slot_back(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """An exchange whose `opened` raises fails; its connection is closed."""

    def opened(_connection: UpstreamConnection) -> None:
        raise RuntimeError("a defect")

    call = proxy.call()
    call.opened = opened
    with capture_logs() as logs:
        delivery.submit_exchange(call)
        id = (await sidecar.next(Kind.OPEN)).id
        sidecar.grant(id)
        assert (await sidecar.next(Kind.END)).id == id

    assert isinstance(await proxy.errors.get(), UpstreamFailed)
    assert "an exchange could not begin" in [line["event"] for line in logs]


async def test_an_exchange_that_another_ones_callback_cancels_is_not_requested(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A command is not executed for an exchange that a command before it has ended."""
    await keep_one(delivery, sidecar, proxy)
    first, second = proxy.call(pool="default/old@1"), proxy.call(pool="default/old@1")

    def opened(connection: UpstreamConnection) -> None:
        delivery.cancel(second)
        proxy.opened.put_nowait(connection)

    first.opened = opened
    delivery.submit_exchange(first)
    delivery.submit_exchange(second)
    delivery.move("default/old@1", KEY, RerunPolicy(may_rerun=True, timeout_s=1.0))

    assert await proxy.connection()
    assert (await sidecar.next(Kind.OPEN)).flags == Flag.REUSE
    await sidecar.round_trip()
    assert second.stage is Stage.DONE


@pytest.mark.parametrize("how", ["byte", "eof"])
async def test_idle_connections_that_ended_in_this_turn_are_not_reused(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, how: str
) -> None:
    """Connections are examined before they are reused: the loop may not have read their end."""
    ids = [(await open_exchange(delivery, sidecar, proxy))[1] for _ in range(2)]
    for call in proxy.calls:
        delivery.end_exchange(call, kept=True)
        await sidecar.next(Kind.END)
    for id in ids:
        sidecar.servers[id].send(b"x") if how == "byte" else sidecar.servers[id].close()
    delivery.submit_exchange(proxy.call())

    assert [(await sidecar.next(Kind.END)).id for _ in ids] == ids[::-1]
    assert (await sidecar.next(Kind.OPEN)).flags == 0


async def test_a_connection_that_the_proxy_closes_too_late_is_not_reused(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """An idle connection that is closing is ended, and another one requested."""
    connection, id = await open_exchange(delivery, sidecar, proxy)
    delivery.end_exchange(proxy.calls[0], kept=True)
    await sidecar.next(Kind.END)
    connection.abort()

    delivery.submit_exchange(proxy.call())

    end, opened = await sidecar.next(Kind.END), await sidecar.next(Kind.OPEN)
    assert (end.id, end.flags, opened.flags) == (id, 0, 0)


async def test_a_connection_that_gets_no_transport_is_requested_again(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the loop cannot take the socket, END gives it back, and the exchange waits."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await sidecar.next(Kind.OPEN)).id

    async def fails(*_args: object, **_kwargs: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", fails)
        server = sidecar.grant(id)
        assert (await sidecar.next(Kind.END)).id == id
    assert await is_closed(server)
    sidecar.grant((await sidecar.next(Kind.OPEN)).id)
    assert await proxy.connection()


async def test_an_exchange_is_cancelled_while_others_are_resumed(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A callback may cancel an exchange that has been requested together with its own."""
    ids = [(await open_exchange(delivery, sidecar, proxy))[1] for _ in range(2)]
    first, second = proxy.call(), proxy.call()

    def opened(connection: UpstreamConnection) -> None:
        delivery.cancel(second)
        proxy.opened.put_nowait(connection)

    first.opened = opened
    delivery.submit_exchange(first)
    delivery.submit_exchange(second)
    sidecar.send(Kind.QUIESCE)
    assert (await sidecar.next(Kind.QUIESCED)).aux == 2
    for call in proxy.calls:
        delivery.end_exchange(call, kept=False)
    assert [(await sidecar.next(Kind.END)).id for _ in ids] == ids
    sidecar.send(Kind.WINDOW)
    assert (await sidecar.next(Kind.OPEN)).id == 3
    assert (await sidecar.next(Kind.OPEN)).id == 4
    sidecar.grant(3)
    await proxy.connection()

    assert (await sidecar.next(Kind.END)).id == 4
    assert second.stage is Stage.DONE


# Whether the server listens


async def asked(delivery: Delivery, sidecar: Sidecar, proxy: Proxy) -> tuple[int, list[bool]]:
    """Ask whether the server of an open exchange listens; return the id of the OPEN, and the list
    that gets the answer."""
    await open_exchange(delivery, sidecar, proxy)
    answers: list[bool] = []
    delivery.ask_server(proxy.calls[-1], answers.append)
    question = await sidecar.next(Kind.OPEN)
    assert question.flags == Flag.FREE
    return question.id, answers


async def test_a_server_that_takes_a_connection_listens(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """The connection is closed at once, and belongs to no exchange."""
    id, answers = await asked(delivery, sidecar, proxy)
    server = sidecar.grant(id)

    end = await sidecar.next(Kind.END)

    assert (end.id, end.flags, answers) == (id, 0, [True])
    assert await is_closed(server)
    assert proxy.opened.empty()


@pytest.mark.parametrize(
    ("reason", "listens"),
    [(NotStarted.REFUSED, False), (NotStarted.FULL, True), (NotStarted.DRAINING, True)],
)
async def test_only_a_server_that_refuses_connections_does_not_listen(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, reason: int, listens: bool
) -> None:
    """A sidecar without room says nothing about its server."""
    id, answers = await asked(delivery, sidecar, proxy)

    sidecar.send(Kind.NOT_STARTED, id, aux=reason)
    await sidecar.round_trip()

    assert answers == [listens]
    delivery.end_exchange(proxy.calls[-1], kept=False)
    assert (await sidecar.next(Kind.END)).id != id


async def test_the_server_of_a_lost_link_does_not_listen(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Whether the link is lost before or after the question."""
    _, answers = await asked(delivery, sidecar, proxy)

    sidecar.hang_up()
    await asyncio.wait_for(proxy.lost.get(), 60)
    delivery.ask_server(proxy.calls[-1], answers.append)

    assert answers == [False, False]


async def test_an_exchange_ends_with_the_link_of_its_question(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """The answer comes when the loss of the link is known: nobody is told of the exchange's end."""
    await open_exchange(delivery, sidecar, proxy)
    ended = asyncio.Event()

    def answered(_listens: bool) -> None:
        delivery.end_exchange(proxy.calls[-1], kept=False, outcome="failed")
        ended.set()

    delivery.ask_server(proxy.calls[-1], answered)
    await sidecar.next(Kind.OPEN)
    with capture_logs() as lines:
        sidecar.hang_up()
        await asyncio.wait_for(ended.wait(), 60)

    assert not [line for line in lines if line["log_level"] == "error"]
    assert delivery.balance().missing == 0


async def test_a_silent_sidecar_is_taken_for_dead(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds; a connection that arrives later is closed."""
    monkeypatch.setattr("gateway.server_sockets.ASK_S", 0.01)
    id, answers = await asked(delivery, sidecar, proxy)

    assert (await sidecar.next(Kind.END)).id == id
    assert answers == [False]
    assert await is_closed(sidecar.grant(id))
    assert answers == [False]


async def test_shutdown_waits_for_open_exchanges(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """`wait_idle` returns after the proxy has ended the last exchange; free ones do not count."""
    await open_exchange(delivery, sidecar, proxy)
    free = proxy.call(is_free=True)
    delivery.submit_exchange(free)
    sidecar.grant((await sidecar.next(Kind.OPEN)).id)
    await proxy.connection()
    waiting = asyncio.ensure_future(delivery.wait_idle())
    await sidecar.round_trip()
    assert not waiting.done()
    assert delivery.balance().in_flight == {KEY: 2}

    delivery.end_exchange(proxy.calls[0], kept=False)

    await asyncio.wait_for(waiting, 60)
    delivery.end_exchange(free, kept=False)


# Drains


async def test_a_quiesced_link_is_not_used_until_window(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """QUIESCE ends idle connections, and is answered with the number of open exchanges."""
    idle, open_id = [(await open_exchange(delivery, sidecar, proxy))[1] for _ in range(2)]
    delivery.end_exchange(proxy.calls[0], kept=True)
    await sidecar.next(Kind.END)
    sidecar.send(Kind.QUIESCE)

    assert (await sidecar.next(Kind.END)).id == idle
    assert (await sidecar.next(Kind.QUIESCED)).aux == 1
    assert delivery.is_cold(KEY)
    late = proxy.call()
    delivery.submit_exchange(late)
    delivery.end_exchange(proxy.calls[1], kept=True)
    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (open_id, 0)
    sidecar.send(Kind.WINDOW)
    assert (await sidecar.next(Kind.OPEN)).id == late.id


# Descriptors


async def test_a_connection_that_finds_no_descriptor_is_requested_again(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Without room for one more descriptor END gives the slot back, and the exchange waits."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await sidecar.next(Kind.OPEN)).id
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs:
        sidecar.grant(id)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            assert (await sidecar.next(Kind.END)).id == id
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (call.stage, [line["log_level"] for line in logs]) == (Stage.QUEUED, ["warning"])

    sidecar.grant((await sidecar.next(Kind.OPEN)).id)
    assert await proxy.connection()


async def test_connections_have_a_limit(delivery: Delivery, sidecar: Sidecar, proxy: Proxy) -> None:
    """At the limit an idle connection is closed for a new one; without one the exchange waits."""
    delivery.limit_connections(1)
    idle, _ = await keep_one(delivery, sidecar, proxy)
    free = proxy.call(is_free=True)
    delivery.submit_exchange(free)
    assert (await sidecar.next(Kind.END)).id == idle
    sidecar.grant((await sidecar.next(Kind.OPEN)).id)
    await proxy.connection()

    waiting = proxy.call()
    delivery.submit_exchange(waiting)
    assert waiting.stage is Stage.QUEUED
    delivery.end_exchange(free, kept=False)
    await sidecar.next(Kind.END)
    assert (await sidecar.next(Kind.OPEN)).id == waiting.id


def descriptors() -> set[str]:
    """Return the open descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("how", ["none", "two", "short", "long", "file", "datagram"])
async def test_a_malformed_notice_ends_the_link(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, how: str
) -> None:
    """Anything but an id with one stream socket ends the link; no descriptor stays open."""
    call = proxy.call()
    delivery.submit_exchange(call)
    id = (await sidecar.next(Kind.OPEN)).id
    before = descriptors()
    ours, passed = socket.socketpair()
    datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pipe = os.pipe()
    several = {
        "none": [],
        "two": [passed.fileno(), ours.fileno()],
        "file": [pipe[0]],
        "datagram": [datagrams[0].fileno()],
    }.get(how, [passed.fileno()])
    data = {"short": b"abc", "long": bytes(5)}.get(how, SOCKET_NOTICE.pack(id))
    socket.send_fds(sidecar.channels[-1], [data], several)
    for sock in (ours, passed, *datagrams):
        sock.close()
    for end in pipe:
        os.close(end)

    assert await sidecar.lost.get()
    sidecar.channels.pop(0).close()
    assert (await sidecar.next(Kind.OPEN)).id == 1
    assert len(descriptors()) == len(before)
    assert call.stage is Stage.SENT


async def test_connections_that_nobody_requested_have_a_limit(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Each is closed; too many of them end the link."""
    await open_exchange(delivery, sidecar, proxy)
    ours, passed = socket.socketpair()
    for _ in range(LATE_MAX + 1):
        while True:
            try:
                sidecar.pass_descriptors(99, [passed.fileno()])
                break
            except BlockingIOError:
                await asyncio.sleep(0)
    ours.close()
    passed.close()
    assert await sidecar.lost.get()
    await proxy.lost.get()
    delivery.cancel(proxy.calls[0])


# Frames


@pytest.mark.parametrize(
    "frame",
    [
        (Kind.RESPONSE, 1, 0),
        (Kind.OPEN, 1, 0),
        (Kind.GOAWAY, 0, 1),
        (Kind.WINDOW, 1, 0),
        (Kind.WINDOW, 0, 2),
        (Kind.QUIESCE, 1, 0),
        (Kind.HELLO, 0, 0),
        (Kind.NOT_STARTED, 1, NotStarted.BATCH_TIMEOUT),
        (Kind.NOT_STARTED, 1, 0),
    ],
    ids=lambda frame: f"{frame[0].name}-{frame[1]}-{int(frame[2])}",
)
async def test_an_unexpected_frame_ends_the_link(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy, frame: tuple[Kind, int, int]
) -> None:
    """The exchange that was requested is requested again over a new link."""
    delivery.submit_exchange(proxy.call())
    await sidecar.next(Kind.OPEN)
    kind, id, aux = frame
    sidecar.send(kind, id, aux=aux)

    assert await sidecar.lost.get()
    assert (await sidecar.next(Kind.OPEN)).id == 1


async def test_a_body_ends_the_link(delivery: Delivery, sidecar: Sidecar, proxy: Proxy) -> None:
    """Frames of sidecars are small."""
    delivery.submit_exchange(proxy.call())
    await sidecar.next(Kind.OPEN)
    sidecar.send(Kind.WINDOW, body=bytes(5000))

    assert await sidecar.lost.get()


async def test_frames_without_an_exchange_have_a_limit(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """Offers and late answers for ever end the link; answers to requests are not counted."""
    delivery.submit_exchange(proxy.call())
    await sidecar.next(Kind.OPEN)
    for number in range(IDLE_FRAMES_MAX + 1):
        sidecar.send(*((Kind.RECALL, 7) if number % 2 else (Kind.NOT_STARTED, 9)))

    assert await sidecar.lost.get()
    assert (await sidecar.next(Kind.OPEN)).id == 1


@pytest.mark.parametrize("body", [b"", b"x" * 5000])
async def test_a_frame_before_hello_and_a_long_hello_end_the_link(
    tmp_path: Path, body: bytes
) -> None:
    """A sidecar greets first, with a short HELLO."""
    async with (
        Sidecar(tmp_path / "r1").listening(greets=False) as sidecar,
        delivering(ListeningManager()) as delivery,
    ):
        delivery.receive_endpoints(published(sidecar.endpoint()))
        await sidecar.linked.get()
        sidecar.send(Kind.HELLO if body else Kind.WINDOW, body=body, aux=VERSION if body else 0)
        assert await sidecar.lost.get()


async def test_the_end_of_the_side_channel_ends_the_link(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """A sidecar that closes its end only gets a new link."""
    delivery.submit_exchange(proxy.call())
    await sidecar.next(Kind.OPEN)
    sidecar.channels[-1].close()

    assert await sidecar.lost.get()
    assert (await sidecar.next(Kind.OPEN)).id == 1


async def test_exchanges_of_a_removed_function_fail(proxy: Proxy) -> None:
    """Held exchanges get the error of their function, and are counted as failed."""
    async with delivering(ListeningManager()) as delivery:
        call = proxy.call()
        delivery.submit_exchange(call)
        assert call.was_held
        delivery.receive_endpoints(published(state="gone"))
        assert await proxy.errors.get()
        assert delivery.balance().ended["failed"] == 1
