"""Faults of server functions' containers, their engine and the gateway, one after another."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pool_manager.driver import MEMORY_KILL
from pool_manager.drivers.docker.spec import SERVER, SIDECAR
from tests.chaos.calls import client
from tests.chaos.containers.engine_room import EngineRoom, Running, happened
from tests.chaos.containers.exchanges import Exchanges
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.footprint import pause, until
from tests.chaos.killing import Kills
from tests.chaos.ledger import Ledger
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, wait_end
from tests.support.raw_http import connected
from tests.support.worker_server import until_replaced, watch, worker_pids

Pair = dict[str, Running]
SHORT_S = (0.2, 1.0)
AWAY_S = (0.5, 3.0)
GONE_S = 40.0
"""Max seconds until a replica whose sidecar is silent is gone."""
COMING_S = 20.0
READY_S = 60.0
COLD_S = 30.0
STEADY = (
    "server killed",
    "sidecar killed",
    "server removed",
    "sidecar removed",
    "server stopped",
    "server's process killed",
    "server out of memory",
    "start killed",
    "server paused",
    "sidecar paused",
    "sidecar paused for good",
    "worker killed",
    "asleep",
    "scaled down",
    "rolled out",
    "engine killed",
    "engine terminated",
)
"""Faults that the gateway's first process survives."""
FATAL = ("gateway killed", "gateway and engine killed")
ENGINE_KILLS = ("engine killed", "gateway and engine killed")
"""Faults with SIGKILL for dockerd."""


@dataclass(frozen=True)
class Stage:
    """The participants of a run. `deploy(caller, name)` deploys a function's next revision."""

    server: ServerProcess
    room: EngineRoom
    exchanges: Exchanges
    fault_times: FaultTimes
    kills: Kills
    ledger: Ledger
    chance: Random
    deploy: Callable[[Caller, str], Awaitable[None]]


