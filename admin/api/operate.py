"""Routes that operate a function (rollback, scaling, warm, sleep, park), and the database
backup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec
import structlog
from aiohttp import hdrs, web

from admin.api.context import CALLER
from admin.api.functions import whole_number
from admin.deploy.builds import Builds
from admin.deploy.changes import etag
from admin.deploy.deploys import Deploys
from admin.deploy.plan import parse_rollback
from admin.deploy.rollout import wait_until
from admin.events.snapshot import FunctionRows
from admin.model_control import warm_up
from admin.views import can_park, operation_json, park_off, scaling_json
from gateway.http.bodies import read_body
from gateway.problems import ACCEPTED, OK, json_answer
from gateway.waits import OpenWaits
from pool_manager.core.state import State
from pool_manager.manager import Manager
from pool_manager.reports import Decision
from registry.bounded_text import read_json
from registry.catalog import Catalog, Deployed
from registry.errors import (
    Conflict,
    DriverError,
    EnvironmentRefused,
    FunctionFailing,
    QueueFull,
)
from registry.names import check_name
from registry.store.recovery.backups import Backups

REQUEST_MAX = 64 * 1024
READ_S = 10.0
WARM_S = 60
WARM_MAX_S = 3600
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


class ScalingRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of the scaling; what is left out stays."""

    min: int | msgspec.UnsetType = msgspec.UNSET
    max: int | msgspec.UnsetType = msgspec.UNSET
    idle_s: float | msgspec.UnsetType = msgspec.UNSET
    spread: bool | msgspec.UnsetType = msgspec.UNSET
    file_hosts: int | msgspec.UnsetType = msgspec.UNSET


class PrepareRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for a compiled model, or for another measurement. `now`: the next build,
    which waits for a device; a measurement that does not wait until the machine is idle."""

    now: bool = False


class SleepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for sleep. `force`: replicas with calls in flight take no new ones, and
    stop when these are answered or the time to drain is over."""

    force: bool = False


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
        body = await read_body(request, REQUEST_MAX, READ_S)
        name = request.match_info["name"]
        operation = await self._deploys.roll_back(name, parse_rollback(body), request[CALLER])
        location = {"Location": f"/admin/v1/operations/{operation.id}"}
        return json_answer(operation_json(operation), ACCEPTED, location)

    async def patch_function(self, request: web.Request) -> web.Response:
        """Change the scaling of a function, if its ETag still matches."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body, ScalingRequest, "the new settings")
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(wanted).items()
            if value is not msgspec.UNSET
        }
        match = request.headers.get("If-Match")
        function = await self._deploys.rescale(request.match_info["name"], match, changes)
        answer = {**scaling_json(function), "warnings": self._deploys.warnings(function.name)}
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
        took_ms = round((self._clock() - began_s) * 1e3, 1)
        return json_answer(
            {
                "name": deployed.function.name,
                "revision": deployed.revision.ref,
                "was_warm": was_warm,
                "took_ms": took_ms,
                "idle_s": deployed.function.scaling.idle_s,
            }
        )

    async def prepare(self, request: web.Request) -> web.Response:
        """Ask for the compiled model of a function, or for another measurement of a model that is
        not to be compiled: 202, and its build as it is then."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body or b"{}", PrepareRequest, "the request")
        deployed = self._resolve(request)
        if self._builds.states(deployed) == "" and deployed.revision.model:
            self._deploys.measure_again(deployed, now=wanted.now)
        else:
            await self._builds.prepare(deployed.function.name, now=wanted.now)
        return json_answer(
            {
                "name": deployed.function.name,
                "revision": deployed.revision.ref,
                **self._rows.builds(deployed),
            },
            ACCEPTED,
        )

    async def sleep(self, request: web.Request) -> web.Response:
        """Ask every idle replica of all revisions to stop, and those that start while nobody waits
        for them. Busy and parked replicas, without `force`, and those of `min` stay; `reasons` says
        why.

        The pool manager may not know yet of a call in flight; the replica does, and refuses. It may
        not know yet either that the last call has ended: gateways are asked first.
        """
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body or b"{}", SleepRequest, "the request")
        deployed = self._resolve(request)
        function = deployed.function
        keys = {one.revision.key for one in self._catalog.revisions(function.name)}
        if not wanted.force:
            await self._rows.gateways.refresh()
        ready, coming, parked = self._ready(keys), self._coming(keys), self._parked(keys)
        for key in sorted(keys):
            self._manager.sleep(key, force=wanted.force)
        asked = (ready - self._ready(keys)) | (coming - self._coming(keys))
        asked |= parked - self._parked(keys)
        await wait_until(self._manager, lambda: not self._undecided(asked), DECIDE_S)
        stay = len(self._ready(keys) & ready)
        loads = self._rows.gateways.loads()
        load = [loads[key] for key in keys if key in loads]
        open_count = sum(one.busy for one in load)
        return json_answer(
            {
                "name": function.name,
                "asked": len(asked),
                "stay": stay,
                "min": function.scaling.min,
                "open": open_count,
                "reasons": self._why_awake(deployed, keys, stay, open_count),
            }
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
            {
                "name": function.name,
                "asked": len(asked),
                "parked": sum(len(one.parked) for one in parks if one is not None),
                "stay": len(self._ready(keys)),
                "min": function.scaling.min,
                "open": sum(loads[key].busy for key in keys if key in loads),
                "took_ms": round((self._clock() - began_s) * 1e3, 1),
                "wake_ms": round(current.wake_s * 1e3) if current and current.wake_s else None,
                "reasons": reasons,
            }
        )

    async def _park(self, keys: set[str], seconds: float) -> tuple[set[str], list[str]]:
        """Park replicas of these pools; return the ids of those that were asked, once they have
        slept or not, and why others stay or have ended."""
        await self._rows.gateways.refresh()
        ready = self._ready(keys)
        told: dict[str, str] = {}

        def tell(key: str, decision: Decision) -> None:
            id = decision.text.partition(" ")[0]
            if id in ready and key in keys and _tells_why_awake(decision.text):
                told[id] = decision.text

        leave = self._manager.subscribe_decisions(tell)
        try:
            for key in sorted(keys):
                self._manager.park(key)
            asked = ready - self._ready(keys)
            await wait_until(self._manager, lambda: not self._parking(asked), seconds)
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
        return json_answer(
            {
                "name": name,
                "revision": deployed.revision.ref,
                "was_warm": state == "warm",
                "took_ms": round((self._clock() - began_s) * 1e3, 1),
                "idle_s": deployed.function.scaling.idle_s,
            }
        )

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
