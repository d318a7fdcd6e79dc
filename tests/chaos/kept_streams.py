"""Streams and WebSockets that stay open over sleep, scale-down and rollout."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import connected, request
from tests.support.raw_websocket import handshake, masked, read

NAME = "web"
LIMITS = "concurrency = 200"
EVENT_MS = 50
OPEN_S = 30.0
Command = tuple[str, ...]
"""Words of an fnctl command."""


@dataclass
class Scene:
    """A server with one function, and its open streams. `over` ends the WebSockets."""

    server: ServerProcess
    ledger: Ledger
    events: int
    counts: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    """Streams and sockets that were opened so far: on a busy machine, early ones end before the
    last are open."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        """The server's port."""
        port = urlsplit(self.server.url).port
        assert port is not None
        return port

    async def stream(self, what: str) -> None:
        """Read one event stream to its end; it must be whole."""
        target = f"/fn/{NAME}/sse?n={self.events}&ms={EVENT_MS}"
        async with connected(self.port) as connection:
            await connection.send(request("GET", target))
            self.begun += 1
            got = await connection.answer(seconds=self.events * EVENT_MS / 1e3 + 60)
        found = bytes(got.body).count(b"data: ")
        is_whole = got.status == 200 and got.end == "whole" and found == self.events + 1
        self.counts[f"{what}: streams {'whole' if is_whole else 'cut'}"] += 1
        if not is_whole:
            self.ledger.violated(f"{what}: a stream was cut: {got.status} {got.end} {found}")

    async def socket(self, what: str, number: int) -> None:
        """Exchange messages over one WebSocket until `over`; it must stay open."""
        sent = 0
        try:
            async with connected(self.port) as connection:
                await handshake(connection, f"/fn/{NAME}/ws")
                self.begun += 1
                while not self.over.is_set():
                    message = f"{what} {number} {sent}".encode()
                    await connection.send(masked(1, message))
                    got = await read(connection)
                    assert got == (1, message), got
                    sent += 1
                    await pause(EVENT_MS / 1e3)
                await connection.send(masked(8, b""))
                assert (await read(connection))[0] == 8
            self.counts[f"{what}: sockets whole"] += 1
        except (AssertionError, asyncio.IncompleteReadError, OSError) as error:
            self.counts[f"{what}: sockets cut"] += 1
            self.ledger.violated(f"{what}: a WebSocket was cut after {sent}: {error!r}")

    async def fnctl(self, *words: str) -> None:
        """Run a command; it must succeed."""
        done = await asyncio.to_thread(self.server.fnctl, *words)
        self.ledger.require(done.returncode == 0, f"fnctl {words}: {done.stderr}{done.stdout}")

    async def opened(self, what: str, first: int, each: int, group: asyncio.TaskGroup) -> None:
        """Open `each` streams and sockets more."""
        wanted = self.begun + 2 * each
        for number in range(first, first + each):
            group.create_task(self.stream(what))
            group.create_task(self.socket(what, number))

        async def are_open() -> bool:
            return self.begun >= wanted

        if not await until(are_open, OPEN_S):
            self.ledger.violated(f"{what}: {self.begun} of {wanted} were opened")

    async def ready(self, count: int) -> None:
        """Wait until so many replicas are ready."""
        async with client(self.server) as caller:

            async def are_ready() -> bool:
                items = (await caller.admin("GET", "/replicas")).json()["items"]
                return sum(item["state"] == "ready" for item in items) >= count

            self.ledger.require(await until(are_ready, OPEN_S), f"{count} replicas are not ready")

    async def during(self, what: str, each: int, steps: Sequence[Command], ready: int = 1) -> None:
        """Hold `each` streams and sockets from before the first command on, as many from after it,
        when `ready` replicas are ready, and run the other commands; none may be cut."""
        self.over.clear()
        async with asyncio.TaskGroup() as group:
            await self.opened(what, 0, each, group)
            await self.fnctl(*steps[0])
            await self.ready(ready)
            await self.opened(what, each, each, group)
            for step in steps[1:]:
                await self.fnctl(*step)
            await pause(self.events * EVENT_MS / 1e3 / 2)
            self.over.set()


async def run(data: Path, each: int = 25, events: int = 200) -> Ledger:
    """Hold 2 x `each` streams and sockets over sleep, scale-down and rollout: none is cut."""
    ledger = Ledger("streams over sleep, scale-down and rollout", {"each": 2 * each})
    with server_process(data / "data", "--workers", "2", "--cpu-slots", "4") as server:
        await asyncio.to_thread(faulty_server.deploy, server, data, NAME, limits=LIMITS)
        scene = Scene(server, ledger, events)
        sleep, more = ("sleep", NAME), ("scale", NAME, "--min", "2", "--max", "2")
        await scene.during("sleep", each, [sleep, sleep])
        fewer = ("scale", NAME, "--min", "0", "--max", "1")
        await scene.during("scale-down", each, [more, fewer, sleep], ready=2)
        changed = faulty_server.bundle(
            data / "next", NAME, mark=str(server.data), limits=LIMITS, life="start_s = 30"
        )
        await scene.during("rollout", each, [("deploy", str(changed), "--trust"), sleep])
        for line in list(server.complaints)[:5]:
            ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.figures |= scene.counts
    left = faulty_server.survivors(server.data)
    ledger.require(not left, f"processes are left: {left}")
    return ledger
