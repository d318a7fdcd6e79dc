"""Engines that sleep, on one, two and four stand-in GPUs: they are parked and woken under
load while engines, sidecars and the manager are killed in every state of a park, engines are
stopped within a wake, and sleep and wake wrong."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from runtime_image.proc import read_stat
from tests.chaos.aftermath import check_log, require_gone
from tests.chaos.calls import client
from tests.chaos.chat_calls import FORMS, Ask, judge, refusal
from tests.chaos.containers.servers import leftovers
from tests.chaos.footprint import pause, until
from tests.chaos.gpu_scene import SETTLED_S, GpuScene, play, require_sound, session
from tests.chaos.ledger import Ledger
from tests.support.caller import Caller
from tests.support.faulty_server import MARK
from tests.support.process_server import server_process
from tests.support.sleepy_engine.engine import FAULTS
from tests.support.sleepy_engine.memory import CONFLICTS
from tests.support.sleepy_engine.sleepers import Sleepers

WORKERS = 2
GPU_MIB = 12_000
"""Room for one engine that is awake, and for the residues of those that sleep."""
COUNTS = {"four": 4, "two": 2, "pair": 2, "one": 1, "single": 1, "alone": 1}
"""Functions and the GPUs of their replicas: 11 on four GPUs, so that they take turns."""
FEW = {"two": 2, "one": 1, "single": 1}
"""The same, for a small dose: 4 on two GPUs."""
ENGINE = ("--load", "1", "--slow", "0.3", "--answer", "0.05", "--gpu-mib", f"{GPU_MIB}")
"""A start takes longer than a wake, and each state of a park long enough to be found."""
TABLES = """[server.env]
{mark} = "{data}"

[limits]
concurrency = 8
retry = "always"
wait_s = 120

[scaling]
idle_s = 1
"""
THINK_S = (0.5, 8.0)
"""Bounds of a caller's pause: some functions fall asleep by themselves, others for others."""
TOKENS_MAX = 8
WAKING = ("unparking", "verifying")
STATES = ("ready", "parking", "parked", *WAKING)
TARGETS = ("engine", "sidecar", "manager")
STOPS = ("stopped", "stopped for a while")
"""What SIGSTOP does to an engine within a wake: the first one never goes on."""
BROKEN = tuple(sorted(FAULTS.keys() - {"hung", "slow"}))
"""Faults of engines. One that hangs before its sleep is the subject of other tests."""
SEEN_AT_ONCE = ("garbage", "garbage-later", "sleep-dies", "stale-prefix", "wake-dies", "wake-fails")
"""Those that no limit has to end."""
LIFE_S = (0.3, 1.5)
FOUND_S = 4.0
"""Longest search for a replica in a state."""
BROKEN_S = (5.0, 15.0)
"""Seconds for which the engines of a function have a fault, one function after the other."""
STOPPED_S = (0.5, 2.0)
LOOK_S = 0.02
SILENT = ("the NVIDIA driver did not answer for 2 s", "the NVIDIA driver has not answered for 2 s")
"""Parts of the server's log on a machine that has no time for its threads. What it does then, it
must have mended in the end."""
WOKE = '"a parked replica woke"'
WRONG = '"a parked replica did not wake right"'
"""Lines of the server's log."""


@dataclass(frozen=True)
class Dose:
    """How much is done."""

    seed: int
    counts: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    """Functions and the GPUs of their replicas; there are as many as the largest one has."""
    seconds: float = 180.0
    """How long calls and faults go on."""
    answers: int = 5
    """Right answers that each function must have by then, at least."""
    wakes: int = 5
    """Right wakes by then, at least."""
    broken: tuple[str, ...] = BROKEN
    """Faults of engines."""
    each: int = 1
    """Kills of each target in each state by then, at least."""


class Fault(NamedTuple):
    """What is done to what, and in which state."""

    target: str
    state: str


PLAN = (
    *itertools.starmap(Fault, itertools.product(TARGETS, STATES)),
    *(Fault(stop, "unparking") for stop in STOPS),
)
"""All faults of processes; what was done least is done next."""


