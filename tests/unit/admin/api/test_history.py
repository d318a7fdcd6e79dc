"""Tests of timelines and advice over the admin API."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from registry.catalog import Deployed
from registry.model.devices import Use
from registry.model.history import Arrivals, StateInterval
from tests.support.server import ServingServer

CALL = {"inputs": {}}


async def test_a_functions_last_hour(server: ServingServer) -> None:
    """A timeline has states with the current one last, device-seconds, requests, and their sums."""
    inside = server.server
    await server.call("digits", CALL)
    inside.manager._use.flush()
    past = inside.store.history
    (state,) = [one for one in (await timeline(server))["states"] if one["state"] == "warm"]
    minute = int(state["from_s"]) // 60 * 60
    past.record(Arrivals("default", "digits", minute, 2))
    past.record(Use("default", "digits", 1, "cpu:0", minute, 1.0, 2.0, 0.5))
    past.record(StateInterval("default", "digits", 1, "failing", "why", minute - 9, minute - 5))
    await past.flush()

    found = await timeline(server)

    assert found["bucket_s"] == 60
    assert found["from_s"] <= minute - 3000
    assert found["states"][-1]["to_s"] == pytest.approx(found["to_s"], abs=0.01)
    assert found["states"][-1]["revision"] == "digits@1"
    assert {"from_s": minute - 9, "to_s": minute - 5, "state": "failing"}.items() <= next(
        one for one in found["states"] if one["state"] == "failing"
    ).items()
    assert sum(one["busy_s"] for one in found["use"]) == pytest.approx(0.5, abs=0.1)
    assert found["arrivals"] == [{"at_s": minute, "count": 2}]
    assert found["totals"]["requests"] == 2
    assert found["totals"]["waking_s"] >= 1.0
    assert found["totals"]["cold_starts"] == 1


async def test_all_functions_and_devices(server: ServingServer) -> None:
    """The overall timeline lists functions by device-seconds, and devices with buckets; standbys
    count for no function."""
    history = server.server.store.history
    now = int((await timeline(server))["to_s"]) // 60 * 60
    for name, busy_s in (("digits", 3600.0), ("other", 4000.0), ("", 50.0)):
        history.record(Use("default" if name else "", name, 1, "cuda:9", now, 0.0, 1.0, busy_s))
    await history.flush()

    found = (await server.admin("GET", "/timeline?hours=24")).json()

    assert found["bucket_s"] == 600
    assert [one["name"] for one in found["functions"]][:2] == ["other", "digits"]
    assert found["functions"][0]["requests"] == 0
    (device,) = [one for one in found["devices"] if one["id"] == "cuda:9"]
    assert (device["idle_s"], device["busy_s"]) == (3.0, 7650.0)
    assert [one["busy_s"] for one in device["use"]] == [7650.0]


@pytest.mark.parametrize("hours", ["0", "169", "1.5", "", "x", "-1"])
async def test_a_bad_span_is_refused(server: ServingServer, hours: str) -> None:
    """A bad span is refused with what was expected."""
    for path in ("/timeline", "/functions/digits/timeline", "/functions/digits/advice"):
        answer = await server.admin("GET", f"{path}?hours={hours}")

        assert answer.status == 400
        assert "expected a whole number from 1 to 168" in answer.problem["detail"]


async def test_an_unknown_function_has_no_past(server: ServingServer) -> None:
    """The timeline and advice of an unknown function are 404."""
    assert (await server.admin("GET", "/functions/digit/timeline")).status == 404
    assert (await server.admin("GET", "/functions/digit/advice")).status == 404


async def timeline(server: ServingServer) -> dict[str, Any]:
    """Return the last hour's timeline of digits."""
    found: dict[str, Any] = (await server.admin("GET", "/functions/digits/timeline")).json()
    return found


PATH = "/functions/digits/advice"
SERVER = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n'


def children() -> set[int]:
    """Return the ids of this process's children."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


async def remember(
    server: ServingServer, minutes: int, every: int = 1, name: str = "digits"
) -> None:
    """Record three requests in every `every`-th of the last `minutes`, and date the function back
    to then."""
    store = server.server.store
    now = (await server.admin("GET", "/timeline")).json()["to_s"]
    minute = int(now) // 60 * 60
    for ago in range(1, minutes + 1, every):
        store.history.record(Arrivals("default", name, minute - 60 * ago, 3))
    await store.history.flush()
    deployed = store.catalog.resolve(name)
    function = replace(deployed.function, created_s=now - 60.0 * minutes)
    store.catalog.put(Deployed(function, deployed.revision, deployed.profile))


@pytest.mark.slow
async def test_rows_for_what_was_recorded(server: ServingServer) -> None:
    """Advice has a row for the present idle time; the longest idle time has the fewest cold starts
    and the most device time."""
    await remember(server, 600, every=7)

    advice = (await server.admin("GET", f"{PATH}?hours=12")).json()

    assert advice["requests"] == 3 * 86
    assert advice["idle_s"] == 300.0
    rows = advice["rows"]
    assert [row["idle_s"] for row in rows if row["is_current"]] == [300.0]
    assert rows == sorted(rows, key=lambda row: row["idle_s"])
    assert rows[0]["cold_starts"] >= rows[-1]["cold_starts"]
    assert rows[0]["device_s"] < rows[-1]["device_s"]
    assert advice["basis"].keys() == {"cold_start_ms", "run_ms", "cold_starts_seen"}
    assert any("other functions are ignored" in note for note in advice["notes"])


async def test_too_little_history_is_said(server: ServingServer) -> None:
    """With too little history the advice has no rows and a note, and is no error."""
    answer = await server.admin("GET", PATH)

    assert (answer.status, answer.json()["rows"]) == (200, [])
    assert "at least 10 are needed" in answer.json()["notes"][0]


@pytest.mark.slow
async def test_a_server_function_has_advice(server: ServingServer) -> None:
    """A server function has rows like a model function, and a note while it has no history."""
    await server.deploy({"app.py": b""}, name="web", manifest=SERVER)
    early = await server.admin("GET", "/functions/web/advice")
    await remember(server, 60, every=7, name="web")

    advice = await server.admin("GET", "/functions/web/advice")

    assert (early.status, early.json()["rows"]) == (200, [])
    assert advice.status == 200
    assert [row["is_current"] for row in advice.json()["rows"]].count(True) == 1


@pytest.mark.slow
async def test_a_second_computation_is_refused(server: ServingServer) -> None:
    """A second request for advice gets 503 with Retry-After; the first is answered."""
    before = children()
    await remember(server, 300)
    first = asyncio.ensure_future(server.admin("GET", f"{PATH}?hours=48"))
    await server.until(lambda: is_begun(before))

    second = await server.admin("GET", PATH)

    assert (second.status, second.problem["code"]) == (503, "advice_unavailable")
    assert second.problem["retry_after_s"] == 10
    assert (await first).status == 200


@pytest.mark.slow
async def test_the_computation_ends_with_its_client(server: ServingServer) -> None:
    """The computation ends when its client disconnects."""
    before = children()
    await remember(server, 1500)
    task = asyncio.ensure_future(server.admin("GET", f"{PATH}?hours=48"))
    await server.until(lambda: is_begun(before))

    task.cancel()
    with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
        await task

    await server.until(lambda: is_over(before))


async def is_begun(before: set[int]) -> bool:
    """Return whether a new child process runs."""
    return children() != before


async def is_over(before: set[int]) -> bool:
    """Return whether no new child process is left."""
    return children() == before
