"""Fixtures of a gateway over real HTTP whose pool manager and replica the test plays."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.admission.access import Access
from gateway.admission.control import AdmissionControl
from gateway.cold_checks.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.http.app import Gateway, Site, StatePages
from gateway.http.connected import LastExchanges
from gateway.http.context import Invoker, RequestGate, request_ids
from gateway.http.decompression import Inflation, inflating_threads
from gateway.http.reservations import BodyBudget
from gateway.metrics.key_times import KeyTimes
from gateway.metrics.requests import Metrics
from gateway.observing.access_log import AccessEvent, AccessLog
from gateway.observing.errors import FailureCount
from gateway.settings import MIB, GatewaySettings
from gateway.v1.turns import ScanTurns
from registry.catalog import Catalog
from registry.store.keys import KeyRing
from registry.upstream_keys import UpstreamKeys
from tests.support import nouns
from tests.support.own_page import own_page
from tests.support.peers import (
    KnownModels,
    KnownPast,
    ListeningManager,
    Peer,
    delivering,
    published,
)

TOKEN = "fn_the-admin-token"
HELD = 256 * MIB


class Front:
    """Gateway over HTTP whose function digits takes FP32 [-1, 4] and is cold."""

    def __init__(
        self,
        delivery: Delivery,
        manager: ListeningManager,
        session: ClientSession,
        *,
        is_fast: bool,
    ) -> None:
        self.delivery = delivery
        self.manager = manager
        self.session = session
        self.reasons: list[str] = []
        self.events: list[AccessEvent] = []
        self.past = KnownPast()
        self.models = KnownModels()
        self.catalog = Catalog([nouns.deployed()])
        self.metrics = Metrics(lambda *_: True)
        self.url = ""
        self.gateway = self._gateway(is_fast)
        self.pages = StatePages(
            self.gateway.boundary,
            own_page(self.metrics),
            lambda: self.reasons,
            lambda: self.gateway.gate.is_open,
        )

    def _gateway(self, is_fast: bool) -> Gateway:
        access = Access("127.0.0.1", (), KeyRing((), TOKEN))
        invoker = Invoker(
            GatewaySettings(port=0, body_read_s=0.05, fast_front=is_fast),
            access,
            self.catalog,
            self.delivery,
            ColdCheck(),
            self.metrics,
            self.past,
            RequestGate(),
            AdmissionControl(access, self.catalog, 600.0, HELD),
            time.time,
            request_ids("ours"),
            AccessLog(self.keep, time.time, self.metrics.count_dropped_events),
            None,
            FailureCount(time.time),
            BodyBudget(self.delivery.held, time.monotonic),
            Inflation(inflating_threads()),
            set(),
            set(),
            ScanTurns(),
            UpstreamKeys(),
            KeyTimes(self.past, time.time),
            deque(),
            LastExchanges(),
            model_control=self.models,
        )
        return Gateway(invoker)

    def keep(self, events: list[AccessEvent], _left_out: int) -> None:
        """Keep the events of the access log."""
        self.events += events

    async def call(
        self, body: Any = b"", headers: dict[str, str] | None = None, ref: str = "digits"
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """POST a body to /fn/REF and return status, JSON and headers."""
        return await self.ask("POST", f"/fn/{ref}", body, headers)

    async def ask(
        self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Send any request and return status, JSON and headers."""
        async with self.session.request(
            method, self.url + path, data=body, headers=headers
        ) as response:
            text = await response.read()
            document = json.loads(text) if "json" in response.content_type and text else {}
            return response.status, document, dict(response.headers)


@asynccontextmanager
async def serving(*, is_fast: bool) -> AsyncIterator[Front]:
    """Serve the gateway on a free port, with the fast path or without."""
    manager = ListeningManager()
    async with delivering(manager) as delivery, ClientSession() as session:
        front = Front(delivery, manager, session, is_fast=is_fast)
        app = web.Application()
        front.gateway.add_routes(app)
        front.pages.add_routes(app)
        app.on_cleanup.append(front.gateway.close)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = Site(front.gateway, runner)
        front.url = f"http://127.0.0.1:{await site.start()}"
        try:
            yield front
        finally:
            await site.stop()
            await site.close()
            await runner.cleanup()


@pytest.fixture(params=["fast", "plain"])
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """Gateway on a free port: once with the fast path, once with aiohttp alone."""
    async with serving(is_fast=request.param == "fast") as front:
        yield front


@pytest.fixture
async def peer(front: Front, tmp_path: Path) -> AsyncIterator[Peer]:
    """Warm replica of digits, played by the test."""
    async with Peer(tmp_path / "r1").listening() as peer:
        front.delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        yield peer
        front.delivery.receive_endpoints(published())


@pytest.fixture(params=[True, False], ids=["fast", "aiohttp"])
def is_fast(request: pytest.FixtureRequest) -> bool:
    """Which of the two client sides reads the requests."""
    return bool(request.param)
