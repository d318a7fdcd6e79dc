"""Calls to a function that computes scale * x + offset, and checks of the answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from tests.support.caller import Answer, Caller
from tests.support.process_server import ServerProcess, server_process

Row = list[float]
SCALE, OFFSET = 5, 7
TIMEOUT_S = 120.0


async def answers(
    caller: Caller, name: str, rows: Sequence[Row], at_once: int = 64
) -> list[Answer]:
    """Send one request per row, at most `at_once` concurrently; return the answers in row order."""
    places = asyncio.Semaphore(at_once)

    async def one(row: Row) -> Answer:
        async with places:
            return await caller.call(name, {"inputs": {"x": [row]}})

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(row)) for row in rows]
    return [task.result() for task in tasks]


def complaint(answer: Answer, row: Row) -> str:
    """Return what is wrong with an answer; "" if it is right."""
    if answer.status != 200:
        return f"x = {row}: {answer.status} {answer.body.decode('utf-8', 'replace')}"
    want = [[SCALE * value + OFFSET for value in row]]
    got = answer.json()["outputs"]["y"]
    return "" if got == want else f"x = {row}: expected {want}, got {got}"


@asynccontextmanager
async def served(data: Path, **settings: float) -> AsyncIterator[tuple[ServerProcess, Caller]]:
    """Start a server with these settings; yield it and a caller for it."""
    with server_process(data / "data", "--config", str(_config(data, settings))) as server:
        async with client(server) as caller:
            yield server, caller


@asynccontextmanager
async def client(server: ServerProcess, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Caller]:
    """Return a caller for a server, without a connection limit."""
    timeout = ClientTimeout(total=timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        session = ClientSession(timeout=timeout, connector=TCPConnector(limit=0))
        await stack.enter_async_context(session)
        yield Caller(server.url, server.token, session)


async def states_until(caller: Caller, name: str, ended: asyncio.Event) -> set[str]:
    """Return every state that the admin API showed for a function until `ended` was set."""
    seen: set[str] = set()
    while not ended.is_set():
        seen.add((await caller.function(name))["state"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await ended.wait()
    return seen


def _config(data: Path, settings: Mapping[str, float]) -> Path:
    data.mkdir(parents=True, exist_ok=True)
    path = data / "config.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return path