@dataclass
class Parks(GpuScene):
    """Calls of functions whose engines sleep."""

    sleepers: Sleepers = field(kw_only=True)
    dose: Dose = field(kw_only=True)
    done: Counter[Fault] = field(default_factory=Counter)
    wakes: Counter[str] = field(default_factory=Counter)
    """Lines of the log, by kind."""
    most_mib: int = 0
    """The most that was held of a GPU."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    broken: Counter[str] = field(default_factory=Counter)
    """How often engines got each fault."""

    async def ask(self, session: aiohttp.ClientSession, name: str, token: str) -> bool:
        """Send one call; return whether it is answered. An answer must be the right one."""
        form = FORMS[self.chance.randrange(2)]
        tokens = self.chance.randint(1, TOKENS_MAX)
        ask = Ask(next(self.numbers), name, name, form, False, False, tokens, False)
        async with session.post(f"{self.server.url}{form.path}", data=ask.body) as response:
            body = await response.read()
        self.counts[str(response.status)] += 1
        if response.status != 200:
            retry_after = response.headers.get("Retry-After")
            code, wrong = refusal(ask, response.status, body, retry_after)
            self.counts[f"{response.status} {code}"] += 1
            self.ledger.require(not wrong, f"{token}: {wrong}")
            return False
        found = judge(ask, body)
        is_right = found.kind == "whole" and not found.wrong
        self.ledger.require(is_right, f"{token}: {found.kind}: {found.wrong}")
        return True

    async def kill_on(self, ended: asyncio.Event) -> None:
        """Inject faults, and let engines sleep and wake wrong meanwhile."""
        async with session() as made, client(self.server) as caller, asyncio.TaskGroup() as group:
            group.create_task(self._break_on(ended))
            while not ended.is_set():
                await pause(self.chance.uniform(*LIFE_S))
                tried = {fault: (self.done[fault], self.chance.random()) for fault in PLAN}
                fault = min(tried, key=tried.__getitem__)
                if fault.state in WAKING:
                    await self._provoke(group, made, caller)
                if victim := await self._find(caller, fault.state):
                    await self._hit(group, fault, victim)
                else:
                    self.counts[f"not found: {fault.state}"] += 1
        self._count_wakes()

    async def _provoke(
        self, group: asyncio.TaskGroup, made: aiohttp.ClientSession, caller: Caller
    ) -> None:
        """Call a function that is asleep, if there is one."""
        if parked := await self._listed(caller, "parked"):
            name = self.chance.choice(parked)["function"]
            group.create_task(self.answer(made, name, f"{name} is to wake"))

    async def _listed(self, caller: Caller, state: str) -> list[dict[str, Any]]:
        """Return the replicas in a state that serve."""
        listed = (await caller.admin("GET", "/replicas")).json()["items"]
        return [one for one in listed if (one["state"], one["role"]) == (state, "serve")]

    async def _find(self, caller: Caller, state: str) -> dict[str, Any] | None:
        """Return a replica in a state as soon as there is one, None if there is none for long."""
        found: list[dict[str, Any]] = []

        async def has_some() -> bool:
            found[:] = await self._listed(caller, state)
            return bool(found)

        await until(has_some, FOUND_S, poll_s=LOOK_S)
        return self.chance.choice(found) if found else None

    async def _hit(self, group: asyncio.TaskGroup, fault: Fault, victim: dict[str, Any]) -> None:
        """Kill or stop a process of a replica, or kill the manager."""
        if fault.target == "manager":
            self._count_wakes()
            await self.kill_manager()
            self.done[fault] += 1
            return
        pid = self.server.replica_processes().get(victim["id"])
        if pid is not None and fault.target != "sidecar":
            engines = {one.pid for one in self.sleepers.holdings() if pid in ancestors(one.pid)}
            pid = min(engines, default=None)
        if pid is None:
            return
        number = signal.SIGSTOP if fault.target in STOPS else signal.SIGKILL
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            self.done[fault] += 1
        if fault.target == STOPS[1]:
            group.create_task(self._go_on(pid))

    async def _go_on(self, pid: int) -> None:
        await pause(self.chance.uniform(*STOPPED_S))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _break_on(self, ended: asyncio.Event) -> None:
        """Let the engines of one function after the other sleep or wake wrong for a while."""
        kinds = itertools.cycle(self.chance.sample(self.dose.broken, len(self.dose.broken)))
        while not ended.is_set():
            name, kind = self.chance.choice(self.names), next(kinds)
            self.sleepers.break_down(name, kind)
            self.broken[kind] += 1
            await pause(self.chance.uniform(*BROKEN_S))
            self.sleepers.break_down(name, "")

    def _count_wakes(self) -> None:
        """Count the wakes that the server has logged since the last count."""
        lines = [self.server.log.popleft() for _ in range(len(self.server.log))]
        for line in lines:
            self.wakes["right"] += WOKE in line
            self.wakes["wrong"] += WRONG in line

    async def watch_memory(self, ended: asyncio.Event) -> None:
        """Compare what the engines hold with the size of their GPUs."""
        while not ended.is_set():
            used: Counter[str] = Counter()
            for one in self.sleepers.holdings():
                used[one.uuid] += one.mib
            most = max(used.values(), default=0)
            self.most_mib = max(self.most_mib, most)
            self.ledger.require(most <= GPU_MIB, f"{most} MiB of {GPU_MIB} are held: {used}")
            await pause(LOOK_S)

    async def require_known(self) -> None:
        """Require that each process and each folder of a replica is one that the server lists."""
        async with client(self.server) as caller:
            strange: set[str] = set()

            async def is_known() -> bool:
                listed = (await caller.admin("GET", "/replicas")).json()["items"]
                left = [Path(path) for path in leftovers(self.server)]
                folders = {path.name for path in left if path.is_dir()}
                strange.clear()
                strange.update(folders | self.server.replica_processes().keys())
                strange.difference_update(one["id"] for one in listed)
                return not strange

            if not await until(is_known, SETTLED_S):
                self.ledger.violated(f"replicas that the server does not know: {strange}")


def ancestors(pid: int) -> list[int]:
    """Return a process and those above it, as far as they live."""
    found = []
    while pid > 1:
        found.append(pid)
        stat = read_stat(f"/proc/{pid}")
        pid = stat.parent if stat is not None else 0
    return found


async def run(data: Path, dose: Dose) -> Ledger:
    """Each call is answered right, if need be after documented refusals, and none by an engine that
    woke wrong; no GPU is used twice; afterwards every GPU is usable, and no process and no folder
    is left."""
    ledger = Ledger("engines that sleep", {"seed": dose.seed, "seconds": dose.seconds})
    sleepers = Sleepers(data, max(dose.counts.values()))
    for gpu in sleepers.board.gpus.values():
        gpu.total_mib = GPU_MIB
    sleepers.board.write()
    options = ("--workers", str(WORKERS))
    environment = sleepers.environment
    with server_process(data / "data", *options, environment=environment) as server:
        server.port = urlsplit(server.url).port or 0
        tables = TABLES.format(mark=MARK, data=server.data)
        for name, count in dose.counts.items():
            deployed = await asyncio.to_thread(
                sleepers.deploy, server, name, *ENGINE, count=count, tables=tables
            )
            park = deployed["result"]["profile"]["park"]
            ledger.require(park["works"], f"{name} is not parked: {park}")
        scene = Parks(
            server,
            random.Random(dose.seed),
            ledger,
            board=sleepers.board,
            names=tuple(dose.counts),
            think_s=THINK_S,
            sleepers=sleepers,
            dose=dose,
        )
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as whole:
            whole.create_task(scene.watch_memory(ended))
            await play(scene, dose.seconds, dose.answers)
            await require_sound(scene)
            await scene.require_known()
            ended.set()
        check_log(server, ledger, *SILENT)
        silent = sum(any(text in line for text in SILENT) for line in server.complaints)
        ledger.figures["the driver was silent"] = silent
        await require_gone(server, ledger)
        ledger.require(not leftovers(server), f"folders are left: {leftovers(server)}")
    _check(scene)
    return ledger


def _check(scene: Parks) -> None:
    """Check that GPUs were used once, and that the dose was whole."""
    ledger, dose = scene.ledger, scene.dose
    conflicts = scene.sleepers.held / CONFLICTS
    for line in conflicts.read_text().splitlines() if conflicts.exists() else ():
        ledger.violated(f"a GPU was used twice: {line}")
    wakes = scene.wakes["right"]
    ledger.require(wakes >= dose.wakes, f"only {wakes} of {dose.wakes} wakes")
    for fault in PLAN:
        few = scene.done[fault]
        ledger.require(few >= dose.each, f"only {few} of {dose.each} faults: {fault}")
    ledger.figures |= {
        "wakes": dict(scene.wakes),
        "most MiB on a GPU": scene.most_mib,
        "faults": {" ".join(fault): scene.done[fault] for fault in PLAN},
        "engines with a fault": dict(scene.broken),
    }
