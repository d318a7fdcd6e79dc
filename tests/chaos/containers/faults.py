"""Faults of containers, their engine and the server, injected one after another."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos import footprint
from tests.chaos.calls import client
from tests.chaos.containers.calling import Clients, Front
from tests.chaos.containers.engine_room import EngineRoom, Running, happened
from tests.chaos.containers.hog import Hog
from tests.chaos.containers.lives import Lives
from tests.chaos.killing import Kills
from tests.chaos.ledger import Ledger

STOP_S = 3
"""Seconds between TERM and KILL of `docker stop`."""
SHORT_S = (0.2, 0.8)
"""Bounds in seconds of a pause too short to end a replica."""
AWAY_S = (0.5, 4.0)
"""Bounds in seconds of an engine outage or hang."""
FOUND_S = 40.0
"""Max seconds until a hung container is gone: three PINGs, TERM, KILL and the removal."""
COMING_S = 20.0
"""Max seconds to wait for an eligible victim."""
STEADY = (
    "kill",
    "remove",
    "stop",
    "first process killed",
    "start killed",
    "paused for a moment",
    "paused for good",
    "out of memory",
    "holders removed",
    "standby removed",
    "engine killed",
    "engine hangs",
)
"""Faults that the server survives."""
FATAL = (
    "server killed",
    "server and engine killed",
    "server killed while the engine hangs",
    "server killed while one is paused",
)


@dataclass(frozen=True)
class Stage:
    """The participants of a run, shared by all faults."""

    chance: random.Random
    front: Front
    room: EngineRoom
    clients: Clients
    lives: Lives
    kills: Kills
    ledger: Ledger


class Faults:
    """Injects every kind of fault in random order, in as many turns as requested."""

    def __init__(self, stage: Stage) -> None:
        self._chance = stage.chance
        self._front = stage.front
        self._room = stage.room
        self._clients = stage.clients
        self._lives = stage.lives
        self._kills = stage.kills
        self._ledger = stage.ledger
        self._hog = Hog(stage.front, stage.ledger)
        self._struck: set[str] = set()
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "kill": lambda: self._strike(lambda c: self._room.client.kill(c.container)),
            "remove": lambda: self._strike(
                lambda c: self._room.client.remove_container(c.container, force=True)
            ),
            "stop": lambda: self._strike(
                lambda c: self._room.client.stop(c.container, timeout=STOP_S)
            ),
            "first process killed": lambda: self._strike(lambda c: os.kill(c.pid, signal.SIGKILL)),
            "start killed": self._kill_start,
            "paused for a moment": self._pause_shortly,
            "paused for good": self._pause_for_good,
            "out of memory": self._hog.eat,
            "holders removed": self._remove_holders,
            "standby removed": lambda: self._strike(
                lambda c: self._room.client.remove_container(c.container, force=True), "standby"
            ),
            "engine killed": self._kill_engine,
            "engine hangs": self._freeze_engine,
            "server killed": self._kill_server,
            "server and engine killed": self._kill_both,
            "server killed while the engine hangs": self._restart_over_hanging_engine,
            "server killed while one is paused": self._kill_server_and_pause,
        }
        assert set(self._kinds) == {*STEADY, *FATAL}

    async def run(self, kinds: tuple[str, ...], turns: int, every_s: tuple[float, float]) -> None:
        """Inject all `kinds` in a new order each turn, with random pauses between them."""
        for _ in range(turns):
            for kind in self._chance.sample(kinds, len(kinds)):
                await footprint.pause(self._chance.uniform(*every_s))
                if await self._kinds[kind]() is not False:
                    self.done[kind] += 1
                if self._ledger.violations:
                    return

    async def _choose(self, role: str = "") -> tuple[dict[str, Any], Running] | None:
        """Return a random eligible replica of this role or state, or None after COMING_S."""
        found: list[tuple[dict[str, Any], Running]] = []

        async def is_there() -> bool:
            found.extend(await self._eligible(role))
            return bool(found)

        await footprint.until(is_there, COMING_S)
        return self._chance.choice(found) if found else None

    async def _eligible(self, role: str) -> list[tuple[dict[str, Any], Running]]:
        async with client(self._front.server) as caller:
            listed = (await caller.admin("GET", "/replicas")).json()["items"]
        eligible = self._kills.eligible(listed)
        running = await asyncio.to_thread(self._room.replicas)
        return [
            (eligible[id], running[id])
            for id in sorted((eligible.keys() & running.keys()) - self._struck)
            if role in ("", eligible[id]["role"], eligible[id]["state"])
        ]

    async def _strike(self, act: Callable[[Running], object], role: str = "") -> bool:
        chosen = await self._choose(role)
        if chosen is None:
            return False
        item, running = chosen
        self._struck.add(item["id"])
        if not await asyncio.to_thread(happened, lambda: act(running)):
            return False
        self._kills.killed(item)
        return True

    async def _kill_start(self) -> bool:
        """Kill the standby, then a ready replica, then the one that starts in its place."""
        struck = False
        for state in ("standby", "ready", "starting"):
            struck = await self._strike(lambda c: self._room.client.kill(c.container), state)
        return struck

    async def _pause_shortly(self) -> bool:
        """Pause a replica briefly: it must survive and answer its pending requests."""
        chosen = await self._choose("ready")
        if chosen is None:
            return False
        item, running = chosen
        if not await asyncio.to_thread(
            happened, lambda: self._room.client.pause(running.container)
        ):
            return False
        await footprint.pause(self._chance.uniform(*SHORT_S))
        went_on = await asyncio.to_thread(
            happened, lambda: self._room.client.unpause(running.container)
        )
        self._ledger.require(went_on, f"{item['id']} of {item['pool']} did not outlive a pause")
        return True

    async def _pause_for_good(self) -> bool:
        """Pause a replica for good: it must be ended for missed PINGs, its requests rerun
        elsewhere."""
        chosen = await self._choose("ready")
        if chosen is None:
            return False
        item, running = chosen
        self._struck.add(item["id"])
        if not await asyncio.to_thread(
            happened, lambda: self._room.client.pause(running.container)
        ):
            return False

        await self._await_end(item, "paused")
        return True

    async def _await_end(self, item: dict[str, Any], what: str) -> None:
        """Require that the container of a hung replica is removed within FOUND_S."""

        async def is_gone() -> bool:
            return item["id"] not in await asyncio.to_thread(self._room.replicas)

        began_s = time.monotonic()
        found = await footprint.until(is_gone, FOUND_S)
        self._ledger.require(
            found, f"{item['id']} of {item['pool']}, {what}, hangs for {FOUND_S:.0f} s"
        )
        took = round(time.monotonic() - began_s, 1)
        self._ledger.figures.setdefault(f"seconds until one was gone that was {what}", []).append(
            took
        )

    async def _remove_holders(self) -> bool:
        """Remove the holder containers as soon as there are any."""
        removed: list[str] = []

        async def removes() -> bool:
            removed.extend(await asyncio.to_thread(self._room.remove_holders))
            return bool(removed)

        return await footprint.until(removes, COMING_S)

    async def _kill_engine(self) -> None:
        chosen = await self._choose("ready")
        await asyncio.to_thread(self._room.engine.kill)
        await self._be_away(chosen)
        await asyncio.to_thread(self._room.engine.start)

    async def _freeze_engine(self) -> None:
        chosen = await self._choose("ready")
        with self._room.frozen():
            await self._be_away(chosen)

    async def _be_away(self, chosen: tuple[dict[str, Any], Running] | None) -> None:
        """Check an engine outage, with a replica killed in half of them. Every warm replica that is
        alive must keep answering."""
        struck = ""
        if chosen is not None and self._chance.random() < 0.5:
            item, running = chosen
            struck = item["pool"]
            self._struck.add(item["id"])
            happened(lambda: os.kill(running.pid, signal.SIGKILL))
            self.done["died while the engine was away"] += 1
        async with client(self._front.server) as caller:
            listed = (await caller.admin("GET", "/replicas")).json()["items"]
        before = {subject: tally.right for subject, tally in self._clients.tallies.items()}
        ready = {one["pool"] for one in listed if one["state"] == "ready"}
        dying = {one["pool"] for one in listed if one["id"] in self._struck}
        await footprint.pause(self._chance.uniform(*AWAY_S))
        for subject, right in before.items():
            pool = f"default/{subject.name}@1"
            is_answered = self._clients.tallies[subject].right > right
            self._ledger.require(
                is_answered or pool not in ready - dying - {struck},
                f"{subject.name}: no answer while the engine was away",
            )

    async def _kill_server(self) -> None:
        await self._lives.restart(self._struck)

    async def _kill_both(self) -> None:
        """Kill the engine first and restart it while no server runs."""
        await asyncio.to_thread(self._room.engine.kill)
        await self._lives.restart(self._struck, self._room.engine.start)

    async def _restart_over_hanging_engine(self) -> None:
        """Restart the server while the engine hangs: the new server has to wait."""
        seconds = self._chance.uniform(*AWAY_S)
        await self._lives.restart(self._struck, disturb=lambda: self._room.freeze_for(seconds))

    async def _kill_server_and_pause(self) -> bool:
        """Pause a replica between two server lives: the next server finds it running but silent."""
        chosen = await self._choose("ready")
        if chosen is None:
            return False
        item, running = chosen
        self._struck.add(item["id"])
        await self._lives.restart(
            self._struck,
            disturb=lambda: happened(lambda: self._room.client.pause(running.container)),
        )
        await self._await_end(item, "paused when its server was killed")
        return True
