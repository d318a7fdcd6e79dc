"""Subscription of a test to a server's events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from admin.client.sse import Parser
from tests.support.caller import UNTIL_S, Caller


class Told(NamedTuple):
    """One event with decoded data."""

    id: str
    kind: str
    data: Any


class StreamOver(Exception):
    """The event stream ended or broke off."""


class Followed:
    """Received events in order."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self._parser = Parser()
        self._waiting: list[Told] = []
        self.came: list[Told] = []

    async def next(self) -> Told:
        """Return the next event. Raises StreamOver."""
        async with asyncio.timeout(UNTIL_S):
            while not self._waiting:
                try:
                    piece = await self._response.content.readany()
                except ClientError as error:
                    raise StreamOver from error
                if not piece:
                    raise StreamOver
                found = self._parser.feed(piece)
                self._waiting += [Told(one.id, one.type, json.loads(one.data)) for one in found]
        self.came.append(self._waiting.pop(0))
        return self.came[-1]

    async def until(self, kind: str, condition: Callable[[Any], bool] = lambda _data: True) -> Told:
        """Return the next event of that kind for which `condition` holds; skip others."""
        while True:
            told = await self.next()
            if told.kind == kind and condition(told.data):
                return told

    async def line(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Return the next line of a function that has these values."""
        while True:
            told = await self.until("functions")
            for item in told.data["items"]:
                if item["name"] == name and wanted.items() <= item.items():
                    found: dict[str, Any] = item
                    return found

    async def replica(self, state: str) -> str:
        """Return the id of the replica last seen in `state`; wait for one if there was none."""
        while True:
            for told in reversed(self.came):
                if told.kind == "replicas":
                    for item in told.data["items"]:
                        if item["state"] == state:
                            return str(item["id"])
            await self.until("replicas")

    async def over(self) -> None:
        """Wait until the stream is over."""
        with contextlib.suppress(StreamOver):
            while True:
                await self.next()


@asynccontextmanager
async def following(
    server: Caller, query: str = "", last: str = "", token: str = ""
) -> AsyncIterator[Followed]:
    """Subscribe to a server's events while the block runs."""
    headers = {"Authorization": f"Bearer {token or server.token}"}
    if last:
        headers["Last-Event-ID"] = last
    url = f"{server.url}/admin/v1/events{query}"
    async with (
        ClientSession(timeout=ClientTimeout(total=None)) as session,
        session.get(url, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        yield Followed(response)
