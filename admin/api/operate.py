"""Routes that operate a function (rollback, scaling, warm, sleep, park), and the database
backup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import BinaryIO, Final

import msgspec
import structlog
from aiohttp import hdrs, web

from admin.api.answers import json_answer, read_request, whole_number
from admin.api.context import CALLER
from admin.deploy.builds import Builds
from admin.deploy.changes import etag
from admin.deploy.deploys import Deploys
from admin.deploy.rollout import wait_until
from admin.documents.functions import Parked, Prepares, Scaled, Slept, Warmed
from admin.documents.requests import (
    WARM_MAX_S,
    WARM_S,
    PrepareRequest,
    RollbackRequest,
    ScalingRequest,
    SleepRequest,
)
from admin.events.snapshot import FunctionRows
from admin.model_control import warm_up
from admin.views import can_park, operation_row, park_off, wake_ms
from gateway.statuses import ACCEPTED, OK
from gateway.waits import OpenWaits
from pool_manager.core.state import State
from pool_manager.manager import Manager
from registry.catalog import Catalog, Deployed
from registry.errors import (
    Conflict,
    DriverError,
    EnvironmentRefused,
    FunctionFailing,
    QueueFull,
)
from registry.model.history import Decision
from registry.names import check_name
from registry.store.recovery.backups import Backups

SETTLED_S: Final = 0.5
"""Seconds in which a replica has learnt that its last call has ended."""
ASK_AGAIN_S: Final = 0.02
DECIDE_S = 2.0
"""Max wait for replicas that were asked to stop: each accepts or refuses at once."""

log = structlog.get_logger()
PIECE: Final = 1024 * 1024
SENT_MAX: Final = 2
"""Max backups sent at once; each needs a temporary file on disk."""
SLOW_S: Final = 30.0
"""Max seconds that one piece may wait for the client to read."""
BACKUP_RETRY_S: Final = 5.0
HEADERS: Final = {hdrs.CONTENT_TYPE: "application/vnd.sqlite3", hdrs.CACHE_CONTROL: "no-store"}


class OperateRoutes:
    """Handlers that operate one function, by its name without revision. `clock` returns seconds."""

    def __init__(
        self,
        catalog: Catalog,
        manager: Manager,
        deploys: Deploys,
        builds: Builds,
        rows: FunctionRows,
        clock: Callable[[], float],
    ) -> None:
        self._builds = builds
        self._rows = rows
        self._catalog = catalog
        self._manager = manager
        self._deploys = deploys
        self._clock = clock
        self._waits = OpenWaits()

    async def stop_waiting(self, _app: object = None) -> None:
        """Answer all requests that wait for a warm pool (handler of aiohttp's shutdown signal)."""
        await self._waits.stop()

    async def post_rollback(self, request: web.Request) -> web.Response:
        """Start a rollback: 202 with the operation to follow."""
        wanted = await read_request(
            request, RollbackRequest, "the rollback request", is_optional=True
        )
        name = request.match_info["name"]
        operation = await self._deploys.roll_back(name, wanted, request[CALLER])
        location = {"Location": f"/admin/v1/operations/{operation.id}"}
        return json_answer(operation_row(operation), ACCEPTED, location)

    async def patch_function(self, request: web.Request) -> web.Response:
        """Change the scaling of a function, if its ETag still matches."""
        wanted = await read_request(request, ScalingRequest, "the new settings")
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(wanted).items()
            if value is not msgspec.UNSET
        }
        match = request.headers.get("If-Match")
        function = await self._deploys.rescale(request.match_info["name"], match, changes)
        scaling, warnings = function.scaling, self._deploys.warnings(function.name)
        told = {**asdict(scaling), "preemptible": scaling.is_preemptible}
        answer = Scaled(name=function.name, warnings=warnings, **told)
        return json_answer(answer, OK, {"ETag": etag(function)})

    async def warm(self, request: web.Request) -> web.Response:
        """Answer once a replica of the current revision is ready; else 503 with the reason."""
        deployed = self._resolve(request)
        seconds = whole_number(request.query, "wait", WARM_S, WARM_MAX_S)
        was_warm = self._state(deployed) == "warm"
        began_s = self._clock()
        await self._waits.run(self._restore(deployed, seconds))
        seconds = max(1, seconds - round(self._clock() - began_s))
        await self._waits.run(warm_up(self._catalog, self._manager, deployed, seconds))
        return self._warmed(deployed, began_s, was_warm=was_warm)

    def _warmed(self, deployed: Deployed, began_s: float, *, was_warm: bool) -> web.Response:
        """Answer that a replica is ready, after a wait since `began_s`."""
        took_ms, idle_s = self._took_ms(began_s), deployed.function.scaling.idle_s
        ref = deployed.revision.ref
        return json_answer(Warmed(deployed.function.name, ref, was_warm, took_ms, idle_s))

    def _took_ms(self, began_s: float) -> float:
        return round((self._clock() - began_s) * 1e3, 1)

    async def prepare(self, request: web.Request) -> web.Response:
        """Ask for the compiled model of a function, or for another measurement of a model that is
        not to be compiled: 202, and its build as it is then."""
        wanted = await read_request(request, PrepareRequest, "the request", is_optional=True)
        deployed = self._resolve(request)
        if self._builds.states(deployed) == "" and deployed.revision.model:
            self._deploys.measure_again(deployed, now=wanted.now)
        else:
            await self._builds.prepare(deployed.function.name, now=wanted.now)
        name, ref = deployed.function.name, deployed.revision.ref
        return json_answer(Prepares(name, ref, *self._rows.builds(deployed)), ACCEPTED)

    async def sleep(self, request: web.Request) -> web.Response:
        """Ask every idle replica of all revisions to stop, and those that start while nobody waits
        for them. Busy and parked replicas, without `force`, and those of `min` stay; `reasons` says
        why.

        The pool manager may not know yet of a call in flight; the replica does, and refuses.
        """
        wanted = await read_request(request, SleepRequest, "the request", is_optional=True)
        deployed = self._resolve(request)
        function = deployed.function
        keys = {one.revision.key for one in self._catalog.revisions(function.name)}
        ready = self._ready(keys)

        async def ask() -> set[str]:
            before = self._ready(keys) | self._coming(keys) | self._parked(keys)
            for key in sorted(keys):
                self._manager.sleep(key, force=wanted.force)
            asked = before - self._ready(keys) - self._coming(keys) - self._parked(keys)
            await wait_until(self._manager, lambda: not self._undecided(asked), DECIDE_S)
            return asked

        asked = await self._ask_idle(keys, ask)
        stay = len(self._ready(keys) & ready)
        loads = self._rows.gateways.loads()
        load = [loads[key] for key in keys if key in loads]
        open_count = sum(one.busy for one in load)
        return json_answer(
            Slept(
                name=function.name,
                asked=len(asked),
                stay=stay,
                min=function.scaling.min,
                open=open_count,
                reasons=self._why_awake(deployed, keys, stay, open_count),
            )
        )

    async def park(self, request: web.Request) -> web.Response:
        """Have every idle replica of all revisions sleep that may, and answer once they do, refuse
        or have ended; after the wait, too. Busy replicas and those of `min` stay; `reasons` says
        why. Refused with the reason for a function that is not parked."""
        deployed = self._resolve(request)
        seconds = whole_number(request.query, "wait", WARM_S, WARM_MAX_S)
        function, current = deployed.function, self._manager.parks(deployed.revision.key)
        if off := park_off(deployed, current):
            raise Conflict(_not_parked(function.name, off))
        keys = {one.revision.key for one in self._catalog.revisions(function.name)}
        began_s = self._clock()
        asked, reasons = await self._waits.run(self._park(keys, seconds))
        loads = self._rows.gateways.loads()
        parks = [self._manager.parks(key) for key in keys]
        return json_answer(
            Parked(
                name=function.name,
                asked=len(asked),
                parked=sum(len(one.parked) for one in parks if one is not None),
                stay=len(self._ready(keys)),
                min=function.scaling.min,
                open=sum(loads[key].busy for key in keys if key in loads),
                took_ms=self._took_ms(began_s),
                wake_ms=wake_ms(current),
                reasons=reasons,
            )
        )

    async def _park(self, keys: set[str], seconds: float) -> tuple[set[str], list[str]]:
        """Park replicas of these pools; return the ids of those that were asked, once they have
        slept or not, and why others stay or have ended."""
        ready = self._ready(keys)
        told: dict[str, str] = {}

        def tell(key: str, decision: Decision) -> None:
            id = decision.text.partition(" ")[0]
            if id in ready and key in keys and _tells_why_awake(decision.text):
                told[id] = decision.text

        async def ask() -> set[str]:
            before = self._ready(keys)
            for id in before:
                told.pop(id, None)
            for key in sorted(keys):
                self._manager.park(key)
            asked = before - self._ready(keys)
            await wait_until(self._manager, lambda: not self._parking(asked), seconds)
            return asked

        leave = self._manager.subscribe_decisions(tell)
        try:
            asked = await self._ask_idle(keys, ask)
        finally:
            leave()
        for id in self._parking(asked):
            told[id] = f"{id} has not slept within {seconds:g} s, and goes on"
        found = sorted(told.values())
        if loading := len(self._coming(keys)):
            found.append(f"{loading} replica{'' if loading == 1 else 's'} still loading")
        return asked, found

    async def unpark(self, request: web.Request) -> web.Response:
        """Answer once a parked replica of the current revision has woken and is ready; else 503
        with the reason, or 409 if none is parked."""
        deployed = self._resolve(request)
        seconds = whole_number(request.query, "wait", WARM_S, WARM_MAX_S)
        name, key = deployed.function.name, deployed.revision.key
        state, began_s = self._state(deployed), self._clock()
        mine = [one for one in self._manager.replicas() if one.pool == key]
        is_asleep = any(one.is_resting or (one.is_coming and not one.is_unready) for one in mine)
        if not is_asleep and not can_park(deployed):
            raise Conflict(_not_parked(name, park_off(deployed, None)))
        if state != "warm" and not is_asleep:
            raise Conflict(
                f"expected a parked replica of {name}, got none: it is {state};"
                f" fnctl warm {name} starts one"
            )
        await self._waits.run(
            warm_up(self._catalog, self._manager, deployed, seconds, is_parked=is_asleep)
        )
        return self._warmed(deployed, began_s, was_warm=state == "warm")

    async def _ask_idle(self, keys: set[str], ask: Callable[[], Awaitable[set[str]]]) -> set[str]:
        """Have `ask` ask the replicas of pools to rest, and return the ids of all that it asked.

        Gateways may not have reported yet that the last call has ended, and a replica learns of it
        after its caller, and refuses until then: so it is asked again, for at most SETTLED_S.
        """
        asked, end_s = set[str](), self._clock() + SETTLED_S
        while True:
            await self._rows.gateways.refresh()
            now_asked = await ask()
            asked |= now_asked
            is_called = any(self._manager.load(key).busy for key in keys)
            if is_called or not now_asked & self._ready(keys) or self._clock() >= end_s:
                return asked
            await asyncio.sleep(ASK_AGAIN_S)

    def _parking(self, ids: set[str]) -> list[str]:
        """Return those of these replicas that are still falling asleep."""
        there = self._manager.replicas()
        return [one.id for one in there if one.id in ids and one.is_resting and not one.is_parked]

    def _why_awake(
        self, deployed: Deployed, keys: set[str], stay: int, open_count: int
    ) -> list[str]:
        """Return why replicas of a function stay, or will be there in a moment."""
        noun = "call" if deployed.revision.server is None else "exchange"
        least = deployed.function.scaling.min
        found = [f"min is {least}"] if stay and least else []
        if stay and open_count:
            found.append(f"{open_count} {noun}{'' if open_count == 1 else 's'} open")
        if stay and not found:
            found.append("called just now")
        if loading := len(self._coming(keys)):
            found.append(f"{loading} replica{'' if loading == 1 else 's'} still loading")
        if parked := len(self._parked(keys)):
            found.append(f"{parked} parked, which --force ends")
        return found

    async def _restore(self, deployed: Deployed, seconds: int) -> None:
        """Get the image or the packages of a server that are gone: calls never do."""
        try:
            if await self._deploys.restore(deployed, seconds):
                self._manager.retry(deployed.revision.key)
        except (DriverError, EnvironmentRefused) as error:
            raise FunctionFailing(
                f"{deployed.revision.ref} does not become ready: {error.message}"
            ) from error

    def _resolve(self, request: web.Request) -> Deployed:
        return self._catalog.resolve(check_name(request.match_info["name"]))

    def _state(self, deployed: Deployed) -> str:
        pool = self._manager.pool(deployed.revision.key)
        return pool[0].state if pool else "cold"

    def _ready(self, keys: set[str]) -> set[str]:
        """Return the ids of these pools' ready replicas, without those that were asked to stop."""
        replicas = self._manager.replicas()
        return {one.id for one in replicas if one.pool in keys and one.state is State.READY}

    def _parked(self, keys: set[str]) -> set[str]:
        """Return the ids of these pools' replicas that sleep."""
        return {one.id for one in self._manager.replicas() if one.pool in keys and one.is_parked}

    def _coming(self, keys: set[str]) -> set[str]:
        """Return the ids of these pools' replicas that start."""
        return {one.id for one in self._manager.replicas() if one.pool in keys and one.is_coming}

    def _undecided(self, asked: set[str]) -> bool:
        """Return whether any of these replicas has neither stopped nor refused yet."""
        return any(one.id in asked and one.if_idle for one in self._manager.replicas())


