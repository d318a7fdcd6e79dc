"""Functions on 8, 4, 2 and one of eight stand-in GPUs, always called, while engines, sidecars and
the manager are killed and GPUs are lost and return."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.aftermath import check_log, require_gone
from tests.chaos.calls import client
from tests.chaos.footprint import pause
from tests.chaos.gpu_scene import CALLERS, GpuScene, play, require_sound
from tests.chaos.killed_servers import NAMED
from tests.chaos.killing import kill_one
from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.gang_engine import Cards, environment
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
RUN_MS = (5, 200)
LIFE_S = (0.5, 3.0)
AWAY_S = (1.0, 4.0)
"""Seconds for which a lost GPU stays away."""
KINDS = ("engine",) * 3 + ("GPU process",) * 2 + ("sidecar",) * 3 + ("manager",) + ("GPU",) * 2
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
class Gangs(GpuScene):
    """Calls of functions on several GPUs, again at once."""

    cards: Cards = field(kw_only=True)

    async def ask(self, session: aiohttp.ClientSession, name: str, token: str) -> bool:
        """Send one call; return whether it is answered."""
        url = f"{self.server.url}/fn/{name}/run?ms={self.chance.randint(*RUN_MS)}"
        async with session.post(url, data=token) as response:
            data = await response.read()
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
                await self.kill_manager()
            elif kind == "GPU":
                await self.lose(self.chance.randrange(GPUS), AWAY_S)
            elif kind == "sidecar":
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            elif self.kills.is_due(self.counts["200"] // 10):
                self._kill_engine(is_first=kind == "engine")
            self.counts[f"faults: {kind}"] += 1

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
        scene = Gangs(
            server,
            random.Random(dose.seed),
            ledger,
            board=cards.board,
            names=tuple(COUNTS),
            cards=cards,
        )
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as whole:
            whole.create_task(scene.show_memory_on(ended))
            for name, count in COUNTS.items():
                await asyncio.to_thread(cards.deploy, server, data / "bundles", name, count)
            await play(scene, dose.seconds, dose.answers)
            await require_sound(scene)
            ended.set()
        # A killed engine has both callers of its function within an answer at most.
        faults = sum(scene.counts[f"faults: {kind}"] for kind in set(KINDS))
        cut = scene.counts["answers cut"]
        ledger.require(cut <= CALLERS * faults, f"{cut} answers were cut by {faults} faults")
        check_log(server, ledger)
        await require_gone(server, ledger)
    _check_starts(cards, ledger)
    return ledger


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
