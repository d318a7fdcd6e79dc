"""Fake sidecars: real links to the manager and to gateways, and a scripted server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.delivery import Delivery
from gateway.server_links import ExchangeCall
from gateway.upstream import UpstreamConnection
from pool_manager.core import events
from pool_manager.replicas.control import Control
from runtime_image.contract.server import ServerSpec
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.peers import ListeningManager, delivering, published
from tests.support.replicas import Stage, binding, pool_settings
from tests.support.sidecars import Proxy, Sidecar

ID = "aaaa0001"
SPEC = ServerSpec("digits@1", ("serve",), concurrency=2)
GET = b"GET /items?q=1 HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


class Rig:
    """A fake sidecar with its launcher, and a gateway with a link to it."""

    def __init__(self, stage: Stage, delivery: Delivery) -> None:
        self.stage = stage
        self.delivery = delivery
        self.proxy = Proxy()

    @property
    def control(self) -> Control:
        control = self.stage.launcher.control(ID)
        assert control is not None
        return control

    async def open(self) -> tuple[ExchangeCall, UpstreamConnection]:
        """Begin an exchange."""
        call = self.proxy.call()
        self.delivery.submit_exchange(call)
        return call, await self.proxy.connection()

    async def answer(self, end: bytes = b"}") -> bytes:
        """Return what the server sends, up to `end`."""
        data = b""
        while not data.endswith(end):
            data += await asyncio.wait_for(self.proxy.received.get(), 60)
        return data


Make = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Return a function that starts a fake sidecar with a script."""
    async with AsyncExitStack() as stack:
        settings = stack.enter_context(pool_settings())

        async def made(spec: ServerSpec = SPEC, **script: Any) -> Rig:
            driver = FakeDriver(Script(), sleep=script.pop("sleep", asyncio.sleep))
            driver._script = Script(**script)
            driver._crashes_left = 1
            stage = Stage(settings, driver, tmp_path)
            stack.push_async_callback(stage.close)
            loaded = await stage.ready(ID, binding(spec))
            assert (loaded.limit, loaded.marks_started) == (spec.concurrency, True)
            delivery = await stack.enter_async_context(delivering(ListeningManager()))
            path = stage.launcher.folders.data_socket(ID)
            endpoint = Sidecar(path).endpoint(id=ID, limit=spec.concurrency)
            delivery.receive_endpoints(published(endpoint))
            return Rig(stage, delivery)

        yield made


async def test_an_exchange_is_answered_over_its_own_connection(make: Make) -> None:
    """The gateway gets a connected socket and speaks HTTP over it; the first one completes the
    cold start, and a kept connection serves the next exchange."""
    rig = await make()
    call, connection = await rig.open()
    connection.write(GET)

    head, _, body = (await rig.answer()).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    about = {"method": "GET", "path": "/items?q=1", "body_bytes": 0, "revision": "digits@1"}
    assert json.loads(body) == about
    assert (await rig.stage.next(events.FirstRun)).ms == 0.0
    rig.delivery.end_exchange(call, kept=True)
    again, reused = await rig.open()
    assert reused is connection
    connection.write(POST)
    assert b'"body_bytes": 3' in await rig.answer()
    rig.delivery.end_exchange(again, kept=False)


async def test_a_stream_begins_at_once_and_lasts(make: Make) -> None:
    """A long exchange keeps its slot until the script lets it end."""
    goes_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds == 7.0:
            await goes_on.wait()

    rig = await make(run_s=7.0, sleep=sleep)
    call, connection = await rig.open()
    connection.write(b"GET /stream HTTP/1.1\r\n\r\n")

    assert b"begin" in await rig.answer(b"begin\r\n")
    rig.control.drain(1.0)
    assert await rig.stage.next(events.NotIdle) == events.NotIdle(ID, 0.0)
    goes_on.set()
    assert (await rig.answer(b"0\r\n\r\n")).count(b"digits@1") == 1
    rig.delivery.end_exchange(call, kept=False)


async def test_a_soft_drain_is_revoked_or_ends(make: Make) -> None:
    """QUIESCE stops new exchanges and waits for the open one; RESUME lets new ones begin; the
    second time the replica exits when the last exchange has ended."""
    rig = await make()
    call, _ = await rig.open()
    rig.control.quiesce()
    rig.control.resume()
    assert await rig.stage.next(events.NotIdle) == events.NotIdle(ID, 0.0)
    other, _ = await rig.open()

    rig.control.quiesce()
    rig.delivery.end_exchange(call, kept=False)
    rig.delivery.end_exchange(other, kept=False)

    assert await rig.stage.exit(ID) == "exited with code 0"


async def test_an_idle_replica_agrees_to_stop(make: Make) -> None:
    """A conditional drain succeeds once every gateway has answered. One that arrives before the end
    of the exchange is refused."""
    rig = await make()
    call, _ = await rig.open()
    rig.delivery.end_exchange(call, kept=True)
    exit = asyncio.ensure_future(rig.stage.exit(ID))

    while not exit.done():
        rig.control.drain(0.001)
        await asyncio.wait({exit}, timeout=0.05)

    assert await exit == "exited with code 0"


async def test_term_shuts_open_exchanges(make: Make) -> None:
    """TERM ends the exchanges of a sidecar, unlike those of a model."""
    rig = await make()
    call, _ = await rig.open()

    await rig.stage.driver.terminate(ID)

    assert await rig.stage.exit(ID) == "exited with code 0"
    assert await asyncio.wait_for(rig.proxy.received.get(), 60) == b""
    rig.delivery.end_exchange(call, kept=False, outcome="failed")


async def test_a_scripted_crash_ends_the_replica(make: Make) -> None:
    """A server that crashes in an exchange takes its replica with it."""
    rig = await make(crash_at="run")
    call, connection = await rig.open()
    connection.write(GET)

    assert await rig.stage.exit(ID) == "crashed"
    rig.delivery.end_exchange(call, kept=False, outcome="failed")


async def test_malformed_requests_end_their_connection(make: Make) -> None:
    """The server closes a connection that does not speak HTTP."""
    rig = await make()
    call, connection = await rig.open()
    connection.write(b"nonsense\r\n\r\n")

    assert await asyncio.wait_for(rig.proxy.received.get(), 60) == b""
    rig.delivery.end_exchange(call, kept=False, outcome="failed")


async def test_a_trial_reports_a_server(tmp_path: Path) -> None:
    """A trial's report has the signature http and nothing about batches."""
    with pool_settings() as settings:
        stage = Stage(settings, FakeDriver(), tmp_path)
        loaded = await stage.ready(ID, binding(SPEC), role="trial")
        await stage.close()

    assert loaded.report["signature"]["kind"] == "http"
    assert (loaded.report["batchable"], loaded.report["latency_ms"]) == (False, {})


async def test_a_start_may_be_refused(tmp_path: Path) -> None:
    """A refused start names the stage of servers."""
    with pool_settings() as settings:
        stage = Stage(settings, FakeDriver(Script(refuse_load="no port")), tmp_path)
        stage.launch(ID, binding(SPEC))
        lost = await stage.next(events.Lost)
        await stage.close()

    assert (lost.stage, lost.reason) == ("start", "no port")
