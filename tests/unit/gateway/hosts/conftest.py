"""Fixtures of a delivery whose replicas are on another host, played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import Delivery
from tests.support.peers import Client
from tests.support.remote_peers import RemotePeer, UnixHosts, delivering_afar


@pytest.fixture
def client() -> Client:
    """Client that records the outcomes of its calls."""
    return Client()


@pytest.fixture
def hosts() -> UnixHosts:
    """Connections to the host, which is this machine."""
    return UnixHosts()


@pytest.fixture
async def delivery(hosts: UnixHosts) -> AsyncIterator[Delivery]:
    """Open delivery."""
    async with delivering_afar(hosts) as delivery:
        yield delivery


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[RemotePeer]:
    """Replica that listens; the delivery does not know it yet."""
    async with RemotePeer(tmp_path / "r1").listening() as peer:
        yield peer
