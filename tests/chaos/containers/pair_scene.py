"""Server functions in containers under load: their containers, the engine and the gateway die."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pool_manager.core.pool import FAILING_AFTER
from pool_manager.image_names import PINNED
from tests.chaos import footprint
from tests.chaos.aftermath import EXPECTED
from tests.chaos.calls import client
from tests.chaos.containers.engine_room import EngineRoom, engine_with
from tests.chaos.containers.exchanges import LIMITS, Exchanges
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.containers.pair_faults import ENGINE_KILLS, FATAL, STEADY, PairFaults, Stage
from tests.chaos.containers.servers import EXCUSED, PING_S, leftovers
from tests.chaos.footprint import pause, until
from tests.chaos.killing import Kills
from tests.chaos.ledger import Ledger
from tests.support.caller import Caller
from tests.support.faulty_image import (
    MANIFEST,
    make_faulty_image,
    make_seen_folder,
    seen_tokens,
)
from tests.support.own_engine import OwnEngine, processes
from tests.support.process_server import ServerProcess, server_process
from tests.support.worker_server import worker_pids

FUNCTIONS = {"first": "auto", "second": "always", "third": "never"}
"""Names of the functions, and their `retry`."""
SLOTS = 6
WORKERS = 2
ZERO_S = 90.0
MORE = (
    """
[server.env]
ROUND = "{round}"

"""
    + LIMITS
    + """max = 1
"""
)
POOLED = 18
"""Max connections that docker-py's pool may keep."""
SOCKET = "socket"
COUNTERS = "/memfd:fngate-counters (deleted)"
DATABASE_MAX = 3
"""Connections to the database: one each to write and to read, opened when they are needed."""
COUNTERS_MAX = 2 * (WORKERS + WORKERS)
"""Counters, of requests and of revisions, of the workers and of those from the start that have
ended: the latter are never collected as garbage, since what exists then is not."""
UNSTARTED = "runc init"


@dataclass(frozen=True)
class Dose:
    """Parameters of a run: two rounds of `turns` in one life of the gateway, whose descriptors are
    compared, then one of `fatal_turns` that also kills the gateway. `think_s`: pause of each client
    after an exchange."""

    seed: int
    clients: int = 24
    turns: int = 3
    fatal_turns: int = 3
    every_s: tuple[float, float] = (0.2, 1.0)
    steady: tuple[str, ...] = STEADY
    fatal: tuple[str, ...] = (*STEADY, *FATAL)
    think_s: float = 0.0


