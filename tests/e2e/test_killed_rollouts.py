"""Tests of kill -9 during a deploy or a rollback, which the next server completes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from tests.support.caller import UNTIL_S, Caller
from tests.support.process_server import ServerProcess, server_process

HANDLER = """
import os, threading

def load(ctx):
    while os.path.exists({flag!r}):
        threading.Event().wait(0.01)

def predict(inputs, ctx):
    return {{"n": inputs["n"] + {add}}}
"""
TAKES = 'schema = 1\n[runtime]\nengine = "python"\n[input.n]\ndtype = "INT64"\nshape = [-1]\n'
CALL: dict[str, Any] = {"inputs": {"n": [1]}}


def session() -> ClientSession:
    return ClientSession(timeout=ClientTimeout(total=UNTIL_S))


def handler(flag: Path, add: int) -> dict[str, bytes]:
    """Return a handler that adds a number, and does not finish loading while `flag` exists."""
    return {"handler.py": HANDLER.format(flag=str(flag), add=add).encode()}


class Killed:
    """A server that is killed in a phase of an operation, and restarted."""

    def __init__(self, server: ServerProcess, flag: Path, client: ClientSession) -> None:
        self._server = server
        self._flag = flag
        self._client = client
        self.caller = Caller(server.url, server.token, client)

    async def kill_in(self, phase: str, operation: dict[str, Any]) -> dict[str, Any]:
        """Kill the server when the operation reaches `phase`; return how the next server ends
        it."""
        path = f"/operations/{operation['id']}"
        while operation["phase"] != phase:
            assert operation["state"] == "running", operation
            answer = await self.caller.admin("GET", f"{path}?wait=10&phase={operation['phase']}")
            operation = answer.json()
        self._server.kill()
        self._flag.unlink()
        await asyncio.to_thread(self._server.start)
        self.caller = Caller(self._server.url, self._server.token, self._client)
        ended: dict[str, Any] = (await self.caller.ended(operation)).json()
        return ended

    async def begin(self, files: dict[str, bytes], **overrides: Any) -> dict[str, Any]:
        """Begin a deploy that cannot finish loading; return its operation."""
        self._flag.touch()
        async with asyncio.TaskGroup() as group:
            trying = group.create_task(
                self.caller.try_deploy(files, name="f", manifest=TAKES, **overrides)
            )
            operation: dict[str, Any] = {}
            while not operation:
                listed = (await self.caller.admin("GET", "/operations")).json()["items"]
                operation = next((one for one in listed if one["state"] == "running"), {})
            trying.cancel()
        return operation

    async def sees(self) -> tuple[list[int], str, int]:
        """Return the revisions, the one with the traffic, and the result of a call."""
        shown = await self.caller.function("f")
        answer = (await self.caller.call("f", CALL)).json()
        numbers = [one["number"] for one in shown["revisions"]]
        return numbers, answer["revision"], answer["outputs"]["n"][0]


@pytest.mark.slow
async def test_killed_in_every_phase_that_takes_time(tmp_path: Path) -> None:
    """Killed while verifying, warming, and warming for a rollback, the server completes the
    operation.

    No revision is left without traffic, and no number is used twice or skipped.
    """
    flag = tmp_path / "flag"
    with server_process(tmp_path / "data", "--cpu-slots", "2") as server:
        async with session() as client:
            killed = Killed(server, flag, client)
            first = handler(flag, 1)
            await killed.caller.deploy(first, name="f", manifest=TAKES)
            assert await killed.sees() == ([1], "f@1", 2)

            ended = await killed.kill_in("verify", await killed.begin(handler(flag, 10)))
            assert (ended["state"], ended["result"]["revision"]) == ("done", "f@2")
            assert await killed.sees() == ([1, 2], "f@2", 11)

            again = await killed.begin(handler(flag, 10), batch_max=4)
            ended = await killed.kill_in("warm", again)
            assert (ended["state"], ended["result"]["revision"]) == ("done", "f@3")
            assert await killed.sees() == ([1, 2, 3], "f@3", 11)

            # The replica of the first revision is kept as well: without it, this one has to load.
            await killed.caller.admin("POST", "/functions/f/sleep")
            await killed.caller.until_shown("f", state="cold")
            await killed.caller.call("f", CALL)
            flag.touch()
            back = (await killed.caller.admin("POST", "/functions/f/rollback", {"to": 1})).json()
            ended = await killed.kill_in("warm", back)
            assert (ended["state"], ended["result"]["revision"]) == ("done", "f@1")
            assert await killed.sees() == ([1, 2, 3], "f@1", 2)
