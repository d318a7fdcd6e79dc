"""Two servers on one engine, killed repeatedly: neither may touch the other's containers."""

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
from tests.chaos.containers.engine_room import EngineRoom, Running, engine_with, happened
from tests.chaos.containers.lives import Lives
from tests.chaos.containers.servers import complaints, container_server, leftovers
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject
from tests.support.own_engine import OwnEngine

NAMES = ("inline", "handler")
"""Function names used by both servers; their models differ."""
SLOTS = 3
"""One slot more than functions. A killed container occupies its slot until it is removed; without a
spare slot the replacement would evict an idle function."""
IDLE_S = 60.0
EVERY_S = (0.3, 1.5)
WARM_S = 60.0
KILLED = 0.3
"""Share of turns in which a container is killed before its server."""


class House:
    """One server with its containers and callers."""

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
        """Deploy the functions and warm them."""
        async with client(self.front.server) as caller:
            for subject in self.subjects:
                await subject.deploy(caller, folder, IDLE_S)
                await caller.admin("POST", f"/functions/{subject.name}/warm?wait={WARM_S:.0f}")

    async def warm(self) -> dict[str, Running]:
        """Return the containers of ready replicas by replica id."""
        async with client(self.front.server) as caller:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
        ids = {one["id"] for one in items if one["state"] == "ready"} - self.struck
        running = await asyncio.to_thread(self.room.replicas)
        return {id: running[id] for id in ids & running.keys()}

    async def strike(self, chance: random.Random) -> bool:
        """Kill one warm container; return False if there was none."""
        running = await self.warm()
        if not running:
            return False
        id = chance.choice(sorted(running))
        self.struck.add(id)
        container = running[id].container
        return await asyncio.to_thread(happened, lambda: self.room.client.kill(container))


async def run(
    data: Path, seed: int, image: str, kills: int = 20, given: OwnEngine | None = None
) -> Ledger:
    """Each server answers from its own models, its containers survive whatever happens to the other
    server, and afterwards both have removed everything. `image` and `given` as of `scene.run`."""
    ledger = Ledger("two servers on one engine", {"kills of each server": kills})
    chance, counts = random.Random(seed), Counter[str]()
    with engine_with(image, given) as engine:
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
    """Kill one server, at times one of its containers first; the other's containers must run on."""
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
    """Start both servers; at the end stop each and require that it left nothing behind."""
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
