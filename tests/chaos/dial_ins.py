"""Load on replicas that dial in by TLS, from networks of their own, while they, their server and
the paths between them die."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.calls import client
from tests.chaos.footprint import metrics, pause, until
from tests.chaos.ledger import Ledger
from tests.support import faulty_server, models
from tests.support.caller import Caller
from tests.support.dial_in.places import Network, Place, free_port, networks
from tests.support.process_server import ServerProcess, server_process

PROGRAM = (sys.executable, "-m", "tests.support.dial_in")
HOSTS = 3
ROWS, COUNTED, WEB = "rows", "counted", "web"
WHERE = '[device]\nhost = { kind = "dial-in" }\n'
MODEL = 'schema = 1\nmodel = "affine.onnx"\n' + WHERE
HANDLER = (
    'schema = 1\n[runtime]\nengine = "python"\n'
    + WHERE
    + """
[input.x]
dtype = "FP32"
shape = [-1, 4]
"""
)
PREDICT = """
import os

def predict(inputs, ctx):
    notes = os.open({notes!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(notes, b"%d\\n" % int(inputs["x"][0][0]))
    os.close(notes)
    return {{"y": inputs["x"] * 2}}
"""
"""Notes the number of each call that it runs."""
ON_ONE = HANDLER.replace('kind = "dial-in"', 'host = "node2"')
HELD_MIB = 300
HOLDS = f"""
HELD = b"x" * ({HELD_MIB} << 20)

def predict(inputs, ctx):
    return {{{{"y": inputs["x"] * 5 + {{number}}}}}}
"""
EVENTS, EVENT_MS = 40, 50
READY_S = 120.0
HEAL_S = 60.0
"""Max seconds until all replicas are ready again after a fault."""
AFTER_S = 5.0
"""Seconds after a fault in which calls may still fail by it."""
TIMEOUT_S = 200.0
CUT_OFF = {"replica_died", "upstream_failed", "replica_unreachable", "shutting_down"}
"""Problem codes of calls whose connection was killed."""


@dataclass(frozen=True)
class Dose:
    """How much is done. `replicas` are ready at once. `lost_s` is the lease of a replica without
    its server; `long_cut_s` is longer."""

    seed: int
    replicas: int = 20
    clients: int = 12
    kills: int = 12
    restarts: int = 3
    short_cut_s: float = 5.0
    long_cut_s: float = 120.0
    orphan_s: float = 60.0
    host_lost_s: float = 90.0
    calm_s: float = 5.0
    memory_mib: float = 2048.0
    """Of each host: too little for one replica of each function that takes HELD_MIB, all of which
    are on one host; so they evict each other."""
    evicts: bool = True
    """Whether that has to happen."""
    cold: int = 6
    """Functions without a replica at first."""

    @property
    def cold_names(self) -> list[str]:
        """Return the names of these functions."""
        return [f"cold{number}" for number in range(self.cold)]


@dataclass
class Scene:
    """A server, the networks of its hosts, and what was seen."""

    server: ServerProcess
    nets: list[Network]
    folder: Path
    dose: Dose
    ledger: Ledger
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    excused: str = ""
    """The fault by which calls may fail at present, "" for none."""
    phase: str = "calm"
    """What is done at present, or was done last."""
    excused_s: float = 0.0
    """Until when the last one excuses them."""

    # Deploying

    async def deploy(self, caller: Caller) -> None:
        """Deploy every function by a trial on a host that dials in."""
        share = self.dose.replicas // 4
        rows = models.affine(self.folder, 3, 1)
        more: dict[str, Any] = {"min": self.dose.replicas - 3 * share, "max": 12, "idle_s": 600.0}
        await caller.deploy(rows, name=ROWS, manifest=MODEL, **more)
        for number, name in enumerate(self.dose.cold_names):
            files = {"handler.py": HOLDS.format(number=number).encode()}
            await caller.deploy(files, name=name, manifest=ON_ONE, max=1, idle_s=60.0)
        files = {"handler.py": PREDICT.format(notes=str(self.notes)).encode()}
        more |= {"min": share}
        await caller.deploy(files, name=COUNTED, manifest=HANDLER, **more)
        bundle = faulty_server.bundle(
            self.folder, WEB, mark=str(self.server.data), life="stop_grace_s = 1", more=WHERE
        )
        more |= {"min": 2 * share}
        await caller.deploy(bundle, name=WEB, **more)
        self.notes.write_text("")  # what the trial has run

    @property
    def notes(self) -> Path:
        """The file of the handler's runs."""
        return self.folder / "notes"

    # Calls

    async def call_on(self, index: int) -> None:
        """Call functions in turn until the end."""
        kinds = (self._rows, self._counted, self._show, self._stream)
        for turn in itertools.count(index):
            if self.over.is_set():
                return
            await self.is_up.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S), client(self.server) as caller:
                    await self._one(kinds[turn % len(kinds)], caller)
                    continue
            self.ledger.violated("a call was not answered in time")

    async def cold_on(self) -> None:
        """Call the functions without replicas one after the other, so that they evict each other,
        and put each fifth one to sleep."""
        for turn in itertools.count():
            if self.over.is_set():
                return
            await self.is_up.wait()
            began = time.monotonic()
            number = turn % self.dose.cold
            name = self.dose.cold_names[number]
            call = partial(self._affine, name=name, scale=5, offset=number)
            async with client(self.server) as caller:
                await self._one(call, caller)
                self.cold_s.append(time.monotonic() - began)
                if turn % 5 == 0:
                    with suppress(aiohttp.ClientError, OSError):
                        await caller.admin("POST", f"/functions/{name}/sleep")
            await pause(0.2)

    async def _one(self, call: Any, caller: Caller) -> None:
        fault, began = self.excused, time.monotonic()
        try:
            complaint = await call(caller)
        except (aiohttp.ClientError, OSError) as error:
            complaint = repr(error)
        self.waits_s.append(time.monotonic() - began)
        fault = fault or self.excused
        if not complaint:
            self.counts["right answers"] += 1
        elif fault or time.monotonic() < self.excused_s:
            self.counts[f"cut off by {fault or 'the last fault'}"] += 1
        else:
            self.ledger.violated(f"in {self.phase}: {complaint}")

    async def _rows(self, caller: Caller) -> str:
        return await self._affine(caller, ROWS, 3, 1)

    async def _affine(self, caller: Caller, name: str, scale: int, offset: int) -> str:
        number = next(self.numbers) % 10_000
        answer = await caller.call(name, {"inputs": {"x": [[number, 0, 0, 0]]}})
        if answer.status != 200:
            return f"{name} #{number}: {answer.status} {answer.body.decode()[:500]}"
        got = answer.json()["outputs"]["y"][0][0]
        if got != scale * number + offset:
            self.ledger.violated(f"{name} #{number}: wrong answer {got}")
        return ""

    async def _counted(self, caller: Caller) -> str:
        number = next(self.numbers)
        answer = await caller.call(COUNTED, {"inputs": {"x": [[number, 0, 0, 0]]}})
        if answer.status != 200:
            return f"{COUNTED} #{number}: {answer.status} {answer.body.decode()[:500]}"
        if answer.json()["outputs"]["y"][0][0] != 2 * number:
            self.ledger.violated(f"{COUNTED} #{number}: wrong answer {answer.body!r}")
        return ""

    async def _show(self, caller: Caller) -> str:
        token = f"t{next(self.numbers)}"
        answer = await caller.request("POST", f"/fn/{WEB}/show", b"x" * 1000, {"Token": token})
        if answer.status != 200:
            return f"{WEB} {token}: {answer.status} {answer.body.decode()[:500]}"
        if ["token", token] not in answer.json()["fields"]:
            self.ledger.violated(f"{WEB} {token}: wrong answer {answer.body[:500]!r}")
        return ""

    async def _stream(self, caller: Caller) -> str:
        answer = await caller.get(f"/fn/{WEB}/sse?n={EVENTS}&ms={EVENT_MS}")
        found = answer.body.count(b"data: ")
        if answer.status != 200 or found != EVENTS + 1:
            return f"a stream: {answer.status} with {found} events {answer.body[:300]!r}"
        self.counts["whole streams"] += 1
        return ""

    # Faults

    async def faults(self) -> None:
        """Inject each fault in turn; after each, all replicas are ready again."""
        await self._ready("the start")
        for number in range(self.dose.kills):
            await self._fault("kill of a replica", self._kill_replica)
            if number % 3 == 0:
                await self._ready("a kill")
        await self._ready("kills")
        for net in self.nets:
            # Nothing may be lost by it: TCP sends again what was on its way.
            await self._cut(net, self.dose.short_cut_s)
            await pause(self.dose.calm_s)
        for _ in range(self.dose.restarts):
            await self._fault("kill of the server", self._restart)
            await self._ready("a restart")
        await self._fault("a long cut", self._part_long)
        await self._ready("a long cut")

    async def _fault(self, name: str, inject: Any) -> None:
        self.excused = self.phase = name
        try:
            await inject()
            self.counts[f"faults: {name}"] += 1
            await pause(AFTER_S)
        finally:
            self.excused, self.excused_s = "", time.monotonic() + AFTER_S
        await pause(self.dose.calm_s)

    async def _kill_replica(self) -> None:
        [(_, pid), *_] = self.chance.sample(sorted(self.processes().items()), 1)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    async def _cut(self, net: Network, seconds: float) -> None:
        self.phase = f"a cut of {seconds:g} s"
        await asyncio.to_thread(net.link.cut)
        await pause(seconds)
        await asyncio.to_thread(net.link.heal)
        self.counts[f"faults: a cut of {seconds:g} s"] += 1

    async def _part_long(self) -> None:
        """Cut one host off, from its engine as well, for longer than the lease of its replicas:
        they end by themselves, and calls go to others meanwhile."""
        place, net = self.places()[0], self.nets[0]
        there = self.processes(place)
        place.set_away(is_away=True)
        await self._cut(net, self.dose.long_cut_s)
        left = there.keys() & self.processes(place).keys()
        self.ledger.require(not left, f"replicas outlive their lease: {left}")
        place.set_away(is_away=False)
        self.counts["ended by their lease"] += len(there)

    async def _restart(self) -> None:
        """Kill the server; the next one has to adopt every replica."""
        async with client(self.server) as caller:
            await self._note(caller)
            # Functions that evict each other go on to do so after the restart.
            before = {one["id"] for one in _warm(await self._replicas(caller))}
        before &= self.processes().keys()
        self.is_up.clear()
        await asyncio.to_thread(self.server.kill)
        await pause(self.chance.uniform(0.0, 2.0))
        await asyncio.to_thread(self.server.start)
        self.is_up.set()
        found: list[dict[str, Any]] = []

        async def are_adopted() -> bool:
            async with client(self.server) as caller:
                found[:] = await self._replicas(caller)
            return before <= {one["id"] for one in found if one["adopted"]}

        is_whole = await until(are_adopted, HEAL_S)
        self.counts["adopted"] += len(before)
        self.ledger.require(is_whole, f"not adopted: {before - {one['id'] for one in found}}")

    async def _replicas(self, caller: Caller) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await caller.admin("GET", "/replicas")).json()["items"]
        return [one for one in listed if one["state"] == "ready" and one["role"] == "serve"]

    async def _ready(self, after: str) -> None:
        """Wait until as many replicas are ready as the functions want at least."""
        began = time.monotonic()
        found: list[dict[str, Any]] = []

        async def are_ready() -> bool:
            async with client(self.server) as caller:
                found[:] = await self._replicas(caller)
            return len(_warm(found)) >= self.dose.replicas

        if not await until(are_ready, READY_S):
            shown = Counter(one["function"] for one in found)
            self.ledger.violated(f"after {after}: ready are {dict(shown)}")
        self.ledger.figures[f"s until ready after {after}"] = round(time.monotonic() - began, 1)
        hosts = Counter(one["host"] for one in found)
        self.ledger.require("local" not in hosts, f"replicas on {hosts}")

    def places(self) -> list[Place]:
        """Return the places of the hosts."""
        return [Place(**one) for one in json.loads((self.folder / "places.json").read_text())]

    def processes(self, place: Place | None = None) -> dict[str, int]:
        """Return the pids of the replicas by id, of one host or of all."""
        root = place.folder if place is not None else str(self.folder / "hosts")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"runtime_image" in words and words[-2].startswith(os.fsencode(f"{root}/")):
                    found[Path(os.fsdecode(words[-2])).name] = int(entry.name)
        return found

    async def _note(self, caller: Caller) -> None:
        """Add up what this server has counted, before its end."""
        counted = await metrics(caller)
        self.counts["evictions"] += int(counted["fngate_evictions_total"])
        self.counts["cold starts"] += int(counted["fngate_cold_starts_total"])
        views = [await caller.function(name) for name in self.dose.cold_names]
        starts = [one for view in views for one in view["cold_starts"]]  # of all servers
        self.counts["of standbys"] = sum(one["samples"] for one in starts if one["standby"])

    async def check(self) -> None:
        """Check that nothing ran twice, that the ledger of calls balances, that functions were
        evicted and bound to standbys, and that a removal leaves nothing."""
        runs = Counter(self.notes.read_text().split())
        twice = [number for number, count in runs.items() if count > 1]
        self.ledger.require(not twice, f"{COUNTED} ran twice: {twice[:20]}")
        self.counts["runs of the handler"] = len(runs)
        async with client(self.server) as caller:
            await self._note(caller)
            has_evicted = self.counts["evictions"] > 0
            self.ledger.require(has_evicted or not self.dose.evicts, "nothing was evicted")
            self.ledger.require(self.counts["of standbys"] > 0, "no standby was bound")

            async def is_balanced() -> bool:
                now = await metrics(caller)
                return now["fngate_accepted_total"] == now["fngate_ended_total"]

            self.ledger.require(await until(is_balanced, 20.0), "calls are not balanced")
            for name in (ROWS, COUNTED, WEB, *self.dose.cold_names):
                answer = await caller.admin("DELETE", f"/functions/{name}")
                self.ledger.require(answer.status < 300, f"{name}: {answer.body!r}")

            async def are_gone() -> bool:
                listed = (await caller.admin("GET", "/replicas")).json()["items"]
                return all(one["role"] == "standby" for one in listed)

            self.ledger.require(await until(are_gone, HEAL_S), "replicas of removed functions")


