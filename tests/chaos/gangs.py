"""Functions on 8, 4, 2 and one of eight stand-in GPUs, always called, while engines, sidecars and
the manager are killed and GPUs are lost and return."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.chaos.killed_servers import EXPECTED, NAMED
from tests.chaos.killing import kill_one
from tests.chaos.ledger import Ledger
from tests.chaos.together import AGAIN_S, Scene
from tests.support import faulty_server
from tests.support.gang_engine import Cards, environment, uuid
from tests.support.nvml import board
from tests.support.process_server import server_process

WORKERS = 2
GPUS = 8
COUNTS = {
    "eight": 8,
    "four": 4,
    "two": 2,
    "pair": 2,
    "one": 1,
    "single": 1,
    "alone": 1,
}
"""Functions and the GPUs of their replicas: 19 on eight GPUs, so that they take turns."""
CALLERS = 2
"""Callers of each function, who call again at once."""
RUN_MS = (5, 200)
LIFE_S = (0.5, 3.0)
AWAY_S = (1.0, 4.0)
"""Seconds for which a lost GPU stays away."""
KINDS = ("engine",) * 3 + ("GPU process",) * 2 + ("sidecar",) * 3 + ("manager",) + ("GPU",) * 2
CALL_S = 150.0
LOST_S = 400.0
"""Seconds in which a call, repeated after each documented refusal, must be answered right."""
SETTLED_S = 60.0
GONE_S = 30.0
BAD = ("lost", "quarantined")
"""States of GPUs that take no replica."""
POLL_S = 0.05


@dataclass(frozen=True)
class Dose:
    """How much is done."""

    seed: int
    seconds: float = 180.0
    """How long calls and faults go on."""
    answers: int = 5
    """Right answers that each function must have by then, at least."""


@dataclass
class Gangs(Scene):
    """The scene of `together`, with calls of functions on several GPUs."""

    cards: Cards = field(kw_only=True)
    until_s: float = inf
    """When no further call is sent (time.monotonic)."""
    answered: Counter[str] = field(default_factory=Counter)
    """Right answers by function."""
    waits_s: dict[str, float] = field(default_factory=dict)
    """The longest time of a call of each function, with its repetitions."""
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the manager was killed and is not there again."""

    async def keep_calling(self, session: aiohttp.ClientSession, name: str) -> None:
        """Call a function again and again, until the time is over."""
        for number in itertools.count():
            if time.monotonic() > self.until_s:
                return
            await self.answer(session, name, f"{name} {number} {id(session)}")

    async def answer(self, session: aiohttp.ClientSession, name: str, token: str) -> None:
        """Send a call until it is answered right."""
        began = time.monotonic()
        while not await self._is_answered(session, name, token):
            if time.monotonic() - began > LOST_S:
                self.ledger.violated(f"{token}: no answer after {LOST_S:g} s")
                return
            await pause(AGAIN_S)
            await self.is_up.wait()
        self.answered[name] += 1
        self.waits_s[name] = max(self.waits_s.get(name, 0.0), time.monotonic() - began)

    async def _is_answered(self, session: aiohttp.ClientSession, name: str, token: str) -> bool:
        before, was_calm = self.changes, self.is_calm
        url = f"{self.server.url}/fn/{name}/run?ms={self.chance.randint(*RUN_MS)}"
        try:
            async with session.post(url, data=token) as response:
                data = await response.read()
        except aiohttp.ClientPayloadError:  # its engine died within the answer
            self.counts["answers cut"] += 1
            return False
        except (aiohttp.ClientError, OSError) as error:
            self.counts["cut off"] += 1
            if was_calm and before == self.changes:
                self.ledger.violated(f"cut off while all was calm: {error!r}")
            return False
        except TimeoutError:
            self.ledger.violated(f"{token}: nothing within {CALL_S:g} s")
            return False
        self.counts[str(response.status)] += 1
        if response.status != 200:
            code = json.loads(data).get("code", "") if data.startswith(b"{") else ""
            self.counts[f"{response.status} {code}"] += 1
            if code not in NAMED.get(response.status, ()):
                self.ledger.violated(f"{name}: {response.status} {data[:500]!r}")
            return False
        told = json.loads(data)
        is_right = (told["name"], told["body"], len(told["cards"])) == (name, token, COUNTS[name])
        self.ledger.require(is_right, f"{token}: {told}")
        return True

    async def kill_on(self, ended: asyncio.Event) -> None:
        """Inject a fault after each random pause."""
        while not ended.is_set():
            await pause(self.chance.uniform(*LIFE_S))
            kind = self.chance.choice(KINDS)
            if kind == "manager":
                self._turn(is_calm=False)
                self.is_up.clear()
                await asyncio.to_thread(self._kill_supervisor, kind)
                self.is_up.set()
                self._turn(is_calm=True)
            elif kind == "GPU":
                await self._lose(self.chance.randrange(GPUS))
            elif kind == "sidecar":
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            elif self.kills.is_due(self.counts["200"] // 10):
                self._kill_engine(is_first=kind == "engine")
            self.counts[f"faults: {kind}"] += 1

    async def _lose(self, card: int) -> None:
        """Lose a GPU for a while, as after an Xid error that needs a reset."""
        self.cards.board.lose(uuid(card))
        await pause(self.chance.uniform(*AWAY_S))
        self.cards.board.find(uuid(card))

    def _kill_engine(self, *, is_first: bool) -> None:
        """Kill the first process of a random engine, or one of those on its GPUs."""
        on_cards = set(self.cards.holders().values())
        sidecars = set(self.server.replica_pids())
        found = faulty_server.survivors(self.server.data).keys() - sidecars
        victims = sorted(found - on_cards if is_first else found & on_cards)
        if victims:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(victims), signal.SIGKILL)

    async def show_memory_on(self, ended: asyncio.Event) -> None:
        """Let the board follow the engines."""
        while not ended.is_set():
            self.cards.show_memory()
            await pause(POLL_S)


