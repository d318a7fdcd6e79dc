"""Functions on stand-in GPUs that are always called while everything under them dies: what the
scenarios with GPUs have in common."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

import aiohttp

from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.chaos.together import AGAIN_S, Scene
from tests.support.gang_engine import uuid
from tests.support.nvml.board import Board

CALLERS = 2
"""Callers of each function."""
CALL_S = 150.0
LOST_S = 400.0
"""Seconds in which a call, repeated after each documented refusal, must be answered right."""
SETTLED_S = 60.0
BAD = ("lost", "quarantined")
"""States of GPUs that take no replica."""


@dataclass
class GpuScene(Scene):
    """The scene of `together`, with calls of functions on GPUs."""

    board: Board = field(kw_only=True)
    names: tuple[str, ...] = field(kw_only=True)
    """The functions."""
    think_s: tuple[float, float] = (0.0, 0.0)
    """Bounds of a caller's pause after an answer."""
    until_s: float = inf
    """When no further call is sent (time.monotonic)."""
    answered: Counter[str] = field(default_factory=Counter)
    """Right answers by function."""
    waits_s: dict[str, float] = field(default_factory=dict)
    """The longest time of a call of each function, with its repetitions."""
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the manager was killed and is not there again."""

    def __post_init__(self) -> None:
        self.is_up.set()

    @abstractmethod
    async def ask(self, session: aiohttp.ClientSession, name: str, token: str) -> bool:
        """Send one call; return whether its answer is right. What is neither right nor a documented
        refusal is a violation."""

    @abstractmethod
    async def kill_on(self, ended: asyncio.Event) -> None:
        """Inject faults."""

    async def keep_calling(self, session: aiohttp.ClientSession, name: str) -> None:
        """Call a function again and again, until the time is over."""
        for number in itertools.count():
            if time.monotonic() > self.until_s:
                return
            await self.answer(session, name, f"{name} {number} {id(session)}")
            if self.think_s[1]:
                await pause(self.chance.uniform(*self.think_s))

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
        try:
            return await self.ask(session, name, token)
        except aiohttp.ClientPayloadError:  # its engine died within the answer
            self.counts["answers cut"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.counts["cut off"] += 1
            if was_calm and before == self.changes:
                self.ledger.violated(f"cut off while all was calm: {error!r}")
        except TimeoutError:
            self.ledger.violated(f"{token}: nothing within {CALL_S:g} s")
        return False

    async def kill_manager(self) -> None:
        """Kill the manager, which is the supervisor, and start it again."""
        self._turn(is_calm=False)
        self.is_up.clear()
        await asyncio.to_thread(self._kill_supervisor, "manager")
        self.is_up.set()
        self._turn(is_calm=True)

    async def lose(self, card: int, away_s: tuple[float, float]) -> None:
        """Lose a GPU for a while, as after an Xid error that needs a reset."""
        self.board.lose(uuid(card))
        await pause(self.chance.uniform(*away_s))
        self.board.find(uuid(card))


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session of callers, without a limit of connections."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as made:
        yield made


async def play(scene: GpuScene, seconds: float, answers: int) -> None:
    """Call all functions under faults, then each once more without. Each must have `answers` right
    answers by then."""
    over = asyncio.Event()
    scene.until_s = time.monotonic() + seconds
    async with session() as made:
        faults = asyncio.create_task(scene.kill_on(over))
        callers = [scene.keep_calling(made, name) for name in scene.names for _ in range(CALLERS)]
        await asyncio.gather(*callers)
        over.set()
        await faults
        for name in scene.names:
            few = scene.answered[name]
            scene.ledger.require(few >= answers, f"{name}: only {few} answers")
        await asyncio.gather(*(scene.answer(made, name, f"last {name}") for name in scene.names))
    longest = {name: round(wait_s, 1) for name, wait_s in scene.waits_s.items()}
    scene.ledger.figures |= {
        "answers": dict(scene.answered),
        "longest wait s": longest,
        **scene.counts,
        "killed sidecars": dict(scene.kills.states),
    }


async def require_sound(scene: GpuScene) -> None:
    """Require that every GPU takes replicas again."""
    async with client(scene.server) as caller:

        async def is_sound() -> bool:
            listed = (await caller.admin("GET", "/devices")).json()["items"]
            return all(one["state"] not in BAD for one in listed)

        if not await until(is_sound, SETTLED_S):
            listed = (await caller.admin("GET", "/devices")).json()["items"]
            scene.ledger.violated(f"GPUs are not usable: {listed}")
