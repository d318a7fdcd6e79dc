"""Tests of gateways' links to a real sidecar around a tiny HTTP server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from random import Random
from time import monotonic
from typing import Any

import pytest

from gateway.delivery import Delivery
from gateway.server_links import NO_META, ExchangeCall
from gateway.upstream import UpstreamConnection
from registry.errors import FnError
from registry.exchange import ReplicaEndpoint
from runtime_image.contract.control import DATA_SOCKET
from runtime_image.contract.link import Kind
from tests.support.peers import KEY, ListeningManager, delivering, published
from tests.support.sidecar_process import ID, PATIENCE_S, Sidecar, sidecar, tiny

LIMIT = 2


class Exchange:
    """One GET, ended as soon as its answer is complete. `result` is the answer's body, `begun` is
    set by its first byte."""

    def __init__(self, delivery: Delivery, *, path: str = "/", **changes: Any) -> None:
        loop = asyncio.get_running_loop()
        self.delivery = delivery
        self.path = path
        self.is_reused = False
        self.result: asyncio.Future[bytes] = loop.create_future()
        self.begun = asyncio.Event()
        self._data = b""
        now = loop.time()
        fields: dict[str, Any] = {"arrived_s": now, "wait_until_s": now + 60, "timeout_s": 0.0}
        fields |= {"pool": KEY, "meta": NO_META, "body": b"", **changes}
        self.call = ExchangeCall(**fields, opened=self._on_opened, done=self._on_failed)
        delivery.submit_exchange(self.call)

    def _on_opened(self, connection: UpstreamConnection) -> None:
        connection.handler = self
        self.is_reused = connection.is_reused
        connection.write(f"GET {self.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def _on_failed(self, error: FnError) -> None:
        self.result.set_exception(error)

    def upstream_data(self, data: bytes) -> None:
        """Collect the answer."""
        self._data += data
        head, _, body = self._data.partition(b"\r\n\r\n")
        if body:
            self.begun.set()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
        if len(body) == length:
            self.delivery.end_exchange(self.call, kept=True)
            self.result.set_result(body)

    def upstream_eof(self) -> None:
        """Retry: a kept connection was closed by the server."""
        if self._data:
            self.delivery.end_exchange(self.call, kept=False)
            self.result.set_result(self._data)
        else:
            self.delivery.retry_exchange(self.call)

    def upstream_lost(self, _error: Exception | None) -> None:
        """As `upstream_eof`."""
        self.upstream_eof()

    def upstream_paused(self) -> None:
        """Nothing: the request is small."""

    def upstream_resumed(self) -> None:
        """Nothing: the request is small."""


@pytest.fixture
def web() -> Iterator[Sidecar]:
    """A sidecar whose server is ready."""
    with sidecar(tiny(concurrency=LIMIT)) as started:
        started.ready()
        yield started


@pytest.fixture
async def gateways(web: Sidecar) -> AsyncIterator[list[Delivery]]:
    """Three gateways with links to the sidecar."""
    path = str(web.run_dir / DATA_SOCKET)
    endpoint = ReplicaEndpoint(ID, path, LIMIT, True, ("cpu:0",), {}, is_server=True)
    async with AsyncExitStack() as stack:
        several = []
        for _ in range(3):
            made = await stack.enter_async_context(delivering(ListeningManager()))
            made.receive_endpoints(published(endpoint))
            several.append(made)
        yield several


async def test_a_kept_connection_is_not_slowed_down(gateways: list[Delivery]) -> None:
    """The tiny server writes head and body separately and waits for the acknowledgement of the
    head (RFC 9293 section 3.7.4); the kernel would delay that by 40 ms."""
    assert await Exchange(gateways[0]).result == b"hello"
    began = monotonic()
    for _ in range(100):
        exchange = Exchange(gateways[0])
        assert await exchange.result == b"hello"
        assert exchange.is_reused
    assert monotonic() - began < 100 * 0.03


async def test_three_gateways_share_a_server(gateways: list[Delivery]) -> None:
    """Every exchange of every gateway is answered, some over kept connections; cancelled ones
    leave no slot behind."""
    random = Random(7)
    several: list[Exchange] = []
    for _ in range(100):
        for gateway in gateways:
            exchange = Exchange(gateway, is_free=random.random() < 0.1)
            if random.random() < 0.1:
                gateway.cancel(exchange.call)
            else:
                several.append(exchange)
        await asyncio.sleep(0)

    answers = await asyncio.wait_for(asyncio.gather(*(one.result for one in several)), PATIENCE_S)

    assert Counter(answers) == {b"hello": len(several)}
    assert any(one.is_reused for one in several)
    for gateway in gateways:
        await asyncio.wait_for(gateway.wait_idle(), PATIENCE_S)


def on_quiesced(gateway: Delivery, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that is set when a gateway answers QUIESCE."""
    answered, answer = asyncio.Event(), gateway._servers.quiesced

    def quiesced(link: str, count: int) -> None:
        answered.set()
        answer(link, count)

    monkeypatch.setattr(gateway._servers, "quiesced", quiesced)
    return answered


async def test_a_drain_waits_for_the_open_exchange(
    web: Sidecar, gateways: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unconditional drain ends idle connections and waits; then the sidecar exits, and calls
    that came meanwhile are held."""
    idle = Exchange(gateways[0])
    assert await idle.result == b"hello"
    stream = Exchange(gateways[1], path="/stream")
    await asyncio.wait_for(stream.begun.wait(), PATIENCE_S)
    quiesced = on_quiesced(gateways[1], monkeypatch)
    web.control.send(Kind.DRAIN)
    await asyncio.wait_for(quiesced.wait(), PATIENCE_S)
    late = Exchange(gateways[1])
    assert web.process.poll() is None

    gateways[1].end_exchange(stream.call, kept=False)

    assert await asyncio.to_thread(web.exit_code) == 0
    assert gateways[1].loads()[KEY].queued == 1
    gateways[1].cancel(late.call)


async def test_a_revoked_drain_resumes_the_gateways(
    web: Sidecar, gateways: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft drain that is revoked lets held exchanges go on."""
    assert await Exchange(gateways[0]).result == b"hello"
    stream = Exchange(gateways[1], path="/stream")
    await asyncio.wait_for(stream.begun.wait(), PATIENCE_S)
    quiesced = on_quiesced(gateways[0], monkeypatch)
    web.control.send(Kind.QUIESCE)
    await asyncio.wait_for(quiesced.wait(), PATIENCE_S)
    held = Exchange(gateways[0])
    assert held.call.was_held

    web.control.send(Kind.RESUME)

    assert await asyncio.wait_for(held.result, PATIENCE_S) == b"hello"
    gateways[1].end_exchange(stream.call, kept=False)


async def test_the_end_of_the_sidecar_ends_its_exchanges(
    web: Sidecar, gateways: list[Delivery]
) -> None:
    """The proxy reads the end of each open exchange, and nothing stays in flight."""
    stream = Exchange(gateways[0], path="/stream")
    await asyncio.wait_for(stream.begun.wait(), PATIENCE_S)
    web.close()

    assert b"begun" in await asyncio.wait_for(stream.result, PATIENCE_S)
    assert gateways[0].loads() == {}
