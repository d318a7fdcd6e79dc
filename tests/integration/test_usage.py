"""Tests that usage adds up to what servers of models have counted."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.footprint import until
from tests.support import chat_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.worker_server import worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EACH = 12
UNTIL_S = 40.0
PLACES = ("chat/completions", "completions", "responses", "messages")
Sums = tuple[int, int, int, int]
"""Tokens in, tokens out, calls, unknown."""


class House:
    """A server with the function `chat` and two keys. `sent`: calls and those without tokens."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.counts = folder / "counts"
        # Without a second try each call is counted once at the servers, too.
        options = ("--counts", str(self.counts), "--rate", "0")
        limits = "retry = 'never'\nconcurrency = 64"
        chat_server.deploy(server, folder, "chat", *options, limits=limits)
        made = [server.fnctl_json("key", "add", "--scope", "invoke") for _ in range(2)]
        self.keys = [(one["id"], one["secret"]) for one in made]
        self.calls = dict.fromkeys((id for id, _ in self.keys), 0)
        self.unknown = dict(self.calls)
        self.session: aiohttp.ClientSession | None = None

    async def call(self, number: int, orders: str, *, place: str = "", stream: bool = True) -> int:
        """Send one call with every second key, and read its answer. Returns its status."""
        id, secret = self.keys[number % 2]
        place = place or PLACES[number % len(PLACES)]
        text = f"call number {number} {orders}"
        body = {"model": "chat", "stream": stream, "max_tokens": 100}
        said: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
        spoken = {"completions": {"prompt": text}, "responses": {"input": text}}
        sent = {**body, **spoken.get(place, said)}
        if place in ("embeddings", "rerank"):
            sent = {"model": "chat", "input": [text], "query": text, "documents": [text, text]}
        self.calls[id] += 1
        assert self.session is not None
        header = {"Authorization": f"Bearer {secret}"}
        async with self.session.post(f"/v1/{place}", json=sent, headers=header) as answer:
            if "hang" in orders:
                await answer.content.readany()
                self.unknown[id] += 1
                answer.close()
                return answer.status
            try:
                await answer.read()
            except aiohttp.ClientError:
                self.unknown[id] += 1
        return answer.status

    def served(self) -> tuple[int, int]:
        """Return the tokens of whole answers, as the servers counted."""
        whole = [one for one in chat_server.counted(self.counts) if one["end"] == "calls"]
        whole = [one for one in whole if one["path"] != "/messages/count_tokens"]
        return sum(one["input"] for one in whole), sum(one["output"] for one in whole)

    def expected(self) -> Sums:
        """Return what usage must add up to."""
        return (*self.served(), sum(self.calls.values()), sum(self.unknown.values()))

    def reported(self, *words: str) -> Sums:
        """Return the sum that `fnctl usage` shows."""
        total = self.server.fnctl_json("usage", *words)["total"]
        return total["tokens_in"], total["tokens_out"], total["calls"], total["unknown"]

    async def until_reported(self) -> None:
        """Wait until the store has all usage."""

        async def is_there() -> bool:
            return await asyncio.to_thread(self.reported) == self.expected()

        assert await until(is_there, UNTIL_S), (self.reported(), self.expected())

    def stored(self) -> dict[str, Sums]:
        """Return the rows in the database of the stopped server, by key."""
        with sqlite3.connect(self.server.data / "fngate.db") as database:
            rows = database.execute(
                "SELECT key_id, sum(tokens_in), sum(tokens_out), sum(calls), sum(unknown)"
                " FROM usage WHERE namespace = 'default' AND name = 'chat' GROUP BY 1"
            ).fetchall()
        return {id: tuple(sums) for id, *sums in rows}


@contextmanager
def house(folder: Path, workers: int) -> Iterator[House]:
    """Run a server with this many gateway processes."""
    options = ("--workers", str(workers), "--cpu-slots", "2")
    with server_process(folder / "data", *options) as server:
        yield House(server, folder)


