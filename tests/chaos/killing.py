"""Killer of random replicas under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.load import Tally
from tests.support import faulty_server
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess

SERVING = ("ready", "draining", "standby")
"""States in which a death does not count as a failed start."""


@dataclass
class Kills:
    """Kill counts by the victim's last known state, and limits on further kills.

    At most `starts_max` starts in a row are killed per pool; then the pool is spared until a
    replica serves. Five failed starts in a row make a function failing by contract, whatever the
    cause.

    `answers_each`: right answers required per further kill. On a slow machine replicas would
    otherwise die faster than they start, and clients would exceed their wait budget.
    """

    starts_max: int
    answers_each: int = 1
    states: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Return the number of kills in all states."""
        return self.states.total()

    def eligible(self, replicas: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the replicas that may be killed, by id, out of the admin API's list."""
        listed = list(replicas)
        for item in listed:
            if item["state"] in SERVING:
                self.starts[item["pool"]] = 0
        return {
            item["id"]: item
            for item in listed
            if item["state"] in SERVING or self.starts[item["pool"]] < self.starts_max
        }

    def is_due(self, answers: int) -> bool:
        """Return whether another kill is allowed after `answers`. The first `starts_max` always
        are."""
        return self.count < self.starts_max + answers // self.answers_each

    def killed(self, victim: dict[str, Any]) -> None:
        """Count one killed replica."""
        self.states[victim["state"]] += 1
        if victim["state"] not in SERVING:
            self.starts[victim["pool"]] += 1


async def killing(
    server: ServerProcess,
    caller: Caller,
    chance: random.Random,
    kills: Kills,
    every_s: tuple[float, float],
    tally: Tally,
    ended: asyncio.Event,
) -> None:
    """Kill -9 a random replica after each random pause until `ended`, within the limits of
    `kills`."""
    while not ended.is_set():
        try:
            async with asyncio.timeout(chance.uniform(*every_s)):
                await ended.wait()
        except TimeoutError:
            if kills.is_due(tally.right):
                await kill_one(server, caller, chance, kills)


async def kill_one(
    server: ServerProcess, caller: Caller, chance: random.Random, kills: Kills
) -> None:
    """Kill one random eligible replica, if there is one."""
    eligible = kills.eligible((await caller.admin("GET", "/replicas")).json()["items"])
    running = server.replica_processes()
    victims = sorted(running.keys() & eligible.keys())
    if not victims:
        return
    id = chance.choice(victims)
    try:
        os.kill(running[id], signal.SIGKILL)
    except ProcessLookupError:
        return
    kills.killed(eligible[id])


def kill_server(server: ServerProcess, chance: random.Random) -> None:
    """Kill a random process of the functions' servers, which bear the mark of the data folder."""
    sidecars = set(server.replica_pids())
    found = sorted(faulty_server.survivors(server.data).keys() - sidecars)
    if found:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)
