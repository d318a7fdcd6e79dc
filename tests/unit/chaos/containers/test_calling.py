"""What breaks off with a killed server is asked again, and nothing else is forgiven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.chaos.containers.calling import Clients, Front
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject
from tests.support.process_server import ServerProcess

SUBJECT = Subject("f", 2, 3, share=1)


class Counter:
    """Answers as the function does, the first request as the test says."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.first = "right"

    async def answer(self, request: web.Request) -> web.Response:
        """Wait for the gate once; then break off, refuse, err, or be right."""
        how = self.first
        if not self.asked.is_set():
            self.asked.set()
            await self.gate.wait()
            self.first = "right"
        if how == "breaks":
            assert request.transport is not None
            request.transport.close()
        if how == "refuses":
            return web.json_response({}, status=503)
        [row] = (await request.json())["inputs"]["x"]
        shift = how == "errs"
        y = [2 * value + 3 + shift for value in row]
        return web.json_response({"outputs": {"y": [y]}})


@pytest.fixture
async def counter() -> AsyncIterator[tuple[Counter, str]]:
    """A server that counts, and its URL."""
    made, app = Counter(), web.Application()
    app.router.add_post("/fn/f", made.answer)
    async with TestServer(app) as server:
        yield made, str(server.make_url("")).rstrip("/")


async def called(
    tmp_path: Path, counter: tuple[Counter, str], *, killed: bool
) -> tuple[Clients, Ledger]:
    """One client that asks until it has one right answer, or something is wrong."""
    made, url = counter
    server, ledger = ServerProcess(tmp_path), Ledger("test")
    server.url = url
    front = Front(server)
    clients, ended = Clients(front, (SUBJECT,), ledger), asyncio.Event()
    ended.set()
    running = asyncio.ensure_future(clients.run(1, 1, ended))
    await made.asked.wait()
    if killed:
        with front.down():
            made.gate.set()
    made.gate.set()
    await running
    return clients, ledger


async def test_what_breaks_off_with_the_server_is_asked_again(
    tmp_path: Path, counter: tuple[Counter, str]
) -> None:
    """The killed life's connection is counted, and the next one answers."""
    counter[0].first = "breaks"
    clients, ledger = await called(tmp_path, counter, killed=True)

    assert ledger.violations == []
    assert clients.tallies[SUBJECT].cut == 1
    assert clients.answered == 1


@pytest.mark.parametrize("how", ["breaks", "refuses", "errs"])
async def test_nothing_else_is_forgiven(
    tmp_path: Path, counter: tuple[Counter, str], how: str
) -> None:
    """A connection that breaks by itself, a refusal and another's answer are violations."""
    counter[0].first = how
    clients, ledger = await called(tmp_path, counter, killed=False)

    assert len(ledger.violations) == 1
    assert clients.tallies[SUBJECT].cut == 0


async def test_a_refusal_is_not_excused_by_a_kill(
    tmp_path: Path, counter: tuple[Counter, str]
) -> None:
    """What a server that dies still answers has to be right."""
    counter[0].first = "refuses"
    _, ledger = await called(tmp_path, counter, killed=True)

    assert len(ledger.violations) == 1


def test_only_lives_that_were_killed_are_excused(tmp_path: Path) -> None:
    """The next one is not, until it is killed itself."""
    front = Front(ServerProcess(tmp_path))
    before = front.is_excused(1)
    with front.down():
        under_way, is_up = front.is_excused(1), front.up.is_set()

    assert (before, under_way, is_up) == (False, True, False)
    assert (front.is_excused(1), front.is_excused(2), front.up.is_set()) == (True, False, True)
