"""A gateway over real HTTP whose manager and replica are in the test's hands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gateway.access import Access
from gateway.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.http.app import Gateway
from gateway.http.invoke import Invoker
from gateway.metrics import Metrics
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.store.keys import KeyRing
from tests.support import nouns
from tests.support.peers import KnownPast, ListeningManager, Peer, delivering, published

TOKEN = "fn_the-admin-token"


class Front:
    """The gateway behind HTTP: the function digits takes FP32 [-1, 4] and is cold."""

    def __init__(
        self, delivery: Delivery, manager: ListeningManager, session: ClientSession
    ) -> None:
        self.delivery = delivery
        self.manager = manager
        self.session = session
        self.reasons: list[str] = []
        self.past = KnownPast()
        self.catalog = Catalog([nouns.deployed()])
        self.metrics = Metrics(delivery.loads, delivery.states, lambda: 0, lambda *_: True)
        self.url = ""
        self.gateway = self._gateway()

    def _gateway(self) -> Gateway:
        invoker = Invoker(
            GatewaySettings(body_read_s=0.05),
            Access("127.0.0.1", (), KeyRing(), TOKEN),
            self.catalog,
            self.delivery,
            ColdCheck(),
            self.metrics,
            self.past,
        )
        return Gateway(invoker, lambda: self.reasons)

    async def call(
        self, body: Any = b"", headers: dict[str, str] | None = None, ref: str = "digits"
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """POST /fn/REF: status, JSON, headers."""
        return await self.ask("POST", f"/fn/{ref}", body, headers)

    async def ask(
        self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Any request."""
        async with self.session.request(
            method, self.url + path, data=body, headers=headers
        ) as response:
            text = await response.read()
            document = json.loads(text) if "json" in response.content_type and text else {}
            return response.status, document, dict(response.headers)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """The gateway, served on a free port."""
    manager = ListeningManager()
    async with delivering(manager) as delivery, ClientSession() as session:
        front = Front(delivery, manager, session)
        app = web.Application()
        front.gateway.add_routes(app)
        app.on_cleanup.append(front.gateway.close)
        async with TestServer(app, handler_cancellation=True) as server:
            front.url = str(server.make_url("")).rstrip("/")
            yield front


@pytest.fixture
async def peer(front: Front, tmp_path: Path) -> AsyncIterator[Peer]:
    """The warm replica of digits, for the test to play."""
    async with Peer(tmp_path / "r1").listening() as peer:
        front.delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        front.delivery.receive_endpoints(published())
