"""Sleep and wake of three server functions under load, while servers, sidecars, gateway workers and
the whole gateway are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.aftermath import check_log, require_gone
from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.chaos.killing import kill_one, kill_server
from tests.chaos.ledger import Ledger
from tests.chaos.together import AGAIN_S, TIMEOUT_S, Scene
from tests.support import faulty_server
from tests.support.caller import Caller
from tests.support.process_server import server_process

WORKERS = 2
NAMES = ("first", "second", "third")
SLOTS = 3
CLIENTS = 24
LIMITS = "concurrency = 8"
LIFE = "stop_grace_s = 1"
LIFE_S = (0.2, 0.8)
KINDS = ("server",) * 4 + ("sidecar",) * 3 + ("worker",) * 2 + ("supervisor",)
NAMED = {
    429: {"queue_full"},
    502: {"replica_died", "upstream_failed"},
    503: {"shutting_down", "wait_budget_over"},
    504: {"upstream_timeout"},
}
"""Problem codes that callers may get while processes die."""
AWAY = ("supervisor_away", "shutting_down")
"""Problem codes of the admin API while there is no supervisor."""
COLD_S = 20.0
LAST = 30
"""Calls after the last kill, which must all succeed."""


@dataclass
class Served(Scene):
    """The scene of `together`, with calls of server functions. `resting`: functions that are not
    called, so that they may sleep. `under_way`: calls without an answer, by function."""

    resting: set[str] = field(default_factory=set)
    under_way: Counter[str] = field(default_factory=Counter)

    async def _call(self, session: aiohttp.ClientSession, number: int) -> None:
        awake = [name for name in NAMES if name not in self.resting]
        if not awake:
            await pause(AGAIN_S)
            return
        name = awake[number % len(awake)]
        self.under_way[name] += 1
        try:
            await self._call_one(session, name, number)
        finally:
            self.under_way[name] -= 1

    async def _call_one(self, session: aiohttp.ClientSession, name: str, number: int) -> None:
        token = f"t{number}"
        method = ("GET", "POST", "PUT")[number // len(NAMES) % 3]
        path = "show" if method != "GET" else "concurrency?ms=5"
        body = None if method == "GET" else token.encode() * 50
        url = f"{self.server.url}/fn/{name}/{path}"
        async with session.request(method, url, data=body, headers={"Token": token}) as response:
            data = await response.read()
        self.counts[str(response.status)] += 1
        if response.status != 200:
            self._refused(number, response, data)
            await pause(AGAIN_S)
        elif not _is_right(json.loads(data), token):
            self.ledger.violated(f"#{number}: wrong content: {data[:500]!r}")

    def _refused(self, number: int, response: aiohttp.ClientResponse, data: bytes) -> None:
        code = json.loads(data).get("code", "") if data.startswith(b"{") else ""
        self.counts[f"{response.status} {code}"] += 1
        if code not in NAMED.get(response.status, ()):
            self.ledger.violated(f"#{number}: {response.status} {data[:500]!r}")

    async def kill_on(self, ended: asyncio.Event) -> None:
        """Kill after each random pause."""
        while not ended.is_set():
            await pause(self.chance.uniform(*LIFE_S))
            kind = self.chance.choice(KINDS)
            if kind in ("worker", "supervisor"):
                kill = self._kill_worker if kind == "worker" else self._kill_supervisor
                self._turn(is_calm=False)
                await asyncio.to_thread(kill, kind)
                self._turn(is_calm=True)
            elif kind == "sidecar":
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            elif self.kills.is_due(self.counts["200"] // 10):
                kill_server(self.server, self.chance)
            self.counts[f"kills: {kind}"] += 1

    async def sleep_on(self, name: str, cycles: int) -> None:
        """Let a function go cold `cycles` times, and wake it by calls."""
        async with client(self.server) as caller:
            for _ in range(cycles):
                self.resting.add(name)
                await until(lambda: self._is_cold(caller, name), COLD_S)
                self.resting.discard(name)
                await pause(self.chance.uniform(0.1, 0.5))

    async def _is_cold(self, caller: Caller, name: str) -> bool:
        """Send a function to sleep once it is not called; return whether it is cold."""
        if self.under_way[name]:
            return False
        try:
            await caller.admin("POST", f"/functions/{name}/sleep")
            shown = await caller.function(name)
        except (aiohttp.ClientError, OSError):  # the gateway worker was killed
            return False
        if "state" not in shown:  # a worker without its supervisor
            self.counts[f"admin: {shown['status']} {shown['code']}"] += 1
            self.ledger.require(shown["code"] in AWAY, f"the admin API: {shown}")
            return False
        self.counts["went cold"] += shown["state"] == "cold"
        return bool(shown["state"] == "cold")


def _is_right(told: dict[str, object], token: str) -> bool:
    if "fields" not in told:
        return told.get("token") == token
    fields = told["fields"]
    assert isinstance(fields, list)
    return ["token", token] in fields and told["bytes"] == 50 * len(token)


def _until(ended: asyncio.Event) -> Iterator[int]:
    return itertools.takewhile(lambda _: not ended.is_set(), itertools.count())


async def run(data: Path, seed: int, cycles: int = 100) -> Ledger:
    """Every call is answered right or refused by the rules; afterwards every function answers, and
    no process is left."""
    ledger = Ledger("servers that sleep, wake and die", {"seed": seed, "cycles": cycles})
    options = ("--workers", str(WORKERS), "--cpu-slots", str(SLOTS))
    environment = {"FN_STANDBYS": "0"}  # standbys of models would be killed, too
    with server_process(data / "data", *options, environment=environment) as server:
        server.port = urlsplit(server.url).port or 0
        for name in NAMES:
            await asyncio.to_thread(
                faulty_server.deploy, server, data, name, limits=LIMITS, life=LIFE
            )
        scene, ended = Served(server, random.Random(seed), ledger), asyncio.Event()
        began = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            numbers = _until(ended)
            async with asyncio.TaskGroup() as group:
                group.create_task(scene.kill_on(ended))
                for _ in range(CLIENTS):
                    group.create_task(scene.call_on(session, numbers))
                sleeping = [group.create_task(scene.sleep_on(name, cycles)) for name in NAMES]
                await asyncio.wait(sleeping)
                ended.set()
            before = scene.counts["200"]
            await scene.call_on(session, iter(range(LAST)))
        wanted = cycles * len(NAMES) // 2
        cold = scene.counts["went cold"]
        ledger.require(cold >= wanted, f"only {cold} of {wanted} times a function went cold")
        ledger.figures["seconds"] = round(time.monotonic() - began, 1)
        ledger.require(scene.counts["200"] - before == LAST, "calls fail after the last kill")
        check_log(server, ledger)
        await require_gone(server, ledger)
    ledger.figures |= {**scene.counts, "killed sidecars": dict(scene.kills.states)}
    return ledger