async def run(data: Path, dose: Dose) -> Ledger:
    """Each call is answered right, if need be after documented refusals; no engine finds one of its
    GPUs taken or gets another number of them; each function has its turns; afterwards every GPU is
    usable and no process is left."""
    ledger = Ledger("replicas on several GPUs", {"seed": dose.seed, "seconds": dose.seconds})
    library = data / "library"
    library.mkdir(parents=True)
    board.build(library)
    cards = Cards(data, GPUS)
    with server_process(
        data / "data",
        "--workers",
        str(WORKERS),
        environment=environment(cards, library),
    ) as server:
        server.port = urlsplit(server.url).port or 0
        scene = Gangs(server, random.Random(dose.seed), ledger, cards=cards)
        scene.is_up.set()
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as whole:
            whole.create_task(scene.show_memory_on(ended))
            for name, count in COUNTS.items():
                await asyncio.to_thread(cards.deploy, server, data / "bundles", name, count)
            await _play(scene, dose)
            await _require_sound(scene)
            ended.set()
        for line in server.complaints:
            if not any(known in line for known in EXPECTED):
                ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")

    async def is_gone() -> bool:
        return not faulty_server.survivors(server.data)

    if not await until(is_gone, GONE_S):
        ledger.violated(f"processes are left: {faulty_server.survivors(server.data)}")
    _check_starts(cards, ledger)
    return ledger


async def _play(scene: Gangs, dose: Dose) -> None:
    """Call all functions under faults, then each once more without."""
    over = asyncio.Event()
    scene.until_s = time.monotonic() + dose.seconds
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        faults = asyncio.create_task(scene.kill_on(over))
        callers = [scene.keep_calling(session, name) for name in COUNTS for _ in range(CALLERS)]
        await asyncio.gather(*callers)
        over.set()
        await faults
        for name in COUNTS:
            few = scene.answered[name]
            scene.ledger.require(few >= dose.answers, f"{name}: only {few} answers")
        await asyncio.gather(*(scene.answer(session, name, f"last {name}") for name in COUNTS))
    # A killed engine has both callers of its function within an answer at most.
    faults = sum(scene.counts[f"faults: {kind}"] for kind in set(KINDS))
    scene.ledger.require(
        scene.counts["answers cut"] <= CALLERS * faults,
        f"{scene.counts['answers cut']} answers were cut by {faults} faults",
    )
    longest = {name: round(wait_s, 1) for name, wait_s in scene.waits_s.items()}
    scene.ledger.figures |= {
        "answers": dict(scene.answered),
        "longest wait s": longest,
        **scene.counts,
        "killed sidecars": dict(scene.kills.states),
    }


async def _require_sound(scene: Gangs) -> None:
    """Require that every GPU takes replicas again."""
    async with client(scene.server) as caller:

        async def is_sound() -> bool:
            listed = (await caller.admin("GET", "/devices")).json()["items"]
            return all(one["state"] not in BAD for one in listed)

        if not await until(is_sound, SETTLED_S):
            listed = (await caller.admin("GET", "/devices")).json()["items"]
            scene.ledger.violated(f"GPUs are not usable: {listed}")


def _check_starts(cards: Cards, ledger: Ledger) -> None:
    """Check what the engines have noted of their GPUs."""
    for conflict in cards.conflicts():
        ledger.violated(f"a GPU was used twice: {conflict}")
    starts: Counter[str] = Counter()
    for name, numbers in cards.starts():
        starts[name] += 1
        ledger.require(len(numbers) == COUNTS[name], f"{name} on {numbers}")
        ledger.require(numbers == sorted(set(numbers)), f"{name}: GPUs in the order {numbers}")
    ledger.figures["starts"] = dict(starts)
