"""Load on the Pods of a cluster, while they, their nodes, the API server and the server fail."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.calls import client
from tests.chaos.footprint import metrics, pause, until
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.caller import Answer, Caller
from tests.support.dial_in.places import free_port
from tests.support.kubernetes.double import IMAGE, Double, NodePlan
from tests.support.kubernetes.store import PODS, Change, Json
from tests.support.process_server import ServerProcess, server_process

NAME: Final = "cluster"
SLOTS: Final = 6
"""CPU slots of a node."""
WHERE: Final = '[device]\nhost = { where = "cluster" }\n'
MODEL: Final = 'schema = 1\nmodel = "affine.onnx"\n' + WHERE
HANDLER: Final = f"""schema = 1
[runtime]
engine = "python"
{WHERE}
[input.x]
dtype = "FP32"
shape = [-1, 4]
"""
SLOW: Final = """
import time

def predict(inputs, ctx):
    time.sleep(0.05)
    return {"y": inputs["x"] * 2}
"""
COLD: Final = """
def predict(inputs, ctx):
    return {{"y": inputs["x"] * 5 + {number}}}
"""
READY_S: Final = 90.0
"""Max seconds until all replicas are ready again after the last fault."""
AFTER_S: Final = 4.0
"""Seconds after a fault that ends connections in which calls may fail by it."""
TIMEOUT_S: Final = 120.0
"""Of a call."""
CUT_OFF: Final = {"replica_died", "upstream_failed", "replica_unreachable", "shutting_down"}
"""Problem codes of calls whose connection was killed."""
EXPECTED: Final = ("the engine does not answer", "a replica cannot be released")
"""Errors of the log that faults of the API server, of nodes and force deletes have to cause."""
SAMPLE_S: Final = 0.1
"""Seconds between two looks at who uses which device."""


@dataclass(frozen=True)
class Dose:
    """How much is done."""

    seed: int
    calls: int = 20_000
    faults: int = 300
    nodes: int = 3
    clients: int = 10
    cold: int = 3
    """Functions without a replica at first."""
    orphan_s: float = 20.0
    """Lease of a replica without its server."""
    calm_s: float = 0.5
    """Between two faults."""


@dataclass
class Scene:
    """A cluster, a server in it, and what was seen."""

    double: Double
    server: ServerProcess
    folder: Path
    dose: Dose
    ledger: Ledger
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    phase: str = "calm"
    excuse: str = ""
    """The last fault that ended connections."""
    excused_s: float = 0.0
    """Until when it excuses calls."""
    names: dict[str, str] = field(default_factory=dict)
    """The names of all Pods there have been, by uid."""
    bound: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The devices that the server has said of each replica."""
    left: set[str] = field(default_factory=set)
    """Ids in Pods of which the server does not know."""

    # Calls

    async def deploy(self, caller: Caller) -> None:
        """Add the cluster as a host, and deploy every function by a trial there."""
        body = {"kind": "kubernetes", "name": NAME, "image": IMAGE, "cpu_slots": SLOTS}
        answer = await caller.admin("POST", "/hosts", body | {"labels": {"where": "cluster"}})
        assert answer.status == 201, answer.body

        async def are_up() -> bool:
            found: list[Json] = (await caller.admin("GET", "/hosts")).json()["items"]
            return len([one for one in found if one["state"] == "up"]) > self.dose.nodes

        assert await until(are_up, 30.0), "the nodes are no hosts"
        rows = models.affine(self.folder, 3, 1)
        await caller.deploy(rows, name="rows", manifest=MODEL, min=3, max=6)
        files = {"handler.py": SLOW.encode()}
        await caller.deploy(files, name="slow", manifest=HANDLER, min=2, max=5)
        for number in range(self.dose.cold):
            files = {"handler.py": COLD.format(number=number).encode()}
            name = f"cold{number}"
            await caller.deploy(files, name=name, manifest=HANDLER, max=1, idle_s=1.0)

    async def call_on(self, index: int) -> None:
        """Call functions in turn until the end."""
        kinds = [("rows", 3, 1), ("slow", 2, 0)]
        for turn in itertools.count(index):
            if self.over.is_set():
                return
            await self._one(*kinds[turn % len(kinds)])
            await pause(0.1)

    async def cold_on(self) -> None:
        """Call the functions without replicas one after the other, each cold again."""
        for turn in itertools.count():
            if self.over.is_set():
                return
            number = turn % self.dose.cold
            began = time.monotonic()
            await self._one(f"cold{number}", 5, number)
            self.cold_s.append(time.monotonic() - began)
            await pause(0.5)

    async def _one(self, name: str, scale: int, offset: int) -> None:
        await self.is_up.wait()
        self.calls += 1
        number, began = self.calls % 10_000, time.monotonic()
        code, said = "", ""
        try:
            async with asyncio.timeout(TIMEOUT_S), client(self.server) as caller:
                answer = await caller.call(name, {"inputs": {"x": [[number, 0, 0, 0]]}})
            if answer.status == 200:
                got = answer.json()["outputs"]["y"][0][0]
                if got != scale * number + offset:
                    self.ledger.violated(f"{name} #{number}: wrong answer {got}")
            else:
                code, said = _code(answer), answer.body.decode()[:500]
        except (aiohttp.ClientError, ConnectionError) as error:
            code, said = "connection", repr(error)
        except TimeoutError:
            code, said = "time", "not answered in time"
        self.waits_s.append(time.monotonic() - began)
        if not code:
            self.counts["right answers"] += 1
            return
        is_cut = code in CUT_OFF or (code == "connection" and self.excuse == "server killed")
        if is_cut and began < self.excused_s:
            self.counts[f"cut off by: {self.excuse}"] += 1
        else:
            self.ledger.violated(f"in {self.phase}: {name} #{number}: {code} {said}")

    # Faults

    async def faults(self) -> None:
        """Inject faults of all kinds in a random order."""
        kinds: dict[str, tuple[Callable[[], Awaitable[None]], bool]] = {
            "process killed": (self._kill, True),
            "Pod deleted": (partial(self._delete, None), True),
            "Pod deleted by force": (partial(self._delete, 0), True),
            "Pod preempted": (self._preempt, True),
            "node cut off": (self._cut, False),
            "kubelet killed": (self._kill_kubelet, False),
            "API server away": (self._away, False),
            "API server slow or busy": (self._busy, False),
            "watches expired, stalled or broken": (self._disturb_watches, False),
            "server killed": (self._restart, True),
        }
        order = [*kinds] * (self.dose.faults // len(kinds))
        self.chance.shuffle(order)
        for name in order:
            inject, ends_connections = kinds[name]
            self.phase = name
            if ends_connections:
                self.excuse, self.excused_s = name, float("inf")
            await inject()
            self.counts[f"faults: {name}"] += 1
            if ends_connections:
                self.excused_s = time.monotonic() + AFTER_S
            await pause(self.chance.uniform(0.0, 2 * self.dose.calm_s))
        self.phase = "the end"

    async def _victim(self) -> Json | None:
        """Return the Pod of a replica that is ready."""
        async with client(self.server) as caller:
            ready = {one["id"] for one in await self._replicas(caller) if one["state"] == "ready"}
        found = [one for one in self.double.pods() if _id(one["metadata"]["name"]) in ready]
        return self.chance.choice(found) if found else None

    async def _kill(self) -> None:
        if pod := await self._victim():
            with suppress(AssertionError, KeyError):  # it has ended meanwhile
                self.double.kill(pod)

    async def _delete(self, grace_s: int | None) -> None:
        if pod := await self._victim():
            self.double.delete(pod, grace_s)

    async def _preempt(self) -> None:
        name = f"tenant{self.counts['faults: Pod preempted']}"
        pod = self.double.tenant(name, self._node(), {"cpu": "2"}, "tenant-high")
        await pause(self.chance.uniform(0.5, 2.0))
        self.double.delete(pod, 0)

    async def _cut(self) -> None:
        node = self._node()
        await self.double.cut(node)
        await pause(self.chance.uniform(0.5, 4.0))
        await self.double.heal(node)

    async def _kill_kubelet(self) -> None:
        node = self._node()
        await self.double.kill_kubelet(node)
        await pause(self.chance.uniform(0.5, 4.0))
        await self.double.restart_kubelet(node)

    async def _away(self) -> None:
        await self.double.refuse_for(self.chance.uniform(0.2, 4.0))

    async def _busy(self) -> None:
        faults = self.double.faults
        verb = self.chance.choice(["", "create", "delete", "get", "list", "watch"])
        match self.chance.randrange(4):
            case 0:
                faults.delay(self.chance.uniform(0.1, 2.0), verb=verb, times=5)
            case 1:
                faults.refuse(429, "TooManyRequests", verb=verb, times=3, retry_after_s=1)
            case 2:
                faults.refuse(500, "InternalError", verb=verb, times=3)
            case _:
                faults.refuse(500, "Timeout", verb=verb, times=2, is_after=True)
        await pause(self.chance.uniform(0.0, 1.0))
        faults.pending.clear()

    async def _disturb_watches(self) -> None:
        match self.chance.randrange(3):
            case 0:
                self.double.api.expire()
            case 1:
                self.double.api.break_watches()
            case _:
                self.double.faults.stall()
                await pause(self.chance.uniform(0.5, 3.0))
                self.double.faults.move()

    async def _restart(self) -> None:
        self.is_up.clear()
        await asyncio.to_thread(self.server.kill)
        await pause(self.chance.uniform(0.0, 1.0))
        await asyncio.to_thread(self.server.start)
        self.is_up.set()

    def _node(self) -> str:
        return self.chance.choice(sorted(self.double.kubelets))

    # What has to hold

    async def _items(self, caller: Caller, *kinds: str) -> list[list[Json]]:
        """Return the lists of the admin API; empty ones if the server is not there."""
        try:
            answers = [await caller.admin("GET", f"/{kind}") for kind in kinds]
            return [one.json()["items"] for one in answers]
        except (aiohttp.ClientError, ConnectionError, ValueError, KeyError):
            return [[] for _ in kinds]

    async def _replicas(self, caller: Caller) -> list[Json]:
        (listed,) = await self._items(caller, "replicas")
        return listed

    def noted(self, change: Change) -> None:
        """Note the name of each Pod."""
        if change.resource == PODS:
            metadata = change.object["metadata"]
            self.names[metadata["uid"]] = metadata["name"]

    def running(self) -> set[str]:
        """Return the ids of the replicas of which a container runs, whatever the API says."""
        found = set()
        for kubelet in self.double.kubelets.values():
            for uid, sandbox in kubelet.runtime.sandboxes.items():
                if any(one.is_running for one in sandbox.containers.values()):
                    found.add(_id(self.names.get(uid, "")))
        return found

    async def watch_devices(self) -> None:
        """Compare what runs with the devices that the server has given: none has two users."""
        while not self.over.is_set():
            await self.is_up.wait()
            running = self.running()
            states: dict[str, str] = {}
            async with client(self.server) as caller:
                listed, devices = await self._items(caller, "replicas", "devices")
            for one in listed:
                states[one["id"]] = f"{one['state']} {one['role']}"
                # A standby has none, nor has a replica that waits for a CPU slot. The record of an
                # adopted one names the slot of its start, which another may have had since.
                there = [device["id"] for device in devices if one["id"] in device["replicas"]]
                is_found = one["adopted"] and one["state"] == "starting"
                self.bound[one["id"]] = () if is_found else tuple(there)
            running &= self.running()  # all the time between
            users: dict[str, list[str]] = {}
            for id in running:
                for device in self.bound.get(id, ()):
                    users.setdefault(device, []).append(id)
            self.counts["samples of devices"] += 1
            for device, ids in users.items():
                if len(ids) > 1:
                    shown = {id: states.get(id, "not listed") for id in sorted(ids)}
                    self.ledger.violated(f"in {self.phase}: {device} has {shown}")
            await pause(SAMPLE_S)

    async def ready(self) -> None:
        """Wait until as many replicas are ready as the functions want at least, and no Pod is left
        that is none of theirs."""
        found: list[dict[str, Any]] = []

        async def are_ready() -> bool:
            async with client(self.server) as caller:
                found[:] = await self._replicas(caller)
            ready = Counter(one["function"] for one in found if one["state"] == "ready")
            return ready["rows"] >= 3 and ready["slow"] >= 2

        began = time.monotonic()
        is_ready = await until(are_ready, READY_S, 0.5)
        shown = Counter((one["function"], one["state"]) for one in found)
        self.ledger.require(is_ready, f"at the end are ready: {dict(shown)}")
        self.ledger.figures["s until ready after the last fault"] = round(
            time.monotonic() - began, 1
        )

        async def are_known() -> bool:
            async with client(self.server) as caller:
                known = {one["id"] for one in await self._replicas(caller)}
            self.left = {_id(one["metadata"]["name"]) for one in self.double.pods()} - known
            return not self.left

        are_all = await until(are_known, READY_S, 0.5)
        self.ledger.require(are_all, f"orphan Pods: {sorted(self.left)}")

    async def check(self) -> None:
        """Check that the ledger of calls balances, and that a removal leaves nothing."""
        async with client(self.server) as caller:

            async def is_balanced() -> bool:
                now = await metrics(caller)
                return now["fngate_accepted_total"] == now["fngate_ended_total"]

            self.ledger.require(await until(is_balanced, 20.0), "calls are not balanced")
            for name in ("rows", "slow", *(f"cold{number}" for number in range(self.dose.cold))):
                answer = await caller.admin("DELETE", f"/functions/{name}")
                self.ledger.require(answer.status < 300, f"{name}: {answer.body!r}")

            async def are_gone() -> bool:
                listed = await self._replicas(caller)
                return all(one["role"] == "standby" for one in listed)

            self.ledger.require(await until(are_gone, READY_S), "replicas of removed functions")
            answer = await caller.admin("DELETE", f"/hosts/{NAME}")
            self.ledger.require(answer.status < 300, f"{NAME}: {answer.body!r}")

            async def is_empty() -> bool:
                return not self.double.pods() and not self.running()

            is_clean = await until(is_empty, READY_S)
            pods = [one["metadata"]["name"] for one in self.double.pods()]
            left = f"Pods {pods}, running {sorted(self.running())}"
            self.ledger.require(is_clean, f"left by the removal of the cluster: {left}")


async def run(data: Path, dose: Dose) -> Ledger:
    """Run the scenario in an empty folder. Needs root, for network namespaces."""
    ledger = Ledger("Pods of a cluster", {"dose": asdict(dose)})
    folder = data / "models"
    folder.mkdir(parents=True)
    plans = [NodePlan(f"n{number}") for number in range(1, dose.nodes + 1)]
    async with Double(plans) as double:
        environment = {
            **double.environment,
            "FN_LINK_LISTEN": f"{double.address}:{free_port()}",
            "FN_PING_S": str(min(5.0, dose.orphan_s / 6)),
            "FN_ORPHAN_S": str(dose.orphan_s),
            "FN_STANDBYS": "1",
        }
        manager = server_process(data / "data", environment=environment)
        server = await asyncio.to_thread(manager.__enter__)
        try:
            server.port = urlsplit(server.url).port or 0  # the next life's
            scene = Scene(double, server, folder, dose, ledger, random.Random(dose.seed))
            double.store.watch(scene.noted)
            began = time.monotonic()
            try:
                await _play(scene)
            except Exception as error:  # noqa: BLE001 - keep the results so far
                text = "".join(traceback.format_exception(error))
                ledger.violated(f"the run ended early: {text}")
            ledger.figures["s"] = round(time.monotonic() - began)
            for line in server.complaints:
                if not any(event in line for event in EXPECTED):
                    ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
        ledger.figures |= {"calls": scene.calls} | dict(scene.counts)
        asked = double.api.counts.items()
        shown = {f"{verb} {plural}": count for (verb, plural), count in asked}
        ledger.figures["requests to the API server"] = shown
        ledger.figures["s of calls: median, p99, longest"] = _quantiles(scene.waits_s)
        ledger.figures["s of calls that were cold: the same"] = _quantiles(scene.cold_s)
    return ledger


async def _play(scene: Scene) -> None:
    async with client(scene.server) as caller:
        await scene.deploy(caller)
    scene.is_up.set()
    async with asyncio.TaskGroup() as group:
        for index in range(scene.dose.clients):
            group.create_task(scene.call_on(index))
        group.create_task(scene.cold_on())
        group.create_task(scene.watch_devices())
        await scene.faults()
        while scene.calls < scene.dose.calls:
            await pause(1.0)
        await scene.ready()
        scene.over.set()
    await scene.check()


def _id(name: str) -> str:
    """Return the id of the replica in a Pod."""
    return name.rpartition("-")[2]


def _code(answer: Answer) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return str(answer.status)


def _quantiles(seconds: list[float]) -> list[float]:
    ordered = sorted(seconds) or [0.0]
    last = len(ordered) - 1
    return [round(ordered[int(last * share)], 3) for share in (0.5, 0.99, 1.0)]
