"""Sleep and wake of three server functions under load, while servers, sidecars and gateway workers
are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.chaos.killing import kill_one
from tests.chaos.ledger import Ledger
from tests.chaos.together import AGAIN_S, TIMEOUT_S, Scene
from tests.support import faulty_server
from tests.support.process_server import server_process

WORKERS = 2
NAMES = ("first", "second", "third")
SLOTS = 2
CLIENTS = 24
LIMITS = "concurrency = 8"
LIFE = "stop_grace_s = 1"
LIFE_S = (0.2, 0.8)
KINDS = ("server",) * 4 + ("sidecar",) * 3 + ("worker",) * 2
NAMED = {
    429: {"queue_full"},
    502: {"replica_died", "upstream_failed"},
    503: {"shutting_down", "wait_budget_over"},
    504: {"upstream_timeout"},
}
"""Problem codes that callers may get while processes die."""
EXPECTED = ('"a worker ended"',)
GONE_S = 30.0


class Served(Scene):
    """The scene of `together`, with calls of server functions."""

    async def _call(self, session: aiohttp.ClientSession, number: int) -> None:
        name = NAMES[number % len(NAMES)]
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
            if kind == "worker":
                self._turn(is_calm=False)
                await asyncio.to_thread(self._kill_worker, kind)
                self._turn(is_calm=True)
            elif kind == "sidecar":
                async with client(self.server) as caller:
                    await kill_one(self.server, caller, self.chance, self.kills)
            else:
                self._kill_server()
            self.counts[f"kills: {kind}"] += 1

    def _kill_server(self) -> None:
        sidecars = set(self.server.replica_pids())
        found = sorted(faulty_server.survivors(self.server.data).keys() - sidecars)
        if found and self.kills.is_due(self.counts["200"] // 10):
            try:
                os.kill(self.chance.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return

    async def sleep_on(self, cycles: int, ended: asyncio.Event) -> None:
        """Send functions to sleep in turns, `cycles` times in all; then end the scene."""
        async with client(self.server) as caller:
            for number in range(cycles):
                await pause(self.chance.uniform(0.1, 0.4))
                name = NAMES[number % len(NAMES)]
                try:
                    answer = await caller.admin("POST", f"/functions/{name}/sleep")
                    self.counts[f"sleeps {answer.status}"] += 1
                except (aiohttp.ClientError, OSError):
                    self.counts["sleeps cut off"] += 1
        ended.set()


def _is_right(told: dict[str, object], token: str) -> bool:
    if "fields" not in told:
        return told.get("token") == token
    fields = told["fields"]
    assert isinstance(fields, list)
    return ["token", token] in fields and told["bytes"] == 50 * len(token)


def _until(ended: asyncio.Event) -> Iterator[int]:
    return itertools.takewhile(lambda _: not ended.is_set(), itertools.count())


async def run(data: Path, seed: int, cycles: int = 300) -> Ledger:
    """Every call is answered right or refused by the rules; afterwards every function answers, and
    no process is left."""
    ledger = Ledger("servers that sleep, wake and die", {"seed": seed, "cycles": cycles})
    options = ("--workers", str(WORKERS), "--cpu-slots", str(SLOTS))
    with server_process(data / "data", *options) as server:
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
                group.create_task(scene.sleep_on(cycles, ended))
                for _ in range(CLIENTS):
                    group.create_task(scene.call_on(session, numbers))
            before = scene.counts["200"]
            await scene.call_on(session, iter(range(10 * len(NAMES))))
        ledger.figures["seconds"] = round(time.monotonic() - began, 1)
        ledger.require(scene.counts["200"] - before == 30, "calls fail after the last kill")
        for line in server.complaints:
            if not any(known in line for known in EXPECTED):
                ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")

    async def is_gone() -> bool:
        return not faulty_server.survivors(server.data)

    if not await until(is_gone, GONE_S):
        ledger.violated(f"processes are left: {faulty_server.survivors(server.data)}")
    ledger.figures |= {**scene.counts, "killed sidecars": dict(scene.kills.states)}
    return ledger