async def run(data: Path, dose: Dose) -> Ledger:
    """Run the scenario in an empty folder. Needs root, for network namespaces."""
    ledger = Ledger("replicas that dial in", {"dose": asdict(dose)})
    folder = data / "models"
    folder.mkdir(parents=True)
    (folder / "hosts").mkdir()
    with networks(HOSTS) as nets:
        names = [f"node{number}" for number in range(1, HOSTS + 1)]
        places = [
            net.place(name, folder / "hosts", dose.memory_mib)
            for name, net in zip(names, nets, strict=True)
        ]
        file = folder / "places.json"
        file.write_text(json.dumps([one.to_json() for one in places]))
        environment = {
            "FN_TEST_PLACES": str(file),
            "FN_LINK_LISTEN": f"0.0.0.0:{(port := free_port())}",
            "FN_LINK_ADDRESS": f"{nets[0].here}:{port}",
            "FN_PING_S": str(min(5.0, dose.orphan_s / 6)),
            "FN_ORPHAN_S": str(dose.orphan_s),
            "FN_HOST_LOST_S": str(dose.host_lost_s),
            "FN_STANDBYS": "1",
        }
        with server_process(data / "data", environment=environment, program=PROGRAM) as server:
            server.port = urlsplit(server.url).port or 0  # the next life's
            chance = random.Random(dose.seed)
            scene = Scene(server, nets, folder, dose, ledger, chance)
            try:
                await _play(scene)
            except Exception as error:  # noqa: BLE001 - keep the results so far
                text = "".join(traceback.format_exception(error))
                ledger.violated(f"the run ended early: {text}")
            if server.process is not None:
                await asyncio.to_thread(server.stop)
            ledger.require(not scene.processes(), f"replicas are left: {scene.processes()}")
            for pid in scene.processes().values():
                os.killpg(pid, signal.SIGKILL)
            for line in server.complaints:
                ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
        waits, cold = sorted(scene.waits_s) or [0.0], sorted(scene.cold_s) or [0.0]
        ledger.figures |= dict(scene.counts)
        ledger.figures["s of calls: median, p99, longest"] = _quantiles(waits)
        ledger.figures["s of cold calls: median, p99, longest"] = _quantiles(cold)
    return ledger


async def _play(scene: Scene) -> None:
    async with client(scene.server) as caller:
        await scene.deploy(caller)
    scene.is_up.set()
    async with asyncio.TaskGroup() as group:
        for index in range(scene.dose.clients):
            group.create_task(scene.call_on(index))
        group.create_task(scene.cold_on())
        await scene.faults()
        scene.over.set()
    await scene.check()


def _warm(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the replicas of functions that always have some."""
    return [one for one in replicas if not one["function"].startswith("default/cold")]


def _quantiles(ordered: list[float]) -> list[float]:
    last = len(ordered) - 1
    return [round(ordered[int(last * share)], 3) for share in (0.5, 0.99, 1.0)]