async def send_all(one: House) -> None:
    """Send calls of every kind and end, many at once."""
    whole = [one.call(number, "[tokens=9]") for number in range(EACH)]
    plain = [one.call(number, "[tokens=5]", stream=False) for number in range(EACH)]
    others = [
        one.call(number, "", place=place, stream=False)
        for number, place in enumerate(("embeddings", "rerank", "messages/count_tokens") * 2)
    ]
    refused = [one.call(number, "[fail=400]") for number in range(4)]
    left = [one.call(number, "[tokens=9][hang=2]") for number in range(EACH)]
    cut = [one.call(number, "[tokens=9][cut=3]") for number in range(EACH)]
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(one.server.url, connector=connector) as one.session:
        found = await asyncio.gather(*whole, *plain, *others, *refused, *left, *cut)
        # A call that is not sent to a server is none of the usage.
        header = {"Authorization": f"Bearer {one.keys[0][1]}"}
        async with one.session.post("/v1/embeddings", json={"model": "x"}, headers=header) as none:
            assert none.status == 404
    assert set(found) == {200, 400}


@pytest.mark.parametrize("workers", [1, 2])
async def test_usage_is_what_the_servers_have_counted(tmp_path: Path, workers: int) -> None:
    """Tokens, calls and unknown calls add up, in total and by key, after streams that are whole,
    left, and broken off, and after a stop of the server. `/metrics` has the same numbers."""
    with house(tmp_path, workers) as one:
        await send_all(one)
        await one.until_reported()
        by_key = one.server.fnctl_json("usage", "chat", "--by", "key", "--since", "1h")
        assert {item["key"]: item["calls"] for item in by_key["items"]} == one.calls
        assert {item["key"]: item["unknown"] for item in by_key["items"]} == one.unknown
        numbers = await metrics(one)
        names = ("input_tokens_total", "output_tokens_total", "usage_unknown_total")
        tokens_in, tokens_out, _, unknown = one.expected()
        assert [numbers[f"fngate_{name}"] for name in names] == [tokens_in, tokens_out, unknown]
        streams = 3 * EACH  # those that are whole, left, and broken off
        assert numbers["fngate_first_token_seconds_count"] == streams
        assert numbers["fngate_output_tokens_per_second_count"] <= EACH

        await send_all(one)
        one.server.stop()
        one.server.start()
        found = one.stored()

        assert {id: sums[2:] for id, sums in found.items()} == {
            id: (one.calls[id], one.unknown[id]) for id in one.calls
        }
        assert tuple(map(sum, zip(*found.values(), strict=True))) == one.expected()


async def test_a_killed_worker_loses_no_usage_that_it_has_told(tmp_path: Path) -> None:
    """What was told within a second before stays; the worker that follows counts on."""
    with house(tmp_path, 2) as one:
        await send_all(one)
        await one.until_reported()
        assert one.server.process is not None
        gone = worker_pids(one.server.process.pid)[0]
        os.kill(gone, signal.SIGKILL)
        await until_replaced(one, gone)

        await send_all(one)
        await one.until_reported()


async def test_a_killed_server_loses_seconds_of_usage(tmp_path: Path) -> None:
    """What was stored before a kill stays, and nothing counts twice after it."""
    with house(tmp_path, 1) as one:
        await send_all(one)
        await one.until_reported()
        one.server.kill()
        one.server.start()
        assert one.reported() == one.expected()

        await send_all(one)
        await one.until_reported()


async def until_replaced(one: House, gone: int) -> None:
    """Wait until two workers serve again without the one that is gone."""

    async def is_ok() -> bool:
        assert one.server.process is not None
        # A process that is being killed has no command line any more, but still its sockets: it
        # is gone when there is another one.
        running = worker_pids(one.server.process.pid)
        if gone in running or len(running) < 2:
            return False
        async with one.server.session() as session:
            with suppress(aiohttp.ClientError):
                async with session.get("/readyz") as answer:
                    return bool((await answer.json())["status"] == "ok")
        return False

    assert await until(is_ok, UNTIL_S)


async def metrics(one: House) -> dict[str, float]:
    """Return the metrics of `chat` by name of the sample."""
    async with one.server.session() as session, session.get("/metrics") as page:
        text = await page.text()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("function") == "chat"
    }
