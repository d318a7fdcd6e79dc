"""A reflector over a real connection: a recorded watch of a real cluster, and faults of the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from hosts.kubernetes import list_watch
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import PODS, Pod
from hosts.kubernetes.reflector import Reflector
from registry.tasks import Tasks
from tests.support.operator import until
from tests.unit.hosts.kubernetes.conftest import (
    Answer,
    ScriptedApi,
    bookmark,
    gives,
    line,
    listing,
    pod,
    queries,
    refuses,
    says,
    streams,
)

Make = Callable[..., KubernetesClient]
RECORDED: Final = [
    json.loads(text) for text in Path("tests/data/kubernetes_watch.jsonl").read_text().splitlines()
]
"""Events of a real cluster, in their order."""


class Told:
    """What a reflector tells."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.events: list[tuple[str, ...]] = []
        self.removed: dict[str, Pod] = {}

    def on_synced(self, objects: Mapping[str, Pod]) -> None:
        """Take over a list."""
        self.pods = dict(objects)
        self.events.append(("synced", *objects))

    def on_changed(self, found: Pod) -> None:
        """Take over a change."""
        self.pods[found.metadata.name] = found
        self.events.append(("changed", found.metadata.name, found.metadata.resource_version))

    def on_removed(self, last: Pod) -> None:
        """Take over an end."""
        self.pods.pop(last.metadata.name, None)
        self.removed[last.metadata.name] = last
        self.events.append(("removed", last.metadata.name, last.metadata.resource_version))

    def on_away(self, reason: str) -> None:
        """Note it."""
        self.events.append(("away", reason))

    def on_back(self) -> None:
        """Note it."""
        self.events.append(("back",))


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_watch, "BACK_OFF_S", 0.0)


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Yield the owner of the reflector's task."""
    made = Tasks("test")
    yield made
    await made.close()


def follow(client: KubernetesClient, tasks: Tasks) -> tuple[Told, Reflector[Pod]]:
    """Start a reflector."""
    told = Told()
    reflector = Reflector(
        client,
        PODS,
        "",
        told.on_synced,
        told.on_changed,
        told.on_removed,
        told.on_away,
        told.on_back,
    )
    tasks.root("reflector", reflector.run())
    return told, reflector


def serves(over: asyncio.Event, pieces: int, *, breaks: bool, expires: bool = False) -> Answer:
    """Answer with the recording: lists as they were before what is left of it, and watches with the
    next few events, the last of them without an end."""
    told = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal told
        if "watch" not in request.query:
            return web.json_response(listing(*there(told).values(), version=at(told)))
        version = request.query["resourceVersion"]
        begin = next(number for number in range(len(RECORDED) + 1) if at(number) == version)
        lines = [line(event["type"], event["object"]) for event in RECORDED[begin:]][:pieces]
        if expires and begin:
            told = min(len(RECORDED), begin + pieces)
            lines = [line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})]
        is_last = begin + pieces >= len(RECORDED)
        send = streams(*lines, until=over if is_last else None, breaks=breaks and not is_last)
        return await send(request)

    return answer


def there(number: int) -> dict[str, Any]:
    """Return the Pods after so many events of the recording."""
    objects: dict[str, Any] = {}
    for event in RECORDED[:number]:
        metadata = event["object"]["metadata"]
        objects[metadata["name"]] = event["object"]
        if event["type"] == "DELETED":
            del objects[metadata["name"]]
    return objects


def at(number: int) -> str:
    """Return the version after so many events of the recording."""
    return str(RECORDED[number - 1]["object"]["metadata"]["resourceVersion"]) if number else "400"


ENDS: Final = {"synced": "", "ADDED": "changed", "MODIFIED": "changed", "DELETED": "removed"}
EXPECTED: Final = [
    (
        ENDS[event["type"]],
        event["object"]["metadata"]["name"],
        event["object"]["metadata"]["resourceVersion"],
    )
    for event in RECORDED
]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("pieces", [1, 7, 100])
async def test_a_recorded_watch_is_told_once_and_in_order(
    api: ScriptedApi, make_client: Make, tasks: Tasks, pieces: int, breaks: bool
) -> None:
    """However often the watch ends or breaks, without a second list."""
    over = asyncio.Event()
    api.says(serves(over, pieces, breaks=breaks))

    told, _ = follow(make_client(), tasks)
    await until(lambda: len(told.events) > len(RECORDED))

    assert told.events == [("synced",), *EXPECTED]
    assert told.pods == {}
    over.set()


async def test_last_objects_prove_an_end(api: ScriptedApi, make_client: Make, tasks: Tasks) -> None:
    """The last object of a Pod that was deleted by force still runs; of no other one."""
    over = asyncio.Event()
    api.says(serves(over, 100, breaks=False))

    told, _ = follow(make_client(), tasks)
    await until(lambda: len(told.events) > len(RECORDED))

    running = {
        name
        for name, last in told.removed.items()
        if any(one.state.running is not None for one in last.status.container_statuses)
    }
    assert running == {"c"}
    assert len(told.removed) == 8
    over.set()


