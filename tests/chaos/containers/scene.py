"""Load on containers that die in every known way, over an engine and a server that die, too."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from pool_manager.core.pool import FAILING_AFTER
from tests.chaos import footprint
from tests.chaos.calls import client
from tests.chaos.containers.calling import Clients, Front
from tests.chaos.containers.engine_room import EngineRoom, engine_with
from tests.chaos.containers.faults import FATAL, STEADY, Faults, Stage
from tests.chaos.containers.hog import HOG
from tests.chaos.containers.lives import Lives
from tests.chaos.containers.servers import complaints, container_server, leftovers
from tests.chaos.footprint import Footprint
from tests.chaos.killing import Kills
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import chosen
from tests.support.caller import Caller
from tests.support.own_engine import OwnEngine
from tests.support.process_server import ServerProcess

SUBJECTS = (*chosen(4), HOG)
SLOTS = 6
IDLE_S = 60.0
ZERO_S = 90.0
"""Max seconds until everything is scaled to zero after the last answer."""
GROWTH_MAX = 0.05
"""Max growth of resident memory in the second round, as a share."""
POOLED = 18
"""Max connections and threads kept idle: docker-py's connection pool and the thread pool. The
current number varies within this limit."""
SOCKET = "socket"


@dataclass(frozen=True)
class Dose:
    """Parameters of a run: two rounds of `turns` in one life of the server, whose resources are
    compared, then one round of `fatal_turns` that also kills the server. `requests`: minimum over
    all rounds; the load continues until the last fault is over. `think_s`: pause of each client
    after an answer; 0 loads the machine as much as it can bear."""

    seed: int
    requests: int = 20_000
    at_once: int = 64
    turns: int = 3
    fatal_turns: int = 3
    every_s: tuple[float, float] = (0.2, 1.0)
    steady: tuple[str, ...] = STEADY
    fatal: tuple[str, ...] = (*STEADY, *FATAL)
    starts_max: int = FAILING_AFTER - 1
    think_s: float = 0.0


class Containers:
    """One run of a dose against a running server."""

    def __init__(self, dose: Dose, server: ServerProcess, room: EngineRoom, ledger: Ledger) -> None:
        self._dose = dose
        self._server = server
        self._room = room
        self._ledger = ledger
        front = Front(server)
        self._lives = Lives(front, room, SUBJECTS, ledger)
        self._clients = Clients(front, SUBJECTS, ledger, dose.think_s)
        self._kills = Kills(dose.starts_max)
        chance = random.Random(dose.seed)
        self._faults = Faults(
            Stage(chance, front, room, self._clients, self._lives, self._kills, ledger)
        )

    async def run(self, folder: Path) -> None:
        """Deploy, run the rounds and compare what the server holds after them."""
        async with client(self._server) as caller:
            for subject in SUBJECTS:
                await subject.deploy(caller, folder, IDLE_S)
        prints = []
        for number in (1, 2):
            if self._dose.turns:
                await self._round(f"round {number}", self._dose.steady, self._dose.turns)
                prints.append(await self._at_zero(f"round {number}"))
        await self._round("round with restarts", self._dose.fatal, self._dose.fatal_turns)
        await self._at_zero("round with restarts")
        self._compare(prints)
        missing = {*self._dose.fatal} - self._faults.done.keys()
        self._ledger.require(not missing, f"faults never injected: {sorted(missing)}")
        self._tell()

    async def _round(self, name: str, kinds: tuple[str, ...], turns: int) -> None:
        if self._ledger.violations:
            return
        began_s, right = time.monotonic(), self._clients.answered
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._clients.run(self._dose.at_once, self._dose.requests // 3, ended)
            )
            await self._faults.run(kinds, turns, self._dose.every_s)
            ended.set()
        took_s = time.monotonic() - began_s
        answered = self._clients.answered - right
        self._ledger.figures[name] = f"{answered} right answers in {took_s:.0f} s"

    async def _at_zero(self, name: str) -> tuple[Footprint, int]:
        """Wait until only a standby and the holders are left; return footprint and thread count."""
        assert self._server.process is not None
        pid = self._server.process.pid
        async with client(self._server) as caller:
            if not await footprint.until(lambda: self._is_zero(caller), ZERO_S):
                left = (await caller.admin("GET", "/replicas")).json()["items"]
                self._ledger.violated(f"{name}: not at zero after {ZERO_S:.0f} s: {left}")
            print_ = await footprint.settled(caller, pid, None)
        threads = len(os.listdir(f"/proc/{pid}/task"))
        self._ledger.figures[f"at rest after {name}"] = {**asdict(print_), "threads": threads}
        return print_, threads

    async def _is_zero(self, caller: Caller) -> bool:
        for subject in SUBJECTS:
            await caller.admin("POST", f"/functions/{subject.name}/sleep")
        replicas = (await caller.admin("GET", "/replicas")).json()["items"]
        there = await asyncio.to_thread(self._room.left)
        states = [item["state"] for item in replicas]
        holders = await asyncio.to_thread(self._room.holders)
        return states == ["standby"] and len(there) == 1 + len(holders)

    def _compare(self, prints: list[tuple[Footprint, int]]) -> None:
        """Require that the second round leaves no more resources than the first."""
        if len(prints) < 2:
            return
        (before, threads_before), (after, threads_after) = prints
        kept = [{**one.descriptors, SOCKET: 0} for one in (before, after)]
        self._ledger.require(kept[0] == kept[1], f"descriptors: {kept[0]} became {kept[1]}")
        for what, was, now in (
            (SOCKET, before.descriptors.get(SOCKET, 0), after.descriptors.get(SOCKET, 0)),
            ("threads", threads_before, threads_after),
        ):
            self._ledger.require(now <= was + POOLED, f"{what}: {was} became {now}")
        self._ledger.require(
            (before.tasks, before.processes) == (after.tasks, after.processes),
            f"tasks, processes: {before.counts[1:]} became {after.counts[1:]}",
        )
        growth = after.rss_kib / before.rss_kib - 1
        self._ledger.figures["memory growth of the second round"] = f"{growth:.2%}"
        self._ledger.require(growth <= GROWTH_MAX, f"memory grew by {growth:.2%}")

    def _tell(self) -> None:
        tallies = self._clients.tallies
        waits = sorted(wait for tally in tallies.values() for wait in tally.waits_s) or [0.0]
        statuses = sum((tally.statuses for tally in tallies.values()), Counter[str]())
        self._ledger.figures |= {
            "faults": dict(self._faults.done),
            "states of those struck": dict(self._kills.states),
            "statuses": dict(statuses),
            "cut off with the server, asked again": sum(t.cut for t in tallies.values()),
            "right by function": {s.name: t.right for s, t in tallies.items()},
            "median, p99, longest wait in s": [
                round(statistics.median(waits), 3),
                round(waits[int(len(waits) * 0.99)], 2),
                round(waits[-1], 2),
            ],
            "restarts": self._lives.figures.to_json(),
        }
        for line in complaints(self._server):
            self._ledger.violated(f"the server's log: {line}")


async def run(data: Path, dose: Dose, image: str, given: OwnEngine | None = None) -> Ledger:
    """Run the whole scenario in an empty folder. `image`: tag of the runtime image on the shared
    engine. `given`: an engine with it; by default a new one."""
    ledger = Ledger("containers, their engine and the server", {"dose": asdict(dose)})
    folder = data / "models"
    folder.mkdir(parents=True)
    with engine_with(image, given) as engine:
        room = EngineRoom(engine, data / "data")
        with container_server(data / "data", engine, image, SLOTS) as server:
            try:
                await Containers(dose, server, room, ledger).run(folder)
            except Exception as error:  # noqa: BLE001 - keep the results so far
                ledger.violated(
                    "".join(["the run ended early: ", *traceback.format_exception(error)])
                )
            if server.process is not None:
                await asyncio.to_thread(server.stop)
            ledger.require(not room.left(), f"left on the engine: {room.left()}")
            ledger.require(not leftovers(server), f"left in folders: {leftovers(server)}")
            room.close()
    return ledger
