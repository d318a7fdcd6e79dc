"""Server restarts: kill, start again, and check what was warm before."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import footprint
from tests.chaos.calls import client
from tests.chaos.containers.calling import Front
from tests.chaos.containers.engine_room import EngineRoom, Running
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject
from tests.support.caller import Answer, Caller

READY_S = 30.0
LINES = 30
"""Lines kept of a lost replica's output."""
PROBE = 1_000_000
"""First number of the requests that check a restart."""
Act = Callable[[], object]


def nothing() -> None:
    """Default action: do nothing."""


@dataclass
class Figures:
    """Figures of all restarts: adopted containers, milliseconds from process start to /readyz, and
    from there to the first answer of each warm function."""

    kept: int = 0
    ready_ms: list[int] = field(default_factory=list)
    first_ms: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            "warm containers that went on": self.kept,
            "ms to /readyz: least, median, most": spread(self.ready_ms),
            "ms from there to the first answers": spread(self.first_ms),
        }


def spread(values: list[int]) -> str:
    """Return minimum, median and maximum."""
    if not values:
        return "none"
    return f"{min(values)}, {round(statistics.median(values))}, {max(values)}"


class Lives:
    """Kills the server and checks that warm replicas stay warm."""

    def __init__(
        self, front: Front, room: EngineRoom, subjects: tuple[Subject, ...], ledger: Ledger
    ) -> None:
        self._front = front
        self._room = room
        self._subjects = {f"default/{subject.name}@1": subject for subject in subjects}
        self._ledger = ledger
        self.figures = Figures()

    async def restart(
        self, struck: Set[str], revive: Act = nothing, disturb: Act = nothing
    ) -> None:
        """Kill the server (SIGKILL) and start another over the same folder.

        `struck`: replicas killed before, noticed or not. `revive` runs after the server's death and
        makes the engine answer again; `disturb` runs just before the next start.
        """
        warm = await self._warm()
        with self._front.down():
            await asyncio.to_thread(self._front.server.kill)
            await asyncio.to_thread(revive)
            there = await asyncio.to_thread(self._room.replicas)
            # A replica that was just drained may still have been in the list.
            ids = (warm.keys() & there.keys()) - struck
            alive = {id: (warm[id], there[id]) for id in ids}
            await asyncio.to_thread(disturb)
            began_s = time.monotonic()
            await asyncio.to_thread(self._front.server.start)
            async with client(self._front.server) as caller:
                await self._await_readiness(caller)
                self.figures.ready_ms.append(round((time.monotonic() - began_s) * 1e3))
                await self._look(caller, alive)

    async def _warm(self) -> dict[str, str]:
        """Return the ready replicas of the scenario's functions and their pools."""
        async with client(self._front.server) as caller:
            items = (await caller.admin("GET", "/replicas")).json()["items"]
        return {
            one["id"]: one["pool"]
            for one in items
            if one["state"] == "ready" and one["pool"] in self._subjects
        }

    async def _await_readiness(self, caller: Caller) -> None:
        async def is_ready() -> bool:
            return (await caller.get("/readyz")).status == 200

        ready = await footprint.until(is_ready, READY_S)
        self._ledger.require(ready, f"/readyz is not 200 after {READY_S} s")

    async def _look(self, caller: Caller, alive: dict[str, tuple[str, Running]]) -> None:
        """Require that each warm function first answers from its old container, without a
        reload."""
        pools = {pool for pool, _ in alive.values()}
        async with asyncio.TaskGroup() as group:
            for pool in sorted(pools):
                ids = {id for id, (one, _) in alive.items() if one == pool}
                group.create_task(self._first_answer(caller, self._subjects[pool], ids))
        items = (await caller.admin("GET", "/replicas")).json()["items"]
        states = {one["id"]: one for one in items}
        now = await asyncio.to_thread(self._room.replicas)
        for id, (pool, before) in sorted(alive.items()):
            shown: dict[str, Any] = states.get(id, {})
            name = self._subjects[pool].name
            is_kept = now.get(id) == before and shown.get("adopted") and shown["state"] == "ready"
            if not is_kept:
                self._ledger.violated(
                    f"{id} of {pool} was {before}, is {now.get(id)} and shown as {shown};"
                    f" its log lines and /why: {self._said(id)} {await self._why(caller, name)}"
                )
            self.figures.kept += bool(is_kept)

    async def _why(self, caller: Caller, name: str) -> str:
        return (await caller.admin("GET", f"/functions/{name}/why")).body.decode()

    def _said(self, id: str) -> list[str]:
        """Return the servers' log lines about a replica and the end of its own output."""
        server = self._front.server
        lines = [line.strip() for line in [*server.log] if id in line]
        for path in (server.data / "logs").rglob(f"*{id}*"):
            lines += path.read_text(errors="replace").splitlines()[-LINES:]
        return lines

    async def _first_answer(self, caller: Caller, subject: Subject, ids: set[str]) -> None:
        number = PROBE + len(self.figures.first_ms)
        body, headers = subject.request(number)
        began_s = time.monotonic()
        answer = await caller.request("POST", f"/fn/{subject.name}", body, headers)
        self.figures.first_ms.append(round((time.monotonic() - began_s) * 1e3))
        who = f"{subject.name}, the first after a restart"
        if answer.status != 200:
            self._ledger.violated(f"{who}: {answer.status} {answer.body.decode()}")
            return
        self._ledger.require(not subject.complaint(number, answer.body), f"{who}: {answer.body!r}")
        by, is_cold = receipt(answer)
        self._ledger.require(by in ids and not is_cold, f"{who}: by {by}, cold: {is_cold}, {ids}")


def receipt(answer: Answer) -> tuple[str, bool]:
    """Return the replica that answered, and whether the call waited for a cold start."""
    text = answer.headers.get("Server-Timing", "")
    found = re.search(r'replica;desc="(\w+)"', text)
    return found[1] if found else "", text.startswith("cold;")
