"""Fixtures of a gateway delivery whose client, pool manager and replica the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import Delivery
from tests.support.peers import Client, ListeningManager, Peer, delivering, published
from tests.support.sharing_peer import SharingPeer


@pytest.fixture
def client() -> Client:
    """Client that records the outcomes of its calls."""
    return Client()


@pytest.fixture
async def delivery() -> AsyncIterator[Delivery]:
    """Open delivery that reports to a stand-in for the pool manager."""
    async with delivering(ListeningManager()) as delivery:
        yield delivery


@pytest.fixture
async def peer(delivery: Delivery, tmp_path: Path) -> AsyncIterator[Peer]:
    """Replica, played by the test, that the gateway is connected to."""
    async with Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        delivery.receive_endpoints(published())


@pytest.fixture
async def sharing(delivery: Delivery, tmp_path: Path) -> AsyncIterator[SharingPeer]:
    """Replica with shared memory, played by the test, that the gateway is connected to."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        delivery.receive_endpoints(published())
