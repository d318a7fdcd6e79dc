"""Server killed repeatedly at random moments of deploys and calls."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos import footprint, history
from tests.chaos.calls import client, served
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, wait_end

NAMES = ("first", "second", "third")
CALLERS = 6
ORPHAN_S = 8.0
GONE_S = 20.0
"""Max seconds beyond `orphan_s` until an orphaned replica has exited."""
ENDED_S = 60.0
"""Max seconds for operations, strays and answers after a restart."""
LIFE_S = (0.0, 1.5)
"""Seconds between resumed deploys and calls and the next kill."""


@dataclass
class Shipped:
    """Every uploaded model, as scale by offset; the offset is also the deploy's number.
    `acknowledged`: number of the last deploy of each function that was reported as done."""

    scales: dict[str, dict[int, int]] = field(default_factory=lambda: {n: {} for n in NAMES})
    acknowledged: dict[str, int] = field(default_factory=dict)

    def complaint(self, name: str, value: int, since: int, outputs: Any) -> str:
        """Return what is wrong with the answer to x = [value, 0, 0, 0], sent after deploy `since`
        was done; "" if it is right."""
        first, offset, *_ = outputs["y"][0]
        if self.scales[name].get(int(offset)) != (first - offset) / value:
            return f"{name}: x = {value} gave {outputs}, which no model of it does"
        return f"{name}: {int(offset)} answered after {since} was done" if offset < since else ""


class Restarts:
    """One server that is killed and restarted. `_up` is set while it accepts calls.

    `orphan_s`: seconds after which replicas without a server end themselves.
    """

    def __init__(
        self, server: ServerProcess, seed: int, folder: Path, ledger: Ledger, orphan_s: float
    ) -> None:
        self._server = server
        self._orphan_s = orphan_s
        self._chance = random.Random(seed)
        self._folder = folder
        self._ledger = ledger
        self._shipped = Shipped()
        self._numbers = itertools.count(1)
        self._up = asyncio.Event()
        self._ended = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def run(self, kills: int) -> None:
        """Deploy every function once, then kill, restart and check the server `kills` times."""
        async with client(self._server) as caller:
            for name in NAMES:
                await self._deploy(caller, name)
        self._up.set()
        async with asyncio.TaskGroup() as group:
            for index in range(CALLERS):
                group.create_task(self._call_on(index))
            for _ in range(kills):
                await self._kill_and_look()
            self._ended.set()

    async def _kill_and_look(self) -> None:
        async with client(self._server) as caller:
            deploying = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._deploy_on(caller, deploying))
                await footprint.pause(self._chance.uniform(*LIFE_S))
                ready = await self._ready(caller)
                self._up.clear()
                deploying.set()
                killed_s = time.monotonic()
                await asyncio.to_thread(self._server.kill)
        self.counts["kills"] += 1
        alive = ready & self._server.replica_processes().keys()
        sound = history.integrity(self._server.data / "fngate.db")
        self._ledger.require(sound == "ok", f"the store after a kill: {sound}")
        began = time.monotonic()
        await asyncio.to_thread(self._server.start)
        self.counts["restart ms in all"] += round((time.monotonic() - began) * 1e3)
        if time.monotonic() - killed_s >= self._orphan_s:
            self.counts["restarts too late to adopt"] += 1
            alive = set()
        async with client(self._server) as caller:
            await self._look(caller, alive)
            self._up.set()

    async def _ready(self, caller: Caller) -> set[str]:
        items = (await caller.admin("GET", "/replicas")).json()["items"]
        return {one["id"] for one in items if one["state"] == "ready" and one["role"] == "serve"}

    async def _look(self, caller: Caller, alive: set[str]) -> None:
        """Check the invariants right after a restart."""
        items = (await caller.admin("GET", "/replicas")).json()["items"]
        adopted = {item["id"] for item in items if item["adopted"]}
        self.counts["adopted"] += len(alive & adopted)
        self._ledger.require(alive <= adopted, f"not adopted: {alive - adopted}")

        async def is_settled() -> bool:
            operations = (await caller.admin("GET", "/operations")).json()["items"]
            return all(operation["state"] != "running" for operation in operations)

        if not await footprint.until(is_settled, ENDED_S):
            operations = (await caller.admin("GET", "/operations")).json()["items"]
            self._ledger.violated(f"operations hang: {operations}")
        listed = (await caller.admin("GET", "/functions")).json()["items"]
        names = sorted(item["name"] for item in listed)
        self._ledger.require(names == sorted(NAMES), f"listed are {names}")
        for name in names:
            await self._call(caller, name, next(self._numbers))

        async def no_strays() -> bool:
            known = {r["id"] for r in (await caller.admin("GET", "/replicas")).json()["items"]}
            return self._server.replica_processes().keys() <= known

        if not await footprint.until(no_strays, ENDED_S):
            self._ledger.violated(f"strays: {self._server.replica_processes()}")

    async def _deploy_on(self, caller: Caller, ended: asyncio.Event) -> None:
        """Deploy until the server is killed."""
        while not ended.is_set():
            try:
                await self._deploy(caller, self._chance.choice(NAMES))
            except (aiohttp.ClientError, OSError):
                self.counts["deploys cut off"] += 1
                return

    async def _deploy(self, caller: Caller, name: str) -> None:
        number = next(self._numbers)
        scale = 2 + number % 90
        self._shipped.scales[name][number] = scale
        model = models.affine(self._folder, scale, number)
        answer = await caller.try_deploy(model, name=name)
        operation = answer.json()
        if operation.get("state") == "done":
            self._shipped.acknowledged[name] = number
            self.counts["deploys done"] += 1
        else:
            self._ledger.violated(f"deploy {number} of {name}: {operation}")

    async def _call_on(self, index: int) -> None:
        """Call until the scenario ends. Calls cut off by a kill are repeated."""
        for value in itertools.count(1):
            if self._ended.is_set():
                return
            name = NAMES[(index + value) % len(NAMES)]
            async with self._calling() as caller:
                await self._call(caller, name, value % 10_000 + 1)

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[Caller]:
        """Yield a caller for the current server. Connection errors are counted, not raised."""
        await self._up.wait()
        try:
            async with client(self._server) as caller:
                yield caller
        except (aiohttp.ClientError, OSError):
            self.counts["calls cut off"] += 1

    async def _call(self, caller: Caller, name: str, value: int) -> None:
        since = self._shipped.acknowledged[name]
        answer = await caller.call(name, {"inputs": {"x": [[value, 0, 0, 0]]}})
        self.counts["answers"] += 1
        if answer.status != 200:
            self._ledger.violated(f"{name}: {answer.status} {answer.body.decode()}")
        elif text := self._shipped.complaint(name, value, since, answer.json()["outputs"]):
            self._ledger.violated(text)


async def run(data: Path, seed: int, kills: int = 50, orphan_s: float = ORPHAN_S) -> Ledger:
    """Kill the server repeatedly. The next one must find a sound store, adopt live replicas, finish
    every operation and answer right. After the last kill no process may be left."""
    ledger = Ledger("a server that is killed", {"orphan_s": orphan_s})
    async with served(data, cpu_slots=8, orphan_s=orphan_s) as (server, _):
        restarts = Restarts(server, seed, data, ledger, orphan_s)
        await restarts.run(kills)
        ledger.require(restarts.counts["adopted"] > 0, "no replica was adopted")
        left = server.replica_pids()
        watches = [os.pidfd_open(pid) for pid in left]
        server.kill()
        began = time.monotonic()
        for watch in watches:
            await asyncio.to_thread(wait_end, watch, orphan_s + GONE_S)
        ledger.figures["orphans"] = f"{len(left)} gone after {time.monotonic() - began:.1f} s"
        ledger.require(not server.replica_pids(), f"orphans are left: {server.replica_pids()}")
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.figures |= restarts.counts
    return ledger
