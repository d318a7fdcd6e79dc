"""Tests of sidecars' links: connections requested, granted, reused, recalled and lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import Delivery
from runtime_image.contract.link import Flag, Kind
from tests.support.peers import ListeningManager, delivering, published
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


async def test_an_exchange_gets_a_connection_and_the_next_one_reuses_it(
    delivery: Delivery, sidecar: Sidecar, proxy: Proxy
) -> None:
    """OPEN brings a connected socket; END with KEPT leaves it idle, and the next OPEN names it."""
    first = proxy.call()
    delivery.submit_exchange(first)
    opened = await sidecar.next(Kind.OPEN)
    server = sidecar.grant(opened.id)
    connection = await proxy.connection()
    assert (connection.is_reused, connection.replica, connection.device) == (False, "r1", "cpu:0")
    connection.write(b"GET")
    server.setblocking(True)
    assert server.recv(10) == b"GET"
    server.send(b"200")
    assert await proxy.received.get() == b"200"

    delivery.end_exchange(first, kept=True)
    second = proxy.call()
    delivery.submit_exchange(second)

    kept, reused = await sidecar.next(Kind.END), await sidecar.next(Kind.OPEN)
    assert (kept.id, kept.flags) == (opened.id, Flag.KEPT)
    assert (reused.flags, reused.aux) == (Flag.REUSE, opened.id)
    assert await proxy.connection() is connection
    assert (connection.is_reused, connection.bytes_in) == (True, 0)
    delivery.end_exchange(second, kept=False)
    end = await sidecar.next(Kind.END)
    assert (end.id, end.flags) == (reused.id, 0)
    assert delivery.balance().ended["completed"] == 2
