"""Two servers on one engine, each killed now and then: nobody touches what is the other's."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.chaos import footprint
from tests.chaos.calls import client
from tests.chaos.containers.calling import Clients, Front
from tests.chaos.containers.engine_room import EngineRoom, Running, happened
from tests.chaos.containers.lives import Lives
from tests.chaos.containers.servers import complaints, container_server, leftovers
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject
from tests.support.own_engine import OwnEngine

NAMES = ("inline", "handler")
"""Both servers have functions of these names, which answer differently."""
SLOTS = 3
"""One more than functions: while a killed container is being removed its slot is taken, and with
none to spare an idle function would make room for the one that lost its container."""
IDLE_S = 60.0
EVERY_S = (0.3, 1.5)
WARM_S = 60.0
KILLED = 0.3
"""The share of turns in which a container is killed and not the server."""


class House:
    """One server, its containers and its callers."""

    def __init__(self, name: str, front: Front, room: EngineRoom, ledger: Ledger) -> None:
        first = 2 + 10 * (name == "right")
        self.name = name
        self.front = front
        self.room = room
        self.subjects = tuple(
            Subject(one, first + index, first + 5, share=1, handler=one == "handler")
            for index, one in enumerate(NAMES)
        )
        self.clients = Clients(front, self.subjects, ledger)
        self.lives = Lives(front, room, self.subjects, ledger)
        self.struck: set[str] = set()

    async def deploy(self, folder: Path) -> None:
        """Ship its functions and have them warm."""
        async with client(self.front.server) as caller:
            for subject in self.subjects:
                await subject.deploy(caller, folder, IDLE_S)
                await caller.admin("POST", f"/functions/{subject.name}/warm?wait={WARM_S:.0f}")

    async def warm(self) -> dict[str, Running]:
        """The containers of replicas that serve, by replica."""
        async with client(self.front.server) as caller:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
        ids = {one["id"] for one in items if one["state"] == "ready"} - self.struck
        running = await asyncio.to_thread(self.room.replicas)
        return {id: running[id] for id in ids & running.keys()}

    async def strike(self, chance: random.Random) -> bool:
        """Kill one of its containers; whether there was any."""
        running = await self.warm()
        if not running:
            return False
        id = chance.choice(sorted(running))
        self.struck.add(id)
        container = running[id].container
        return await asyncio.to_thread(happened, lambda: self.room.client.kill(container))


async def run(data: Path, seed: int, image: str, kills: int = 20) -> Ledger:
    """Each server's answers are its own model's, its containers outlive whatever happens to the
    other, and at the end nothing is left of either."""
    ledger = Ledger("two servers on one engine", {"kills of each server": kills})
    chance, counts = random.Random(seed), Counter[str]()
    with OwnEngine() as engine:
        await asyncio.to_thread(engine.load, image)
        with _houses(data, engine, image, ledger) as houses:
            for house in houses:
                await house.deploy(data / house.name / "models")
            ended = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for house in houses:
                    group.create_task(house.clients.run(16, 0, ended))
                plan = [pair for pair in (houses, houses[::-1]) for _ in range(kills)]
                for mine, others in chance.sample(plan, len(plan)):
                    await footprint.pause(chance.uniform(*EVERY_S))
                    await _turn(chance, mine, others, counts, ledger)
                ended.set()
        ledger.figures |= counts
    return ledger


async def _turn(
    chance: random.Random, mine: House, others: House, counts: Counter[str], ledger: Ledger
) -> None:
    """Kill one server, before that maybe a container of it; the other's go on as they were."""
    before = await others.warm()
    if chance.random() < KILLED:
        counts["containers killed"] += await mine.strike(chance)
    await mine.lives.restart(mine.struck)
    counts["servers killed"] += 1
    after = await asyncio.to_thread(others.room.replicas)
    for id, running in before.items():
        ledger.require(
            after.get(id) == running,
            f"{id} of {others.name} was {running} and is {after.get(id)} since the other's restart",
        )
        counts["neighbours' containers that went on"] += after.get(id) == running


@contextmanager
def _houses(data: Path, engine: OwnEngine, image: str, ledger: Ledger) -> Iterator[list[House]]:
    """Both servers; at the end each is stopped, and nothing of it may be left."""
    with ExitStack() as stack:
        houses = []
        for name in ("left", "right"):
            folder = data / name / "data"
            (data / name / "models").mkdir(parents=True)
            room = stack.enter_context(contextlib.closing(EngineRoom(engine, folder)))
            server = stack.enter_context(container_server(folder, engine, image, SLOTS))
            houses.append(House(name, Front(server), room, ledger))
        yield houses
        for house in houses:
            server = house.front.server
            server.stop()
            ledger.require(not house.room.left(), f"left on the engine: {house.room.left()}")
            ledger.require(not leftovers(server), f"left in folders: {leftovers(server)}")
            for line in complaints(server):
                ledger.violated(f"the log of {house.name}: {line}")
            tallies = house.clients.tallies.values()
            ledger.figures[house.name] = {
                "right": sum(tally.right for tally in tallies),
                "cut off with the server, asked again": sum(tally.cut for tally in tallies),
                **house.lives.figures.to_json(),
            }
