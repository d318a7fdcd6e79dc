"""Load on functions of three hosts while everything that can fail between them fails."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from registry.model.hosts import LOCAL_HOST
from tests.chaos import footprint
from tests.chaos.calls import client
from tests.chaos.containers.calling import Front
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.containers.servers import EXCUSED, PING_S, leftovers
from tests.chaos.footprint import until
from tests.chaos.hosts.faults import GATEWAY_FAULTS, HOST_FAULTS, Faults
from tests.chaos.hosts.functions import (
    COUNTED,
    SERVERS,
    SUBJECTS,
    HostClients,
    HostExchanges,
    deploy_server,
    make_notes,
    run_twice,
)
from tests.chaos.hosts.world import Placement, World, open_world
from tests.chaos.ledger import Ledger
from tests.support.faulty_image import make_faulty_image, seen_tokens
from tests.support.fleet.served import is_host_ready, items, join, leave, until_host
from tests.support.process_server import ServerProcess, server_process

WORKERS = 2
SLOTS = 6
IDLE_S = 60.0
ORPHAN_S = 15.0
HOST_LOST_S = 30.0
"""A power cut may be longer: then the host counts as gone."""
BALANCE_S = 90.0
ORPHANED = "the server is gone"
"""Log event of gateway processes whose supervisor was killed."""


@dataclass(frozen=True)
class Dose:
    """Parameters of a run: `requests` in all at least, and all faults `turns` times per host.

    `think_s`: pause of each client after an answer; 0 loads the machine as much as it can bear.
    """

    seed: int
    requests: int = 20_000
    at_once: int = 32
    exchanges: int = 8
    turns: int = 2
    every_s: tuple[float, float] = (0.5, 3.0)
    kinds: tuple[str, ...] = tuple(HOST_FAULTS)
    think_s: float = 0.0


class Hosts:
    """One run of a dose against a running server."""

    def __init__(
        self, dose: Dose, server: ServerProcess, world: World, notes: Path, ledger: Ledger
    ) -> None:
        self._dose = dose
        self._server = server
        self._world = world
        self._notes = notes
        self._ledger = ledger
        port = urlsplit(server.url).port
        assert port is not None
        server.port = port  # the next life's
        chance, fault_times, front = random.Random(dose.seed), FaultTimes(), Front(server)
        self._clients = HostClients(front, SUBJECTS, ledger, dose.think_s)
        self._clients.fault_times = fault_times
        self._exchanges = HostExchanges(port, SERVERS, fault_times, ledger, chance)
        self._exchanges.think_s = dose.think_s
        self._faults = Faults(world, front, fault_times, ledger, chance)
        self._served: Counter[str] = Counter()

    async def run(self, folder: Path, image: str) -> None:
        """Add the hosts, deploy, call under faults, and check what is there and what is left."""
        async with client(self._server) as caller:
            await join(caller, *self._world.hosts, cpu_slots=SLOTS)
            for subject in SUBJECTS:
                await subject.deploy(caller, folder, IDLE_S)
            for name in SERVERS:
                await deploy_server(caller, name, image)
        for name in (COUNTED.name, *SERVERS):
            (self._notes / name).write_text("")  # what the trials have run
        await self._run_load()
        await self._balance()
        twice = run_twice(self._notes)
        self._ledger.require(not twice, f"{COUNTED.name} has run twice: {twice[:20]}")
        self._exchanges.check_seen({name: seen_tokens(self._notes, name) for name in SERVERS})
        kinds = {*self._dose.kinds, *GATEWAY_FAULTS} if self._dose.turns else set()
        missing = kinds - self._faults.done.keys()
        self._ledger.require(not missing, f"faults never injected: {sorted(missing)}")
        self._add_figures()
        await self._remove()

    async def _run_load(self) -> None:
        began_s, ended = time.monotonic(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            calls = group.create_task(
                self._clients.run(self._dose.at_once, self._dose.requests, ended)
            )
            for _ in range(self._dose.exchanges):
                group.create_task(self._exchanges.call_on(ended))
            await self._faults.run(self._dose.turns, self._dose.every_s, self._dose.kinds)
            ended.set()
            await calls
            watch.cancel()
        took_s = time.monotonic() - began_s
        self._ledger.figures["load"] = f"{self._clients.answered} right answers in {took_s:.0f} s"

    async def _watch(self) -> None:
        """Count where ready replicas are, once a second, while the server is up."""
        while True:
            await footprint.pause(1.0)
            async with client(self._server) as caller:
                found = await items(caller, "/replicas")
            self._served.update(one["host"] for one in found if one["state"] == "ready")

    async def _balance(self) -> None:
        """Require that all hosts are up, that the server's replicas are exactly the containers on
        all hosts, and that its counts of calls balance."""
        async with client(self._server) as caller:
            for host in self._world.hosts:
                await until_host(caller, host.name, is_host_ready)
            found: dict[str, Placement] = {}

            async def is_equal() -> bool:
                listed = await items(caller, "/replicas")
                found["shown"] = {(one["host"], one["id"]) for one in listed}
                found["there"] = await asyncio.to_thread(self._world.replicas)
                return found["shown"] == found["there"]

            if not await until(is_equal, BALANCE_S):
                self._ledger.violated(f"replicas: {found['shown']} shown, {found['there']} there")
            counts: dict[str, float] = {}

            async def is_balanced() -> bool:
                counts.update(await footprint.metrics(caller))
                accepted, ended = counts["fngate_accepted_total"], counts["fngate_ended_total"]
                return accepted == ended and not counts["fngate_open_requests"]

            is_even = await until(is_balanced, footprint.SETTLE_S)
            self._ledger.require(is_even, "the ledger of calls does not balance")
        without = {LOCAL_HOST, *(one.name for one in self._world.hosts)} - self._served.keys()
        # In a small dose one host may be away whenever replicas are placed.
        is_used = len(without) <= 1
        self._ledger.require(is_used, f"hosts that never had a replica: {without}")

    async def _remove(self) -> None:
        """Remove functions and hosts: nothing may be left of them but cached files."""
        async with client(self._server) as caller:
            for name in (*(one.name for one in SUBJECTS), *SERVERS):
                answer = await caller.admin("DELETE", f"/functions/{name}")
                self._ledger.require(answer.status < 300, f"{name}: {answer.body!r}")
            await leave(caller, *self._world.hosts)

    def _add_figures(self) -> None:
        tallies = self._clients.tallies
        waits = sorted(wait for tally in tallies.values() for wait in tally.waits_s) or [0.0]
        healed = self._faults.healed_s
        self._ledger.figures |= {
            "faults": dict(self._faults.done),
            "statuses": {one.name: dict(tally.statuses) for one, tally in tallies.items()},
            "cut off with the gateway": sum(tally.cut for tally in tallies.values()),
            "exchanges": dict(self._exchanges.counts),
            "seconds with ready replicas by host": dict(self._served),
            "replicas adopted": self._faults.adopted,
            "s until up again: median, longest": {
                kind: [round(statistics.median(s), 1), round(max(s), 1)]
                for kind, s in healed.items()
            },
            "median, p99, longest in s": [
                round(statistics.median(waits), 3),
                round(waits[int(len(waits) * 0.99)], 2),
                round(waits[-1], 2),
            ],
        }


async def run(data: Path, dose: Dose, image: str) -> Ledger:
    """Run the whole scenario in an empty folder. `image`: tag of the runtime image on the shared
    engine."""
    ledger = Ledger("three hosts", {"dose": asdict(dose)})
    folder = data / "models"
    folder.mkdir(parents=True)
    notes = make_notes(data / "seen")
    with open_world(data, notes, image) as world:
        made = await asyncio.to_thread(make_faulty_image, world.local.url, image)
        options = ("--workers", str(WORKERS), "--cpu-slots", str(SLOTS))
        environment = {
            **footprint.PROBE,
            "FN_DRIVER": "docker",
            "FN_DOCKER_HOST": world.local.url,
            "FN_IMAGE_CPU": image,
            "FN_PING_S": str(PING_S),
            "FN_ORPHAN_S": str(ORPHAN_S),
            "FN_HOST_LOST_S": str(HOST_LOST_S),
        }
        with server_process(data / "data", *options, environment=environment) as server:
            try:
                await Hosts(dose, server, world, notes, ledger).run(folder, made)
            except Exception as error:  # noqa: BLE001 - keep the results so far
                ledger.violated(
                    "".join(["the run ended early: ", *traceback.format_exception(error)])
                )
            if server.process is not None:
                await asyncio.to_thread(server.stop)
            ledger.require(not world.left(), f"left on hosts: {world.left()}")
            ledger.require(not leftovers(server), f"left in folders: {leftovers(server)}")
            for line in server.complaints:
                if not any(known in line for known in (*EXCUSED, ORPHANED)):
                    ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
    return ledger
