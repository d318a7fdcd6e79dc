"""Tests of reading deploy requests apart from the event loop."""

from __future__ import annotations

import asyncio

import pytest

from admin.deploy.reading import SMALL_TEXT, RequestReader
from admin.documents.requests import DeployRequest
from registry.errors import BadManifest

MANIFEST = 'schema = 1\nserver.command = ["serve", "${PORT}"]'
REQUEST = DeployRequest(files=[], manifest=f"{MANIFEST} #{'x' * SMALL_TEXT}")


async def test_requests_are_read_parties_in_turn() -> None:
    """A party waits for a few requests of another one, and not for all of them."""
    reader, done = RequestReader(), list[str]()

    async def read(party: str) -> None:
        await reader.read(party, "web", REQUEST)
        done.append(party)

    async with asyncio.TaskGroup() as group:
        for party in "aaaab":
            group.create_task(read(party))

    assert done == ["a", "a", "b", "a", "a"]


async def test_a_small_request_is_read_at_once() -> None:
    """It waits for no thread, and for no other request."""
    reading = RequestReader().read("", "web", DeployRequest(files=[], manifest=MANIFEST))
    with pytest.raises(StopIteration) as caught:
        reading.send(None)

    assert caught.value.value.manifest.engine == "server"


async def test_a_refusal_frees_the_turn() -> None:
    """A hostile manifest is refused, and the next request is read."""
    reader = RequestReader()
    for _ in range(3):
        with pytest.raises(BadManifest, match="line 1: expected at most"):
            await reader.read("", "web", DeployRequest(files=[], manifest="a." * 12_000 + "a = 1"))
