"""A gateway side with a replica that shares memory with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import Delivery
from tests.support.peers import published
from tests.support.sharing_peer import SharingPeer


@pytest.fixture
async def sharing(delivery: Delivery, tmp_path: Path) -> AsyncIterator[SharingPeer]:
    """A replica that the gateway is connected to."""
    async with SharingPeer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        delivery.receive_endpoints(published())