async def test_a_version_that_expires_leads_to_a_list(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """Each list tells what is there; the events between are lost, and no object is."""
    over = asyncio.Event()
    api.says(serves(over, 9, breaks=False, expires=True))

    told, _ = follow(make_client(), tasks)
    await until(lambda: len(told.events) >= 16)
    over.set()

    lists = [("synced", *there(number)) for number in (18, 27, 36, 45, 54, 63)]
    assert told.events[:16] == [("synced",), *EXPECTED[:9], *lists]
    assert lists[2] == ("synced", "g0", "g1")


async def test_a_change_between_list_and_watch_is_told(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """The watch begins at the version of the list, and bookmarks move it."""
    never = asyncio.Event()
    api.says(
        gives(listing(pod("a"), version="10")),
        streams(line("MODIFIED", pod("a", "11")), bookmark("19")),
        streams(until=never),
    )

    told, _ = follow(make_client(), tasks)
    await until(lambda: len(api.requests) == 3)

    assert told.events == [("synced", "a"), ("changed", "a", "11")]
    versions = [query.get("resourceVersion") for query in queries(api.requests)]
    assert versions == [None, "10", "19"]
    never.set()


@pytest.mark.parametrize(
    "event",
    [
        line("ERROR", {"kind": "Status", "code": 500, "reason": "InternalError"}),
        line("ERROR", {}),
        line("ADDED", {"metadata": {"name": 5}}),
        line("ADDED", {"kind": "Status", "metadata": {"name": "b", "resourceVersion": "12"}}),
        b"no json\n",
        b"x" * 5000,
    ],
)
async def test_a_line_that_cannot_be_used_leads_to_a_list(
    api: ScriptedApi, make_client: Make, tasks: Tasks, event: bytes
) -> None:
    """What it would have said is in the list. This is no failure of the API server."""
    never = asyncio.Event()
    api.says(
        gives(listing()),
        streams(line("ADDED", pod("a", "11")), event),
        gives(listing(pod("a", "11"), pod("b", "12"), version="12")),
        streams(until=never),
    )

    told, _ = follow(make_client(object_bytes=4096), tasks)
    await until(lambda: len(api.requests) == 4)

    assert told.events == [("synced",), ("changed", "a", "11"), ("synced", "a", "b")]
    never.set()


async def test_a_stalled_watch_leads_to_a_list(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """A connection may stand on which nothing comes any more."""
    never = asyncio.Event()
    api.says(
        gives(listing()),
        streams(until=never),
        gives(listing(pod("a", "11"), version="11")),
        streams(line("DELETED", pod("a", "12")), until=never),
    )

    told, _ = follow(make_client(silence_s=0.3), tasks)
    await until(lambda: len(told.events) >= 3)

    assert told.events[:3] == [("synced",), ("synced", "a"), ("removed", "a", "12")]
    never.set()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refuses(500, "InternalError", "etcd"), "500 InternalError: etcd"),
        (refuses(403, "Forbidden", "no role"), "no role"),
        (refuses(401, "Unauthorized", "who"), "who"),
        (says("<html>"), "none of the API's"),
    ],
)
async def test_an_api_server_may_be_away_and_come_back(
    api: ScriptedApi, make_client: Make, tasks: Tasks, answer: Answer, reason: str
) -> None:
    """Each is told once, with the words of the second failure, and back before the list."""
    never = asyncio.Event()
    api.says(*[answer] * 4, gives(listing(pod("a"))), streams(until=never))

    told, _ = follow(make_client(), tasks)
    await until(lambda: len(told.events) == 3)

    (_, words), *rest = told.events
    assert reason in words
    assert rest == [("back",), ("synced", "a")]
    never.set()


async def test_a_restarted_api_server_is_followed_on(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """The watch goes on where it broke, without a list; an outage is told."""
    never = asyncio.Event()
    api.says(gives(listing(version="10")), streams(bookmark("15"), until=never))
    told, _ = follow(make_client(), tasks)
    await until(lambda: len(api.requests) == 2)

    await api.stop()
    await until(lambda: len(told.events) == 2)
    api.says(streams(line("ADDED", pod("a", "16")), until=never))
    await api.start()
    await until(lambda: len(told.events) == 4)

    assert told.events[1][0] == "away"
    assert told.events[2:] == [("back",), ("changed", "a", "16")]
    assert api.requests[-1].query["resourceVersion"] == "15"
    never.set()


async def test_a_token_that_has_expired_is_replaced(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """The next attempt has the token of the file."""
    never = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != "Bearer new":
            return await refuses(401, "Unauthorized")(request)
        if "watch" in request.query:
            return await streams(until=never)(request)
        return await gives(listing(pod("a")))(request)

    api.says(answer)
    told, _ = follow(make_client(), tasks)
    await until(lambda: len(told.events) == 1)
    (api.folder / "token").write_text("new")
    await until(lambda: len(told.events) == 3)

    assert told.events[1:] == [("back",), ("synced", "a")]
    never.set()


async def test_a_list_can_be_asked_for(
    api: ScriptedApi, make_client: Make, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a caller that misses an event; before the first watch nothing is missed."""
    monkeypatch.setattr(list_watch, "RESYNC_S", 0.0)
    never = asyncio.Event()
    api.says(
        gives(listing()),
        streams(until=never),
        gives(listing(pod("a"), version="12")),
        streams(until=never),
    )
    told, reflector = follow(make_client(), tasks)
    reflector.resync()
    await until(lambda: len(api.requests) == 2)

    reflector.resync()
    await until(lambda: len(api.requests) == 4)

    assert told.events == [("synced",), ("synced", "a")]
    assert api.requests[-1].query["resourceVersion"] == "12"
    never.set()


async def test_a_reflector_ends_with_its_owner(
    api: ScriptedApi, make_client: Make, tasks: Tasks
) -> None:
    """In the middle of a watch, whose place is given back."""
    never = asyncio.Event()
    api.says(gives(listing()), streams(until=never))
    client = make_client(watches=1)
    follow(client, tasks)
    await until(lambda: len(api.requests) == 2)

    await tasks.close()

    api.says(streams())
    async with client.watch(PODS, "1") as events:
        assert [event async for event in events] == []
    never.set()
