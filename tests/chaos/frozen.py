"""Replicas that hang (SIGSTOP) under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.chaos import footprint
from tests.chaos.calls import served
from tests.chaos.ledger import Ledger
from tests.chaos.load import clients, schedule
from tests.chaos.subjects import chosen
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, wait_end

PING_S = 0.2
REPLACED_S = 30.0
IDLE_S = 30.0
AT_ONCE = 32
CHUNK = 300
"""Requests per burst. Bursts repeat until the last hang is over."""


async def run(data: Path, seed: int, stops: int = 10) -> Ledger:
    """Freeze replicas. Each must miss its PINGs, be killed and be replaced; no request may be
    lost."""
    ledger = Ledger("replicas that hang", {"stops": stops, "ping_s": PING_S})
    chance = random.Random(seed)
    async with served(data, cpu_slots=2, ping_s=PING_S) as (server, caller):
        for subject in chosen(2):
            await subject.deploy(caller, data, IDLE_S)
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            load = group.create_task(_load(server, chance, ended, ledger))
            for _ in range(stops):
                await _stop_one(server, caller, chance, ledger)
            ended.set()
        ledger.figures["answers"] = dict(load.result())
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    return ledger


async def _load(
    server: ServerProcess, chance: random.Random, ended: asyncio.Event, ledger: Ledger
) -> Counter[str]:
    statuses: Counter[str] = Counter()
    while not ended.is_set():
        requests = schedule(chance, [chosen(2)], CHUNK, statuses.total(), leavers=0.0)
        tally = await clients(server.url, requests, AT_ONCE, ledger)
        statuses += tally.statuses
    return statuses


async def _stop_one(
    server: ServerProcess, caller: Caller, chance: random.Random, ledger: Ledger
) -> None:
    """Freeze one ready replica, wait for its end and for another replica of the same pool."""

    async def working() -> dict[str, str]:
        items = (await caller.admin("GET", "/replicas")).json()["items"]
        return {item["id"]: item["pool"] for item in items if item["state"] == "ready"}

    async def some_work() -> bool:
        return bool((await working()).keys() & server.replica_processes().keys())

    if not await footprint.until(some_work, REPLACED_S):
        ledger.violated("no replica became ready")
        return
    pools, running = await working(), server.replica_processes()
    id = chance.choice(sorted(pools.keys() & running.keys()))
    began = time.monotonic()
    pidfd = os.pidfd_open(running[id])
    os.kill(running[id], signal.SIGSTOP)
    await asyncio.to_thread(wait_end, pidfd, REPLACED_S)
    ended_s = time.monotonic() - began

    async def is_replaced() -> bool:
        return pools[id] in {pool for other, pool in (await working()).items() if other != id}

    is_back = await footprint.until(is_replaced, REPLACED_S)
    ledger.require(is_back, f"{id} of {pools[id]} was not replaced after {REPLACED_S} s")
    took_s = time.monotonic() - began
    line = f"{pools[id]}: ended after {ended_s:.1f} s, replaced after {took_s:.1f} s"
    ledger.figures.setdefault("hangs", []).append(line)
