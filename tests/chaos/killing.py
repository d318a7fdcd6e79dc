"""Something that kills replicas all the time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.load import Tally
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess

SERVING = ("ready", "draining", "standby")
"""Whose death is no failed start of a function."""


@dataclass
class Kills:
    """How many, by what the manager last thought of the victim's state.

    `starts_max` starts in a row of one function are killed, then it is spared until it serves: a
    function that does not start five times is failing by contract, whoever's fault it is.

    `answers_each`: answers that allow one more kill. On a slow machine replicas would otherwise be
    killed faster than they start, and clients would wait longer than their wait budget.
    """

    starts_max: int
    answers_each: int = 1
    states: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """All of them."""
        return self.states.total()

    def eligible(self, replicas: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Who may be killed, by id, of those that the admin API lists."""
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
        """Whether one more is allowed after `answers`; as many as starts in a row always are."""
        return self.count < self.starts_max + answers // self.answers_each

    def killed(self, victim: dict[str, Any]) -> None:
        """This one was."""
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
    """kill -9 a random replica after every random pause until `ended`, as far as `tally` allows."""
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
    """Kill one, if there is any that may be killed."""
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