class Pairs:
    """One run of a dose against a running server."""

    def __init__(
        self, dose: Dose, server: ServerProcess, room: EngineRoom, ledger: Ledger, seen: Path
    ) -> None:
        self._dose = dose
        self._server = server
        self._room = room
        self._ledger = ledger
        self._seen = seen
        self._image = ""
        self._rounds = 0
        port = urlsplit(server.url).port
        assert port is not None
        server.port = port  # the next life's
        chance = random.Random(dose.seed)
        fault_times = FaultTimes()
        self.exchanges = Exchanges(port, FUNCTIONS, fault_times, ledger, chance)
        self.exchanges.think_s = dose.think_s
        kills = Kills(FAILING_AFTER - 2)
        self.faults = PairFaults(
            Stage(server, room, self.exchanges, fault_times, kills, ledger, chance, self.deploy)
        )

    async def deploy(self, caller: Caller, name: str) -> None:
        """Deploy the next revision of a function; it must succeed."""
        self._rounds += 1
        more = MORE.format(round=self._rounds, retry=FUNCTIONS[name])
        text = MANIFEST.format(name=name, image=self._image, seen=self._seen, more=more)
        body = {"files": [], "manifest": text, "overrides": {}, "trust": True, "breaking": True}
        answer = await caller.admin("POST", f"/functions/{name}/revisions", body)
        operation: Any = answer.json()
        if answer.status < 300:
            operation = (await caller.ended(operation)).json()
        is_done = operation.get("state") == "done"
        self._ledger.require(is_done, f"a deploy of {name}: {operation}")

    async def run(self, image: str) -> None:
        """Deploy, run the rounds, and check what is left."""
        self._image = image
        async with client(self._server) as caller, asyncio.TaskGroup() as group:
            for name in FUNCTIONS:
                group.create_task(self.deploy(caller, name))
        prints = []
        for number in (1, 2):
            if self._dose.turns:
                await self._round(f"round {number}", self._dose.steady, self._dose.turns)
                prints.append(await self._at_zero(f"round {number}"))
        await self._round("round with restarts", self._dose.fatal, self._dose.fatal_turns)
        await self._at_zero("round with restarts")
        for before, after in pairwise(prints):
            self._compare(before, after)
        missing = {*self._dose.fatal} - self.faults.done.keys()
        self._ledger.require(not missing, f"faults never injected: {sorted(missing)}")
        seen = {name: seen_tokens(self._seen, name) for name in FUNCTIONS}
        self.exchanges.check_seen(seen)
        await self._remove()
        self._tell()

    async def _round(self, name: str, kinds: tuple[str, ...], turns: int) -> None:
        if self._ledger.violations:
            return
        began_s, right = time.monotonic(), self.exchanges.counts["right"]
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._dose.clients):
                group.create_task(self.exchanges.call_on(ended))
            try:
                await self.faults.run(kinds, turns, self._dose.every_s)
                await pause(self._dose.every_s[1])
            finally:
                ended.set()
        took_s, answered = time.monotonic() - began_s, self.exchanges.counts["right"] - right
        self._ledger.figures[name] = f"{answered} right answers in {took_s:.0f} s"

    async def _at_zero(self, name: str) -> list[dict[str, int]]:
        """Wait until everything sleeps; check the ledger of calls; return the descriptors of the
        gateway's processes."""
        async with client(self._server) as caller:
            if not await until(lambda: self._is_zero(caller), ZERO_S):
                left = (await caller.admin("GET", "/replicas")).json()["items"]
                there = await asyncio.to_thread(self._room.left)
                self._ledger.violated(f"{name}: not at zero: {left} {there}")
            found: dict[str, float] = {}

            async def is_balanced() -> bool:
                found.update(await footprint.metrics(caller))
                accepted, ended = found["fngate_accepted_total"], found["fngate_ended_total"]
                return accepted == ended and not found["fngate_open_requests"]

            if not await until(is_balanced, footprint.SETTLE_S):
                kept = {key: value for key, value in found.items() if "fngate_" in key}
                self._ledger.violated(f"{name}: the ledger does not balance: {kept}")
            self._ledger.figures[f"accepted until {name}"] = found.get("fngate_accepted_total")
        assert self._server.process is not None
        pid = self._server.process.pid
        os.kill(pid, signal.SIGUSR1)  # collect garbage: the counters of workers that have ended
        await pause(footprint.LOOK_S)
        prints = [footprint.descriptors(one) for one in (pid, *worker_pids(pid))]
        self._ledger.figures[f"descriptors after {name}"] = [sum(one.values()) for one in prints]
        return prints

    async def _is_zero(self, caller: Caller) -> bool:
        for name in FUNCTIONS:
            await caller.admin("POST", f"/functions/{name}/sleep")
        replicas = (await caller.admin("GET", "/replicas")).json()["items"]
        there = await asyncio.to_thread(self._room.left)
        holders = await asyncio.to_thread(self._room.holders)
        return not replicas and len(there) == len(holders)

    def _compare(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> None:
        """Require that a round leaves no more descriptors than the one before."""
        database = str(self._server.data / "fngate.db")
        loose = {SOCKET: 0, COUNTERS: 0, database: 0}
        for was, now in zip(before, after, strict=True):
            is_same = {**was, **loose} == {**now, **loose}
            is_same &= now.get(SOCKET, 0) <= was.get(SOCKET, 0) + POOLED
            is_same &= now.get(COUNTERS, 0) <= COUNTERS_MAX and now.get(database, 0) <= DATABASE_MAX
            self._ledger.require(is_same, f"descriptors: {was} became {now}")

    async def _remove(self) -> None:
        """Remove the functions: their tags on the engine go with them."""
        async with client(self._server) as caller:
            for name in FUNCTIONS:
                answer = await caller.admin("DELETE", f"/functions/{name}")
                self._ledger.require(answer.status < 300, f"{name}: {answer.body!r}")

            async def is_unpinned() -> bool:
                images = await asyncio.to_thread(self._room.client.images)
                tags = [tag for one in images for tag in one["RepoTags"] or ()]
                return not any(tag.startswith(PINNED) for tag in tags)

            if not await until(is_unpinned, footprint.SETTLE_S):
                self._ledger.violated(f"tags are left: {self._room.client.images()}")

    def _tell(self) -> None:
        waits = sorted(self.exchanges.waits_s) or [0.0]
        self._ledger.figures |= {
            "exchanges": len(self.exchanges.sent),
            "outcomes": dict(self.exchanges.counts),
            "faults": dict(self.faults.done),
            "pairs adopted": self.faults.adopted,
            "median, p99, longest in s": [
                round(statistics.median(waits), 3),
                round(waits[int(len(waits) * 0.99)], 2),
                round(waits[-1], 2),
            ],
        }


def container_processes(engine: OwnEngine) -> set[str]:
    """Return the first processes of an engine's containers that still run, without those that wait
    for a start which a killed engine has forgotten."""
    found = {
        f"{pid}: {_command(child)}"
        for pid, name in processes(engine.root)
        if name.startswith("containerd-shim")
        for child in footprint.children(pid)
    }
    return {one for one in found if not one.endswith(UNSTARTED)}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def check_left(room: EngineRoom, server: ServerProcess, ledger: Ledger) -> None:
    """Require that a stopped server has left nothing on the engine and in its folders."""
    ledger.require(not room.left(), f"containers are left: {room.left()}")
    volumes = room.client.volumes()["Volumes"]
    ledger.require(not volumes, f"volumes are left: {volumes}")
    networks = {one["Name"] for one in room.client.networks()} - {"none", "host", "bridge"}
    ledger.require(not networks, f"networks are left: {networks}")
    ledger.require(not leftovers(server), f"folders are left: {leftovers(server)}")
    excused = (*EXPECTED, *EXCUSED)
    for line in server.complaints:
        if not any(known in line for known in excused):
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")


async def run(data: Path, dose: Dose, image: str, given: OwnEngine | None = None) -> Ledger:
    """Run the whole scenario in an empty folder. `image`: tag of the runtime image on the shared
    engine. `given`: an engine with it; by default a new one."""
    ledger = Ledger("server functions in containers", {"dose": asdict(dose)})
    seen = make_seen_folder(data / "seen")
    with engine_with(image, given) as engine:
        made = await asyncio.to_thread(make_faulty_image, engine.url, image)
        before = container_processes(engine)
        room = EngineRoom(engine, data / "data")
        options = ("--workers", str(WORKERS), "--cpu-slots", str(SLOTS))
        environment = {
            **footprint.PROBE,
            "FN_DRIVER": "docker",
            "FN_DOCKER_HOST": engine.url,
            "FN_IMAGE_CPU": image,
            "FN_PING_S": str(PING_S),
            "FN_STANDBYS": "0",
            "FN_MOUNT_ROOTS": str(seen),
        }
        with server_process(data / "data", *options, environment=environment) as server:
            try:
                await Pairs(dose, server, room, ledger, seen).run(made)
            except Exception as error:  # noqa: BLE001 - keep the results so far
                ledger.violated(
                    "".join(["the run ended early: ", *traceback.format_exception(error)])
                )
            if server.process is not None:
                await asyncio.to_thread(server.stop)
            check_left(room, server, ledger)

            async def are_gone() -> bool:
                return container_processes(engine) <= before

            gone = await until(are_gone, footprint.SETTLE_S)
            left = container_processes(engine) - before
            ledger.figures["processes that a killed engine has forgotten"] = sorted(left)
            # One in the middle of its start when the engine is killed runs on, unknown to it.
            kills = sum(ledger.figures.get("faults", {}).get(kind, 0) for kind in ENGINE_KILLS)
            ledger.require(gone or len(left) <= kills, f"processes are left: {left}")
            room.close()
    return ledger
