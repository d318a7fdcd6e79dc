"""Watches of the client of the API server: lines, silence, ends and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused, WatchLost
from hosts.kubernetes.objects import PODS, WatchEvent
from tests.unit.hosts.kubernetes.conftest import (
    ScriptedApi,
    bookmark,
    gives,
    line,
    pod,
    queries,
    refuses,
    says,
    streams,
    waits,
)

Make = Callable[..., KubernetesClient]


async def watched(
    client: KubernetesClient, seen: list[WatchEvent] | None = None
) -> list[WatchEvent]:
    """Return all events of a watch until its end; those before an error are in `seen`."""
    seen = [] if seen is None else seen
    async with client.watch(PODS, "5") as events:
        async for event in events:
            seen.append(event)
    return seen


async def test_a_watch_goes_on_from_a_version(api: ScriptedApi, make_client: Make) -> None:
    """It asks for bookmarks, and for an end after a time that chance shortens."""
    api.says(streams())

    async with make_client(watch_s=100.0).watch(PODS, "5", "a=b") as events:
        assert [event async for event in events] == []

    expected = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "5"}
    expected |= {"timeoutSeconds": "50", "labelSelector": "a=b"}
    assert queries(api.requests) == [expected]
    assert api.requests[0].path == "/api/v1/namespaces/fngate/pods"


async def test_lines_may_be_cut_anywhere(api: ScriptedApi, make_client: Make) -> None:
    """Pieces of an answer are not lines; empty lines are none."""
    whole = line("ADDED", pod("a\\r", "6")) + b"\n\r\n" + bookmark("7") + line("DELETED", pod("b"))
    api.says(streams(*[whole[at : at + 7] for at in range(0, len(whole), 7)]))

    events = await watched(make_client())

    assert [event.type for event in events] == ["ADDED", "BOOKMARK", "DELETED"]


async def test_a_watch_may_be_cut_in_a_line(api: ScriptedApi, make_client: Make) -> None:
    """What has no line end is no event: it may be half of one."""
    api.says(streams(line("ADDED", pod("a")), line("ADDED", pod("b"))[:-1]))

    assert len(await watched(make_client())) == 1


@pytest.mark.parametrize(
    ("answer", "words", "is_lost"),
    [
        (streams(b"x" * 5000), "a line of a watch with over 4096 bytes", True),
        (streams(b"x" * 5000 + b"\n"), "a line of a watch with over 4096 bytes", True),
        (streams(*[b"x" * 100] * 50), "a line of a watch with over 4096 bytes", True),
        (streams(b"no json\n"), "none of the API's", True),
        (streams(b'{"type":"OTHER","object":{}}\n'), "none of the API's", True),
        (streams(b'{"type":"ADDED"}\n'), "none of the API's", True),
        (streams(b"[" * 4000 + b"\n"), "none of the API's", True),
        (streams(b"{", breaks=True), ".", False),
        (says("", 302, Location="https://localhost:1/"), "redirect", False),
        (refuses(503, "ServiceUnavailable"), "503 ServiceUnavailable", False),
    ],
)
async def test_what_is_no_watch_ends_it(
    api: ScriptedApi, make_client: Make, answer: Any, words: str, is_lost: bool
) -> None:
    """Events may be missing after a line that is none, and not after a break."""
    api.says(answer)

    with pytest.raises(ApiAway, match=words) as away:
        await watched(make_client(object_bytes=4096))

    assert isinstance(away.value, WatchLost) == is_lost


async def test_a_version_may_be_too_old(api: ScriptedApi, make_client: Make) -> None:
    """The API server says so instead of a watch, or as its first event."""
    status = {"kind": "Status", "code": 410, "reason": "Expired"}
    api.says(refuses(410, "Expired"), streams(line("ERROR", status)))
    client = make_client()

    with pytest.raises(ApiRefused) as refused:
        await watched(client)
    assert refused.value.code == 410
    assert [event.type for event in await watched(client)] == ["ERROR"]


async def test_silence_ends_a_watch(api: ScriptedApi, make_client: Make) -> None:
    """Bookmarks keep it open; without them events may be missing."""
    never = asyncio.Event()
    api.says(streams(bookmark("6"), until=never))
    seen: list[WatchEvent] = []

    with pytest.raises(WatchLost, match=r"nothing in a watch for 0\.2 s"):
        await watched(make_client(silence_s=0.2), seen)

    assert [event.type for event in seen] == ["BOOKMARK"]
    never.set()


async def test_a_watch_has_to_be_accepted_in_time(api: ScriptedApi, make_client: Make) -> None:
    """An API server that is busy has a limit for it."""
    never = asyncio.Event()
    api.says(waits(never, streams()))

    with pytest.raises(ApiAway, match="not accepted"):
        await watched(make_client(request_s=0.2))
    never.set()


async def test_a_watch_does_not_outlive_its_time(api: ScriptedApi, make_client: Make) -> None:
    """Neither silence nor its length can be stretched by single bytes."""
    never = asyncio.Event()
    api.says(streams(b" ", until=never))

    with pytest.raises(ApiAway, match="did not end"):
        await watched(make_client(request_s=0.1, watch_s=0.2))
    never.set()


async def test_watches_are_bounded(api: ScriptedApi, make_client: Make) -> None:
    """Places are given back; requests have their own."""
    never = asyncio.Event()
    api.says(streams(until=never))
    client = make_client(watches=1, requests=1)
    async with client.watch(PODS, "5"):
        with pytest.raises(ApiAway, match="more than 1 watches"):
            await watched(client)
        api.says(gives(pod("a")))
        assert (await client.get(PODS, "a")).metadata.name == "a"

    never.set()
    api.says(streams())
    assert await watched(client) == []


async def test_errors_of_the_reader_are_its_own(api: ScriptedApi, make_client: Make) -> None:
    """They are no errors of the API server, whatever their type."""
    api.says(streams(bookmark("6")))

    with pytest.raises(TimeoutError, match="mine"):
        async with make_client().watch(PODS, "5"):
            raise TimeoutError("mine")
    with pytest.raises(ConnectionError, match="mine"):
        async with make_client().watch(PODS, "5"):
            raise ConnectionError("mine")
