"""Many models on few slots, asked through /v1 by callers with think times, while replicas, servers
and gateway workers are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.aftermath import check_log, require_gone
from tests.chaos.calls import client
from tests.chaos.chat_calls import FORMS, TOKENS_MAX, Ask, Tokens, asks, judge, refusal
from tests.chaos.footprint import pause, until
from tests.chaos.killing import Kills, kill_one, kill_server
from tests.chaos.ledger import Ledger
from tests.chaos.together import AGAIN_S, TIMEOUT_S, Scene
from tests.support import chat_server, faulty_server
from tests.support.process_server import ServerProcess, server_process

WORKERS = 2
RATE = 100
"""Tokens per second of a stream."""
KINDS = ("replica",) * 6 + ("server",) * 4 + ("worker",)
APIS = (
    "",
    'served_model = "org/Model-7B:latest"\ncomment_after_s = 1',
    'usage = "as_sent"\ncomment_after_s = 1',
    'served_model = "small"\nusage = "as_sent"\non_disconnect = "drain"',
)
"""Lines of the table [openai], one function after the other."""
LIMITS = "concurrency = 4\nwait_s = 120"
STORED_S = 25.0
"""Max seconds until usage is in the store: workers pass it on every 10 s."""
AT_ONCE = 3
"""Deployments at once."""


@dataclass(frozen=True)
class Dose:
    """Parameters of a run. `think_s`: bounds of the pause of a caller, `life_s`: between kills."""

    seed: int
    seconds: float = 600.0
    functions: int = 20
    slots: int = 2
    callers: int = 50
    think_s: tuple[float, float] = (0.0, 2.0)
    life_s: tuple[float, float] = (0.5, 2.0)
    leavers: float = 0.05


@dataclass
class Chats(Scene):
    """The scene of `together`, with calls of /v1.

    `whole`: tokens that whole answers say, `told`: of those that say them, and `others`: number
    of the calls without a whole answer, by function. `as_sent`: functions whose streams say
    their tokens only if the client asks.
    """

    dose: Dose = field(default_factory=lambda: Dose(0))
    kills: Kills = field(default_factory=lambda: Kills(starts_max=3, answers_each=10))
    whole: dict[str, list[Tokens]] = field(default_factory=dict)
    told: dict[str, list[Tokens]] = field(default_factory=dict)
    as_sent: set[str] = field(default_factory=set)
    others: Counter[str] = field(default_factory=Counter)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask_on(self, session: aiohttp.ClientSession, calls: Iterator[Ask]) -> None:
        """Ask after each think time until the end."""
        while not self.ended.is_set():
            await pause(self.chance.uniform(*self.dose.think_s))
            await self.ask(session, next(calls))

    async def ask(self, session: aiohttp.ClientSession, ask: Ask) -> bool:
        """Make one call, and judge it; return whether its answer was whole and right."""
        began, was_calm = self.changes, self.is_calm
        try:
            kind = await self._ask(session, ask)
        except (aiohttp.ClientError, OSError) as error:
            kind = "cut off"
            if was_calm and began == self.changes:
                self.ledger.violated(f"#{ask.number}: {kind} while all was calm: {error!r}")
        except TimeoutError:
            kind = "late"
            self.ledger.violated(f"#{ask.number}: no answer within {TIMEOUT_S:g} s")
        self.counts[kind] += 1
        if kind == "whole":
            self.whole.setdefault(ask.function, []).append(ask.usage)
            is_silent = ask.is_stream and ask.form.asks and not ask.asks_usage
            if not (is_silent and ask.function in self.as_sent):
                self.told.setdefault(ask.function, []).append(ask.usage)
        else:
            self.others[ask.function] += 1
            await pause(AGAIN_S)
        return kind == "whole"

    async def _ask(self, session: aiohttp.ClientSession, ask: Ask) -> str:
        began, was_calm, pieces, is_cut = self.changes, self.is_calm, [], False
        url = f"{self.server.url}{ask.form.path}"
        async with session.post(url, data=ask.body) as response:
            try:
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    if ask.leaves and response.status == 200:
                        response.close()
                        return "left"
            except aiohttp.ClientPayloadError:
                is_cut = True
        body = b"".join(pieces)
        if response.status != 200:
            code, wrong = refusal(ask, response.status, body, response.headers.get("Retry-After"))
            if wrong:
                self.ledger.violated(f"#{ask.number}: {wrong}")
            return f"{response.status} {code}"
        found = judge(ask, body)
        if is_cut and found.kind != "told":
            # A stream tells its error before it is cut, unless its worker has died.
            if ask.is_stream and was_calm and began == self.changes:
                self.ledger.violated(f"#{ask.number}: cut without an event: {body[-200:]!r}")
            return "cut"
        if found.kind == "short":
            self.ledger.violated(f"#{ask.number}: a clean but short end: {body[-500:]!r}")
        if found.wrong:
            self.ledger.violated(f"#{ask.number}: {ask.form.path}: {found.wrong}")
        return found.kind

    async def kill_on(self, ended: asyncio.Event) -> None:
        """Kill after each random pause."""
        while not ended.is_set():
            await pause(self.chance.uniform(*self.dose.life_s))
            if not self.kills.is_due(self.counts["whole"]):
                continue
            kind = self.chance.choice(KINDS)
            if kind == "worker":
                self._turn(is_calm=False)
                await asyncio.to_thread(self._kill_worker, kind)
                self._turn(is_calm=True)
            elif kind == "replica":
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            else:
                kill_server(self.server, self.chance)
            self.counts[f"kills: {kind}"] += 1


async def _deployed(server: ServerProcess, data: Path, count: int) -> dict[str, list[str]]:
    """Deploy the functions; return the names of the model of each: NAME, NAME@1 and an alias."""
    places, models = asyncio.Semaphore(AT_ONCE), {}

    def deploy(number: int, name: str) -> None:
        mark = f'[server.env]\n{faulty_server.MARK} = "{server.data}"'
        api, counts = APIS[number % len(APIS)], ("--counts", str(data / f"{name}.counts"))
        words = ("--rate", str(RATE), *counts)
        chat_server.deploy(server, data, name, *words, api=api, limits=LIMITS, more=mark)
        if len(models[name]) > 2:
            done = server.fnctl("alias", "add", name, models[name][2])
            assert done.returncode == 0, done.stderr

    async def one(number: int) -> None:
        name = f"model{number}"
        models[name] = [name, f"{name}@1"]
        if number % 2:
            models[name].append(f"org/Model-{number}:latest")
        async with places:
            await asyncio.to_thread(deploy, number, name)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return models


def _counted(scene: Chats, data: Path, models: dict[str, Any]) -> None:
    """Compare the tokens of whole answers with those that the servers have counted: nothing else
    than calls without a whole answer may be in between."""
    for name in models:
        got, left = scene.whole.get(name, []), scene.others[name]
        rest = Counter(_served(data, name))
        rest.subtract(got)
        missing = {usage: -number for usage, number in rest.items() if number < 0}
        scene.ledger.require(not missing, f"{name}: answers that no server has counted: {missing}")
        extra = rest.total()
        scene.ledger.require(
            extra <= left, f"{name}: {extra} served calls are in no answer, {left} calls had none"
        )


async def _stored(scene: Chats, data: Path, models: dict[str, Any]) -> None:
    """Compare the usage in the store with the tokens that whole answers say, and with those that
    the servers have counted. What a killed worker has not passed on yet is lost."""
    found: dict[str, Tokens] = {}
    wanted = {name: _sum(scene.told.get(name, [])) for name in models}

    async def is_stored() -> bool:
        async with client(scene.server) as caller:
            items = (await caller.admin("GET", "/usage?by=function")).json()["items"]
        found.update({one["function"]: (one["tokens_in"], one["tokens_out"]) for one in items})
        return all(found.get(name, (0, 0)) >= tokens for name, tokens in wanted.items())

    is_whole = await until(is_stored, STORED_S)
    has_killed = bool(scene.counts["kills: worker"])
    scene.ledger.require(is_whole or has_killed, f"usage: expected {wanted}, got {found}")
    for name in models:
        most = _sum(_served(data, name))
        # The last event may come from a server that dies before it counts.
        most_out = most[1] + TOKENS_MAX * scene.others[name]
        got = found.get(name, (0, 0))
        scene.ledger.require(got[1] <= most_out, f"{name}: usage {got}, but {most} were served")
    scene.ledger.figures["tokens that whole answers say"] = _sum(list(wanted.values()))
    scene.ledger.figures["tokens in the store"] = _sum(list(found.values()))


def _served(data: Path, name: str) -> list[Tokens]:
    """Return the tokens of the answers that the servers of a function have sent to their end."""
    lines = chat_server.counted(data / f"{name}.counts")
    return [(one["input"], one["output"]) for one in lines if one["end"] == "calls"]


def _sum(tokens: list[Tokens]) -> Tokens:
    return sum(one for one, _ in tokens), sum(one for _, one in tokens)


async def run(data: Path, dose: Dose) -> Ledger:
    """Every answer is whole and right, or an error that the client sees as one, never a clean but
    short end. Tokens add up to those that the servers have counted."""
    given = {"seed": dose.seed, "functions": dose.functions, "slots": dose.slots}
    ledger = Ledger("models of /v1 that sleep, wake and die", {**given, "callers": dose.callers})
    options = ("--workers", str(WORKERS), "--cpu-slots", str(dose.slots))
    with server_process(data / "data", *options, environment={"FN_STANDBYS": "0"}) as server:
        models = await _deployed(server, data, dose.functions)
        scene = Chats(server, random.Random(dose.seed), ledger, dose=dose)
        scene.as_sent = {one for n, one in enumerate(models) if "as_sent" in APIS[n % len(APIS)]}
        began = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S + 60)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            calls = asks(scene.chance, models, dose.leavers)
            async with asyncio.TaskGroup() as group:
                group.create_task(scene.kill_on(scene.ended))
                for _ in range(dose.callers):
                    group.create_task(scene.ask_on(session, calls))
                await pause(dose.seconds)
                scene.ended.set()
            for number, name in zip(itertools.count(10**9), models, strict=False):
                form = FORMS[number % len(FORMS)]
                last = Ask(number, name, models[name][-1], form, form.streams, False, 5, False)
                if not await scene.ask(session, last):
                    ledger.violated(f"{name}: calls fail after the last kill")
        ledger.figures["seconds"] = round(time.monotonic() - began, 1)
        await _stored(scene, data, models)
        _counted(scene, data, models)
        check_log(server, ledger)
        await require_gone(server, ledger)
    ledger.figures |= {**scene.counts, "killed replicas": dict(scene.kills.states)}
    return ledger
