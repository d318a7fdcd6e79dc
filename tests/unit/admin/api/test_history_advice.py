"""Advice over HTTP, by what the store has."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from registry.catalog import Deployed
from registry.model import Arrivals
from tests.support.server import ServingServer

PATH = "/functions/digits/advice"


def children() -> set[int]:
    """The processes of this one."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


async def remember(server: ServingServer, minutes: int, every: int = 1) -> None:
    """Three requests in each so manyth of the last minutes, in which digits was there."""
    store = server.server.store
    now = (await server.admin("GET", "/timeline")).json()["to_s"]
    minute = int(now) // 60 * 60
    for ago in range(1, minutes + 1, every):
        store.history.record(Arrivals("default", "digits", minute - 60 * ago, 3))
    await store.history.flush()
    deployed = store.catalog.resolve("digits")
    function = replace(deployed.function, created_s=now - 60.0 * minutes)
    store.catalog.put(Deployed(function, deployed.revision, deployed.profile))


@pytest.mark.slow
async def test_rows_for_what_was_recorded(server: ServingServer) -> None:
    """With the present idle time among them; longer ones start less often and take more."""
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
    assert any("other functions are left out" in note for note in advice["notes"])


async def test_too_little_history_is_said(server: ServingServer) -> None:
    """No rows and why, which is no error."""
    answer = await server.admin("GET", PATH)

    assert (answer.status, answer.json()["rows"]) == (200, [])
    assert "at least 10 are needed" in answer.json()["notes"][0]


@pytest.mark.slow
async def test_a_second_is_told_to_come_again(server: ServingServer) -> None:
    """503 with a time, and the first has its answer."""
    before = children()
    await remember(server, 300)
    first = asyncio.ensure_future(server.admin("GET", f"{PATH}?hours=48"))
    await server.until(lambda: is_begun(before))

    second = await server.admin("GET", PATH)

    assert (second.status, second.problem["code"]) == (503, "advice_unavailable")
    assert second.problem["retry_after_s"] == 10
    assert (await first).status == 200


@pytest.mark.slow
async def test_it_ends_with_its_client(server: ServingServer) -> None:
    """Who hangs up leaves no process behind."""
    before = children()
    await remember(server, 1500)
    task = asyncio.ensure_future(server.admin("GET", f"{PATH}?hours=48"))
    await server.until(lambda: is_begun(before))

    task.cancel()
    with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
        await task

    await server.until(lambda: is_over(before))


async def is_begun(before: set[int]) -> bool:
    """Whether a new process is there."""
    return children() != before


async def is_over(before: set[int]) -> bool:
    """Whether no new process is left."""
    return children() == before
