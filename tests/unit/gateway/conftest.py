"""A gateway side whose client, manager and replica are in the test's hands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import Delivery
from tests.support.peers import Client, ListeningManager, Peer, delivering, published
from tests.support.sharing_peer import SharingPeer


@pytest.fixture
def client() -> Client:
    """Waits for outcomes."""
    return Client()


@pytest.fixture
async def delivery() -> AsyncIterator[Delivery]:
    """An open gateway side."""
    async with delivering(ListeningManager()) as delivery:
        yield delivery


@pytest.fixture
async def peer(delivery: Delivery, tmp_path: Path) -> AsyncIterator[Peer]:
    """A replica that the gateway is connected to."""
    async with Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        delivery.receive_endpoints(published())


@pytest.fixture
async def sharing(delivery: Delivery, tmp_path: Path) -> AsyncIterator[SharingPeer]:
    """A replica that the gateway is connected to."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        delivery.receive_endpoints(published())
