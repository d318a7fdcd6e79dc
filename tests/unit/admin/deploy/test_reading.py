"""Tests of reading deploy requests apart from the event loop."""

from __future__ import annotations

import asyncio

import pytest

from admin.deploy.plan import WireDeploy
from admin.deploy.reading import SMALL_TEXT, WAITING_MAX, RequestReader
from registry.errors import BadManifest, QueueFull

MANIFEST = 'schema = 1\nserver.command = ["serve", "${PORT}"]'
REQUEST = WireDeploy(files=[], manifest=f"{MANIFEST} #{'x' * SMALL_TEXT}")


async def test_requests_are_read_one_after_the_other_and_their_number_is_bounded() -> None:
    """One more than may wait gets 429 at once; all others are read."""
    reader = RequestReader()
    tasks = [asyncio.create_task(reader.read("web", REQUEST)) for _ in range(WAITING_MAX + 1)]
    found = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(one, QueueFull) for one in found] == [False] * WAITING_MAX + [True]
    assert (await reader.read("web", REQUEST)).manifest.engine == "server"


async def test_a_small_request_is_read_at_once() -> None:
    """It waits for no thread, and for no other request."""
    reading = RequestReader().read("web", WireDeploy(files=[], manifest=MANIFEST))
    with pytest.raises(StopIteration) as caught:
        reading.send(None)

    assert caught.value.value.manifest.engine == "server"


async def test_a_refusal_frees_the_place() -> None:
    """A hostile manifest is refused, and the next request is read."""
    reader = RequestReader()
    for _ in range(WAITING_MAX + 1):
        with pytest.raises(BadManifest, match="line 1: expected at most"):
            await reader.read("web", WireDeploy(files=[], manifest="a." * 12_000 + "a = 1"))
