"""Tests of server-sent events over a whole server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from admin.api import events, streaming
from admin.api.events import server_facts
from admin.documents.events import DecisionEvent
from admin.settings import Settings
from tests.support.followed import following
from tests.support.operator import MODEL
from tests.support.server import ServingServer, serving

CALL = {"inputs": {}}


async def test_a_stream_begins_with_a_snapshot(server: ServingServer) -> None:
    """A stream begins with a snapshot: the server, every function and device as in the lists, then
    its end mark."""
    (listed,) = (await server.admin("GET", "/functions")).json()["items"]
    devices = (await server.admin("GET", "/devices")).json()["items"]

    async with following(server) as told:
        reset = await told.until("reset")
        await told.until("ready")

    kinds = {one.kind: one.data for one in told.came}
    assert told.came[0] == reset
    assert reset.data["server"]["driver"] == "process"
    assert kinds["devices"]["items"] == devices
    assert [one["name"] for one in kinds["functions"]["items"]] == ["digits"]
    assert kinds["functions"]["items"][0].keys() == listed.keys()


async def test_a_cold_start_is_told_as_it_goes(server: ServingServer) -> None:
    """A cold start is a sequence of events: waking, decisions, the replica, warm, and the receipt
    with its phases."""
    async with following(server) as told:
        await told.until("ready")
        assert (await server.call("digits", CALL)).status == 200
        warm = await told.line("digits", state="warm", ready=1)
        paced = await told.line("digits", held=0, in_flight=0, rate=0.1)

    texts = [one.data["text"] for one in told.came if one.kind == "decision"]
    assert any("wants 1 replica" in text for text in texts)
    [cold] = [one.data for one in told.came if one.kind == "cold_start"]
    assert (cold["name"], cold["outcome"]) == ("digits", "ready")
    assert warm["devices"] != []
    assert paced["p50_ms"] is not None
    assert paced["sleeps_at_s"] > 0


async def test_a_resumed_stream_has_every_event_once(
    server: ServingServer,
) -> None:
    """A stream resumed after an event id has each later event once, and no snapshot."""
    async with following(server) as told:
        ready = await told.until("ready")
    assert (await server.call("digits", CALL)).status == 200

    async with following(server, last=ready.id) as again:
        await again.line("digits", state="warm")

    assert "reset" not in [one.kind for one in again.came]
    places = [one.id for one in again.came if one.kind != "beat"]
    numbers = [int(place.rpartition("-")[2]) for place in places]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > int(ready.id.rpartition("-")[2])


@pytest.mark.parametrize("last", ["", "other-3", "nonsense", "{boot}-999999"])
async def test_an_unknown_event_id_gets_a_snapshot(server: ServingServer, last: str) -> None:
    """An id of another boot, of the future, or without meaning gets a snapshot."""
    async with following(server) as told:
        boot = (await told.until("ready")).id.partition("-")[0]

    async with following(server, last=last.format(boot=boot)) as again:
        assert (await again.next()).kind == "reset"


async def test_one_function_can_be_followed_alone(server: ServingServer) -> None:
    """A stream of one function leaves out other functions and reports its removal."""
    async with following(server, "?function=digits") as told:
        await told.until("ready")
        assert (await server.admin("DELETE", "/functions/digits")).status == 200
        gone = await told.until("gone", lambda data: data["functions"])
    async with following(server, "?function=nobody") as told:
        await told.until("ready")

    assert gone.data["functions"] == ["digits"]
    assert "functions" not in [one.kind for one in told.came]


async def test_each_second_has_a_beat(server: ServingServer) -> None:
    """A beat with the server's time and totals comes each second, without an id to resume from."""
    async with following(server) as told:
        beat = await told.until("beat")

    assert beat.data["readyz"] == {"status": "ok", "reasons": []}
    assert (beat.data["held"], beat.data["in_flight"], beat.data["rate"]) == (0, 0, 0.0)
    assert beat.data["at_s"] > 1e9


async def test_a_removed_key_ends_its_streams(server: ServingServer) -> None:
    """A stream whose key was removed ends at its next event."""
    key = (await server.admin("POST", "/keys", {"scopes": ["read"]})).json()
    async with following(server, token=key["secret"]) as told:
        await told.until("ready")
        assert (await server.admin("DELETE", f"/keys/{key['id']}")).status == 200
        await told.over()


async def test_a_bad_name_is_refused(server: ServingServer) -> None:
    """A bad function name is refused with what was expected."""
    answer = await server.admin("GET", "/events?function=No!")

    assert (answer.status, answer.problem["code"]) == (400, "bad_request")


async def test_followers_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One follower over the limit is refused with a time to retry; a place that becomes free can be
    taken."""
    monkeypatch.setattr(events, "FOLLOWERS_MAX", 1)
    async with serving(tmp_path) as server:
        async with following(server):
            answer = await server.admin("GET", "/events")
        assert (answer.status, answer.problem["code"]) == (429, "queue_full")
        assert "Retry-After" in answer.headers
        async with asyncio.timeout(60):
            while server.server.admin.watch.followers:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(0)
        async with following(server) as told:
            await told.until("ready")


async def test_a_follower_who_takes_nothing_is_let_go(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that does not read is disconnected; others are not affected."""
    monkeypatch.setattr(streaming, "SLOW_S", 0.05)
    watch = server.server.admin.watch
    async with ClientSession(read_bufsize=1) as session:
        headers = {"Authorization": f"Bearer {server.token}"}
        async with session.get(f"{server.url}/admin/v1/events", headers=headers) as response:
            assert response.status == 200
            async with asyncio.timeout(60):
                while watch.followers:
                    watch.record("decision", "digits", decision("x" * 100_000))
                    await asyncio.sleep(0)


async def test_a_stopping_server_ends_its_streams(tmp_path: Path) -> None:
    """A stopping server ends every stream at once, unread ones too."""
    headers = {"Accept": "text/event-stream"}
    async with ClientSession(read_bufsize=1) as session, asyncio.timeout(25):
        async with serving(tmp_path) as server:
            headers["Authorization"] = f"Bearer {server.token}"
            url, watch = f"{server.url}/admin/v1/events", server.server.admin.watch
            unread = await session.get(url, headers=headers)
            read = await session.get(url, headers=headers)
            for _ in range(200):
                watch.record("decision", "digits", decision("x" * 100_000))
                await asyncio.sleep(0)
        with pytest.raises(ClientError):
            await read.read()
        unread.close()


def test_a_server_says_what_it_is() -> None:
    """`server_facts` has the facts that do not change while the server runs."""
    facts = server_facts(Settings(workers=3))

    assert (facts.driver, facts.workers) == ("process", 3)
    assert facts.version


def decision(text: str) -> DecisionEvent:
    """Return a decision about `digits`."""
    return DecisionEvent("digits", "digits@1", 0.0, text)


async def test_steps_of_operations_are_told(server: ServingServer) -> None:
    """Every step of an operation is an event, from its beginning to its result."""
    async with following(server) as told:
        await told.until("ready")
        await server.deploy({"m.onnx": MODEL}, name="other")
        done = await told.until("operation", lambda data: data["state"] == "done")
        line = await told.line("other", state="cold")

    steps = [one.data["phase"] for one in told.came if one.kind == "operation"]
    assert (steps[0], steps[-1]) == ("upload", "switch")
    assert done.data["result"]["revision"] == line["revision"] == "other@1"