class PairFaults:
    """Injects every kind of fault in random order, in as many turns as requested."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._room, self._ledger, self._chance = stage.room, stage.ledger, stage.chance
        self._struck: set[str] = set()
        self.done: Counter[str] = Counter()
        self.adopted = 0
        engine = self._room.client
        self._kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "server killed": lambda: self._strike(SERVER, lambda c: engine.kill(c.container)),
            "sidecar killed": lambda: self._strike(SIDECAR, lambda c: engine.kill(c.container)),
            "server removed": lambda: self._strike(SERVER, self._remove),
            "sidecar removed": lambda: self._strike(SIDECAR, self._remove),
            "server stopped": lambda: self._strike(
                SERVER, lambda c: engine.stop(c.container, timeout=1)
            ),
            "server's process killed": lambda: self._strike(
                SERVER, lambda c: os.kill(c.pid, signal.SIGKILL)
            ),
            "server out of memory": self._eat,
            "start killed": self._kill_start,
            "server paused": lambda: self._pause(SERVER),
            "sidecar paused": lambda: self._pause(SIDECAR),
            "sidecar paused for good": self._pause_for_good,
            "worker killed": self._kill_worker,
            "asleep": self._sleep,
            "scaled down": self._scale_down,
            "rolled out": self._roll_out,
            "engine killed": lambda: self._be_away(self._room.engine.kill),
            "engine terminated": lambda: self._be_away(self._room.engine.stop),
            "gateway killed": lambda: self._restart(with_engine=False),
            "gateway and engine killed": lambda: self._restart(with_engine=True),
        }
        assert set(self._kinds) == {*STEADY, *FATAL}

    async def run(self, kinds: tuple[str, ...], turns: int, every_s: tuple[float, float]) -> None:
        """Inject all `kinds` in a new order each turn, with random pauses between them."""
        for _ in range(turns):
            for kind in self._chance.sample(kinds, len(kinds)):
                await pause(self._chance.uniform(*every_s))
                if await self._kinds[kind]() is not False:
                    self.done[kind] += 1
                if self._ledger.violations:
                    return

    # Victims

    async def _choose(self, *states: str) -> tuple[dict[str, Any], Pair] | None:
        """Return a random replica of which both containers run, or None after COMING_S."""
        found: list[tuple[dict[str, Any], Pair]] = []

        async def is_there() -> bool:
            found.extend(await self._eligible(states))
            return bool(found)

        await until(is_there, COMING_S)
        return self._chance.choice(found) if found else None

    async def _eligible(self, states: tuple[str, ...]) -> list[tuple[dict[str, Any], Pair]]:
        async with client(self._stage.server) as caller:
            listed = (await caller.admin("GET", "/replicas")).json()["items"]
        eligible = self._stage.kills.eligible(listed)
        pairs = await asyncio.to_thread(self._room.parts)
        return [
            (eligible[id], pairs[id])
            for id in sorted((eligible.keys() & pairs.keys()) - self._struck)
            if len(pairs[id]) == len((SIDECAR, SERVER))
            and (not states or eligible[id]["state"] in states)
        ]

    async def _strike(
        self, part: str, act: Callable[[Running], object], states: tuple[str, ...] = ()
    ) -> bool:
        """Do something to one container of a replica that ends it."""
        chosen = await self._choose(*states)
        if chosen is None:
            return False
        item, pair = chosen
        self._struck.add(item["id"])
        with self._stage.fault_times.fault():
            if not await asyncio.to_thread(happened, lambda: act(pair[part])):
                return False
        self._stage.kills.killed(item)
        return True

    def _remove(self, running: Running) -> None:
        self._room.client.remove_container(running.container, force=True)

    async def _kill_start(self) -> bool:
        """Kill a ready replica, then a container of the one that starts in its place."""
        kill, struck = self._room.client.kill, False
        for states in (("ready",), ("starting", "loading")):
            part = self._chance.choice((SIDECAR, SERVER))
            struck = await self._strike(part, lambda c: kill(c.container), states)
        return struck

    async def _pause(self, part: str) -> bool:
        """Pause one container shortly: the replica must outlive it."""
        chosen = await self._choose("ready")
        if chosen is None:
            return False
        item, pair = chosen
        container = pair[part].container
        with self._stage.fault_times.fault():
            if not await asyncio.to_thread(happened, lambda: self._room.client.pause(container)):
                return False
            await pause(self._chance.uniform(*SHORT_S))
            unpause = self._room.client.unpause
            went_on = await asyncio.to_thread(happened, lambda: unpause(container))
        self._ledger.require(went_on, f"{item['id']} of {item['pool']}: {part} outlives no pause")
        return True

    async def _pause_for_good(self) -> bool:
        """Pause a sidecar: its replica must be ended for missed PINGs."""
        chosen = await self._choose("ready")
        if chosen is None:
            return False
        item, pair = chosen
        self._struck.add(item["id"])
        container = pair[SIDECAR].container

        async def is_gone() -> bool:
            return item["id"] not in await asyncio.to_thread(self._room.parts)

        with self._stage.fault_times.fault():
            if not await asyncio.to_thread(happened, lambda: self._room.client.pause(container)):
                return False
            began_s = time.monotonic()
            found = await until(is_gone, GONE_S)
        self._ledger.require(found, f"{item['id']}: its paused sidecar stays for {GONE_S:.0f} s")
        took = round(time.monotonic() - began_s, 1)
        self._ledger.figures.setdefault("seconds until a paused sidecar was gone", []).append(took)
        return True

    async def _eat(self) -> None:
        """Send a request that makes a server exceed its memory: it gets `replica_died`, with the
        reason if the engine tells it in time."""
        exchanges = self._stage.exchanges
        name = self._chance.choice([*exchanges.functions])
        exchanges.refusals.pop("eat", None)
        with self._stage.fault_times.fault():
            async with connected(exchanges.port) as connection:
                await exchanges.exchange(connection, name, "eat")
        said = exchanges.refusals.get("eat", "no refusal")
        self._ledger.require(said.startswith("replica_died"), f"a greedy request got {said}")
        self.done["answers that name the memory"] += MEMORY_KILL in said

    # The gateway and the engine

    async def _kill_worker(self) -> None:
        server = self._stage.server
        assert server.process is not None
        victim = self._chance.choice(worker_pids(server.process.pid))
        with self._stage.fault_times.death():
            await asyncio.to_thread(_kill_and_wait, server, victim)

    async def _be_away(self, end: Callable[[], None]) -> None:
        """End dockerd, at times kill a server meanwhile; warm functions go on answering."""
        chosen = await self._choose("ready")
        with self._stage.fault_times.fault():
            await asyncio.to_thread(end)
            if chosen is not None and self._chance.random() < 0.5:
                item, pair = chosen
                self._struck.add(item["id"])
                part = self._chance.choice((SIDECAR, SERVER))
                happened(lambda: os.kill(pair[part].pid, signal.SIGKILL))
                self.done[f"{part} killed while the engine was away"] += 1
            right = self._stage.exchanges.counts["right"]
            await pause(self._chance.uniform(*AWAY_S))
            answered = self._stage.exchanges.counts["right"] - right
            self.done["answers while the engine was away"] += answered
            await asyncio.to_thread(self._room.engine.start)

    async def _restart(self, *, with_engine: bool) -> None:
        """Kill all gateway processes, at times the engine, too; the next ones adopt the pairs."""
        server, stage = self._stage.server, self._stage
        await self._choose("ready")  # one that can be adopted
        async with client(server) as caller:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
        ready = {one["id"] for one in items if one["state"] == "ready"} - self._struck
        with stage.fault_times.death(is_down=True):
            if with_engine:
                await asyncio.to_thread(self._room.engine.kill)
            await asyncio.to_thread(_kill_all, server)
            if with_engine:
                await asyncio.to_thread(self._room.engine.start)
            before = await asyncio.to_thread(self._room.parts)
            await asyncio.to_thread(server.start)
            async with client(server) as caller:
                await self._check_adopted(caller, {id: before[id] for id in ready & before.keys()})

    async def _check_adopted(self, caller: Caller, before: dict[str, Pair]) -> None:
        async def is_ready() -> bool:
            return (await caller.get("/readyz")).status == 200

        self._ledger.require(await until(is_ready, READY_S), f"not ready within {READY_S:g} s")
        shown: dict[str, dict[str, Any]] = {}

        async def is_measured() -> bool:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
            shown.clear()
            shown.update({one["id"]: one for one in items})
            return all(shown.get(id, {}).get("state") != "loading" for id in before)

        # A pair is adopted at once, and ready when the engine has told how much memory it takes.
        await until(is_measured, READY_S)
        after = await asyncio.to_thread(self._room.parts)
        for id, pair in before.items():
            if len(pair) < len((SIDECAR, SERVER)):
                continue
            now = shown.get(id, {})
            is_kept = after.get(id) == pair and now.get("adopted") and now["state"] == "ready"
            self.adopted += bool(is_kept)
            if not is_kept:
                lines = [line.strip() for line in [*self._stage.server.log] if id in line]
                self._ledger.violated(f"{id} was {pair}, is {after.get(id)}: {now} {lines}")

    # The operator

    async def _sleep(self) -> bool:
        """Let a function go cold; its next call wakes it."""
        exchanges = self._stage.exchanges
        name = self._chance.choice([*exchanges.functions])
        async with client(self._stage.server) as caller:

            async def is_cold() -> bool:
                await caller.admin("POST", f"/functions/{name}/sleep")
                return bool((await caller.function(name))["state"] == "cold")

            exchanges.resting.add(name)
            try:
                went = await until(is_cold, COLD_S)
            finally:
                exchanges.resting.discard(name)
        self._ledger.require(went, f"{name} does not go cold within {COLD_S:g} s")
        return went

    async def _scale_down(self) -> bool:
        """Scale a function to two replicas, then to one: no exchange is cut by it."""
        name = self._chance.choice([*self._stage.exchanges.functions])
        async with client(self._stage.server) as caller:

            async def has_two() -> bool:
                return bool((await caller.function(name))["ready"] >= 2)

            async def scale(least: int, most: int) -> None:
                shown = await caller.admin("GET", f"/functions/{name}")
                headers = {**self._stage.server.headers, "If-Match": shown.headers["ETag"]}
                path, body = f"/admin/v1/functions/{name}", {"min": least, "max": most}
                answer = await caller.request("PATCH", path, body, headers)
                self._ledger.require(answer.status == 200, f"{path}: {answer.body!r}")

            await scale(2, 2)
            came = await until(has_two, READY_S)
            await scale(0, 1)
        self._ledger.require(came, f"{name} has no two replicas within {READY_S:g} s")
        return came

    async def _roll_out(self) -> None:
        """Deploy a function's next revision: no exchange is cut by it."""
        name = self._chance.choice([*self._stage.exchanges.functions])
        async with client(self._stage.server) as caller:
            await self._stage.deploy(caller, name)


def _kill_and_wait(server: ServerProcess, worker: int) -> None:
    gone = watch(worker)
    os.kill(worker, signal.SIGKILL)
    wait_end(gone)
    until_replaced(server, worker)


def _kill_all(server: ServerProcess) -> None:
    """Kill the first gateway process, which ends the others."""
    assert server.process is not None
    ends = [watch(pid) for pid in worker_pids(server.process.pid)]
    server.kill()
    for end in ends:
        wait_end(end)
