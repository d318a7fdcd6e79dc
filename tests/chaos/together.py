"""Replicas, gateway workers and the supervisor are killed under load, one by one and all at
once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.aftermath import check_log, require_gone
from tests.chaos.calls import client
from tests.chaos.footprint import pause
from tests.chaos.killing import Kills, kill_one
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.process_server import ServerProcess, server_process, wait_end
from tests.support.worker_server import until_replaced, watch, worker_pids

WORKERS = 2
NAMES = ("first", "second", "third")
CLIENTS = 32
TIMEOUT_S = 120.0
LIFE_S = (0.1, 0.8)
"""Seconds between the last replacement and the next kill."""
KINDS = ("replica",) * 6 + ("worker",) * 2 + ("supervisor", "all")
NAMED = {429: {"queue_full"}, 502: {"replica_died", "poison"}, 503: {"shutting_down"}}
"""Problem codes that callers may get while processes die. A 429 or 503 carries Retry-After."""
AGAIN_S = 0.1


@dataclass
class Scene:
    """One server and what its clients observed. `changes` counts switches of `is_calm`; it is False
    while a worker or the supervisor is being replaced, when connections may be cut off."""

    server: ServerProcess
    chance: random.Random
    ledger: Ledger
    kills: Kills = field(default_factory=lambda: Kills(starts_max=3))
    counts: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    is_calm: bool = True

    async def call_on(self, session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        """Call until `numbers` is exhausted."""
        for number in numbers:
            began, was_calm = self.changes, self.is_calm
            try:
                await self._call(session, number)
            except (aiohttp.ClientError, OSError) as error:
                self.counts["cut off"] += 1
                if was_calm and began == self.changes:
                    self.ledger.violated(f"cut off while all was calm: {error!r}")
                await pause(AGAIN_S)
            except TimeoutError:
                self.ledger.violated(f"#{number}: no answer within {TIMEOUT_S:g} s")

    async def _call(self, session: aiohttp.ClientSession, number: int) -> None:
        place = number % len(NAMES)
        value = number % 100_000
        body = {"inputs": {"x": [[value, 0, 0, 0]]}}
        url = f"{self.server.url}/fn/{NAMES[place]}"
        async with session.post(url, json=body) as response:
            data = await response.read()
        self.counts[str(response.status)] += 1
        if response.status != 200:
            self._check_refusal(number, response, data)
            await pause(AGAIN_S)
            return
        got = json.loads(data)["outputs"]["y"][0][0]
        if got != scale(place) * value + place:
            self.ledger.violated(f"#{number}: wrong content: x = {value} of {NAMES[place]}: {got}")

    def _check_refusal(self, number: int, response: aiohttp.ClientResponse, data: bytes) -> None:
        said = data.decode("utf-8", "replace")
        code = json.loads(data).get("code", "") if data.startswith(b"{") else ""
        self.counts[f"{response.status} {code}"] += 1
        if code not in NAMED.get(response.status, ()):
            self.ledger.violated(f"#{number}: {response.status} {said}")
        elif response.status != 502 and "Retry-After" not in response.headers:
            self.ledger.violated(f"#{number}: no Retry-After: {response.status} {said}")

    async def kill_on(self, ended: asyncio.Event) -> None:
        """Kill after each random pause, then wait until killed workers are replaced."""
        while not ended.is_set():
            await pause(self.chance.uniform(*LIFE_S))
            kind = self.chance.choice(KINDS)
            if kind in ("replica", "all"):
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            if kind != "replica":
                self._turn(is_calm=False)
                kill = self._kill_worker if kind == "worker" else self._kill_supervisor
                await asyncio.to_thread(kill, kind)
                self._turn(is_calm=True)
            self.counts[f"kills: {kind}"] += 1

    def _turn(self, *, is_calm: bool) -> None:
        self.changes += 1
        self.is_calm = is_calm

    def _workers(self) -> list[int]:
        assert self.server.process is not None
        return worker_pids(self.server.process.pid)

    def _kill_worker(self, _kind: str) -> None:
        victim = self.chance.choice(self._workers())
        gone = watch(victim)
        os.kill(victim, signal.SIGKILL)
        wait_end(gone)
        until_replaced(self.server, victim)

    def _kill_supervisor(self, kind: str) -> None:
        """Kill the supervisor; for kind "all", kill one of its workers first."""
        workers = self._workers()
        ends = [watch(pid) for pid in workers]
        if kind == "all":
            os.kill(self.chance.choice(workers), signal.SIGKILL)
        self.server.kill()
        began = time.monotonic()
        self.server.start()
        self.counts["restart ms in all"] += round((time.monotonic() - began) * 1e3)
        for end in ends:
            wait_end(end)


def scale(place: int) -> int:
    """Return the factor of a function; each function has its own."""
    return 3 + place


async def run(data: Path, seed: int, requests: int = 60_000) -> Ledger:
    """Every answer is right or a refusal that the contract names. Only connections to killed or
    replaced processes are cut off, and afterwards every call succeeds."""
    ledger = Ledger(
        "replicas, workers and supervisor are killed", {"seed": seed, "requests": requests}
    )
    with server_process(data / "data", "--workers", str(WORKERS), "--cpu-slots", "3") as server:
        server.port = urlsplit(server.url).port or 0
        for place, name in enumerate(NAMES):
            model = models.affine(data, scale(place), place)
            server.fnctl_json("deploy", str(model), "--name", name)
        scene, ended = Scene(server, random.Random(seed), ledger), asyncio.Event()
        began = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            killing = asyncio.create_task(scene.kill_on(ended))
            numbers = iter(range(requests))
            await asyncio.gather(*(scene.call_on(session, numbers) for _ in range(CLIENTS)))
            ended.set()
            await killing
            before = scene.counts["200"]
            last = itertools.islice(itertools.count(), 10 * len(NAMES))
            await scene.call_on(session, last)
        ledger.figures["seconds"] = round(time.monotonic() - began, 1)
        ledger.require(scene.counts["200"] - before == 30, "calls fail after the last kill")
        check_log(server, ledger)
        await require_gone(server, ledger)
    ledger.figures |= {**scene.counts, "killed replicas": dict(scene.kills.states)}
    return ledger
