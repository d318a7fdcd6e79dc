"""None"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import make_mocked_request

from admin.api.logs import ErrorRoutes
from admin.client.sse import Event, Parser
from gateway.observing.errors import Failure, RecentFailures
from registry.catalog import Catalog
from registry.model.history import Decision
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.nouns import deployed
from tests.support.operator import MODEL
from tests.support.server import Gate, ServingServer, serving

PATH = "/functions/digits/logs"
CALL: dict[str, Any] = {"inputs": {}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """Serve `digits`, deployed and cold."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        await server.until_pools(lambda: not server.server.manager.replicas())
        yield server


class Reader:
    """Events of one streamed answer."""

    def __init__(self, answer: ClientResponse) -> None:
        self._answer = answer
        self._parser = Parser()
        self._events: list[Event] = []

    async def next(self) -> Event:
        """Return the next event."""
        async with asyncio.timeout(60):
            while not self._events:
                piece = await self._answer.content.readany()
                assert piece, "the stream has ended"
                self._events += self._parser.feed(piece)
        return self._events.pop(0)

    async def until(self, kind: str, text: str = "") -> Event:
        """Read on to the next event of this kind with this text."""
        while True:
            event = await self.next()
            if event.type == kind and text in event.data:
                return event

    async def end(self) -> bytes:
        """Read on to the end of the stream; return the remaining events."""
        async with asyncio.timeout(60):
            return await self._answer.read()


@asynccontextmanager
async def following(
    server: ServingServer, last_id: str = "", lines: int = 10
) -> AsyncIterator[Reader]:
    """Follow the function's logs."""
    headers = {"Authorization": f"Bearer {server.token}", "Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    url = f"{server.url}/admin/v1{PATH}?lines={lines}"
    async with server.session.get(url, headers=headers) as answer:
        assert answer.status == 200
        yield Reader(answer)


async def test_logs_are_followed_over_replicas(server: ServingServer) -> None:
    """A log stream has the earlier lines, then a new replica's start and end; a client that resumes
    goes on after its last event."""
    async with following(server) as reader:
        first = await reader.next()
        assert first.type == "lines"
        assert (await reader.next()).type == "end"
        await server.call("digits", CALL)
        started = await reader.until("lines", "starts for default/digits@1")
    async with asyncio.timeout(60):
        # The next demand report says that nothing is in flight any more.
        while server.bound():
            await server.admin("POST", "/functions/digits/sleep")
    async with following(server, started.id) as reader:
        assert "starts for" not in (await reader.until("lines")).data
        ended = await reader.until("end")

    replica = json.loads(started.data)["replica"]
    assert json.loads(ended.data) == {"replica": replica}
    assert replica != json.loads(first.data)["replica"]


async def test_a_function_that_is_removed_ends_the_stream(server: ServingServer) -> None:
    """A removed function's stream ends after the end of its replicas; following it again is 404."""
    await server.call("digits", CALL)
    async with following(server) as reader:
        await reader.until("lines", "starts for")
        await server.admin("DELETE", "/functions/digits")
        await reader.until("end")
        await reader.end()

    assert (await server.admin("GET", PATH)).problem["code"] == "unknown_function"


async def test_a_first_deploy_has_logs(tmp_path: Path) -> None:
    """While its trial runs, under the name that the function is to have; the stream ends with the
    deploy, and what was said is kept. A name that nobody deploys is unknown."""
    gate = Gate()
    gate.shut()
    driver = FakeDriver(Script(load_s=1, refuse_load="no such opset"), sleep=gate)
    async with serving(tmp_path, driver, standbys=0) as server:
        assert (await server.admin("GET", PATH)).problem["code"] == "unknown_function"
        deploy = asyncio.create_task(server.try_deploy({"m.onnx": MODEL}, name="digits"))
        await server.until_pools(lambda: bool(server.bound()))
        async with following(server) as reader:
            await reader.until("lines", "starts for default/digits@trial-")
            gate.open()
            await reader.until("end")
            await reader.end()
        operation = (await deploy).json()
        kept = (await server.admin("GET", PATH)).json()["items"]

    assert operation["state"] == "failed"
    assert "starts for default/digits@trial-" in kept[0]["text"]


async def test_an_unknown_log_position_is_the_beginning(server: ServingServer) -> None:
    """An unusable Last-Event-ID, which may be another server's, means the beginning."""
    async with following(server, "7f3a-12") as reader:
        assert (await reader.next()).type == "lines"


class Manager:
    """Manager with one decision about every pool."""

    def decisions(self, key: str) -> list[Decision]:
        """Return the same decision for every pool."""
        return [Decision(1.0, f"a1 ended: {key} was killed by SIGKILL")]


async def test_errors_are_told_with_their_cause_until_their_function_goes() -> None:
    """Errors are listed newest first with their cause, and dropped when their function is
    removed."""
    catalog, recent = Catalog([deployed("digits", 3)]), RecentFailures()
    routes = ErrorRoutes(catalog, cast("Any", Manager()), recent)
    request = make_mocked_request("GET", "/", match_info={"name": "digits"})
    for at_s, code in ((1.0, "queue_full"), (2.0, "replica_died")):
        recent.add([Failure("default", "digits", "digits@3", code, at_s, "no", "a1", "q")])

    answer = await routes.errors(request)

    assert isinstance(answer.body, bytes)
    assert answer.body.index(b"replica_died") < answer.body.index(b"queue_full")
    assert b"no: a1 ended: default/digits@3 was killed by SIGKILL" in answer.body
    catalog.remove("digits")
    assert recent.of("default", "digits") == []