def _not_parked(name: str, why: str) -> str:
    return f"expected a function that is parked, got {name}: {why}"


def _tells_why_awake(text: str) -> bool:
    """Return whether a decision about a replica tells why it does not sleep: "r1 is not parked:
    it is called", "r1 keeps serving: used 0.2 s ago", "r1 ended: it exited"."""
    about = text.partition(" ")[2]
    return about.startswith(("is not parked: ", "keeps serving: ", "ended: "))


class BackupRoutes:
    """Handler for a backup: the current database in one file."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._sending = 0

    async def get_backup(self, request: web.Request) -> web.StreamResponse:
        """Send a copy of the database, with a Content-Length that shows a truncated copy.

        At most two copies are sent at once; further requests get `queue_full`.
        """
        if self._sending >= SENT_MAX:
            raise QueueFull(
                f"{self._sending} copies are being sent already", retry_after_s=BACKUP_RETRY_S
            )
        self._sending += 1
        try:
            file, size = await self._backups.snapshot()
            with file:
                return await _send(request, file, size)
        finally:
            self._sending -= 1


async def _send(request: web.Request, file: BinaryIO, size: int) -> web.StreamResponse:
    response = web.StreamResponse(status=OK, headers=HEADERS)
    response.content_length = size
    try:
        await response.prepare(request)
        while piece := await asyncio.to_thread(file.read, PIECE):
            async with asyncio.timeout(SLOW_S):
                await response.write(piece)
        await response.write_eof()
    except (OSError, TimeoutError) as error:
        log.info("a copy of the database was not sent to its end", reason=repr(error))
        if request.transport is not None:
            request.transport.abort()
    return response
