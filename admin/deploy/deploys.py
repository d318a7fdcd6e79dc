"""Deploys as operations: verified in a throw-away replica, then switched, all or nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog

from admin.deploy.plan import (
    Plan,
    WireDeploy,
    check_device,
    derived_name_taken,
    plan,
)
from admin.deploy.removal import Removal
from admin.deploy.verification import Verification, Verified
from admin.store import Store
from admin.views import profile_json
from gateway.problems import document
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.errors import FnError, ShuttingDown, StoreUnavailable
from registry.model import Operation
from registry.spec import model_spec, settings_equal
from registry.tasks import Tasks

log = structlog.get_logger()

AT_ONCE = 4
SWITCH = "switch"
"""The last phase: from here on store and memory change together, so it cannot be cancelled."""
END_RETRY_S = 1.0


class Deploys:
    """Runs deploys in the background. `wall` gives Unix seconds.

    An operation that was running when the server died is run again from its beginning: until its
    last step, one transaction, it changes nothing.
    """

    def __init__(
        self,
        store: Store,
        manager: Manager,
        *,
        idle_s: float,
        wall: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`idle_s` is for functions that do not name theirs. `pause` is awaited between two
        tries to store an operation's end."""
        self._store = store
        self._removal = Removal(store)
        self._verification = Verification(store, manager)
        self._manager = manager
        self._idle_s = idle_s
        self._wall = wall
        self._pause = pause
        self._tasks = Tasks("deploys")
        self._running: dict[str, tuple[Operation, asyncio.Task[Any]]] = {}
        self._cancelled: set[str] = set()
        self._closing = False
        self._changed = asyncio.Condition()
        self._turns = asyncio.Semaphore(AT_ONCE)
        # A name's lock lives as long as somebody holds it or waits for it.
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def resume(self) -> None:
        """Take up what an earlier server did not finish."""
        for operation in await self._store.operations.running():
            self._spawn(operation)

    async def stop_waiting(self, _app: object = None) -> None:
        """aiohttp's shutdown signal: who waits for an operation is answered now."""
        self._closing = True
        await self._tell()

    async def close(self) -> None:
        """Stop; what is running will be resumed by the next server."""
        await self._tasks.close()

    async def start(self, name: str, request: WireDeploy) -> Operation:
        """Check and accept a deploy. Raises Refused, BadRequest or Conflict, changing nothing."""
        draft = self._plan(name, request)
        await asyncio.to_thread(self._verification.check_files, draft)
        operation = Operation(
            id=secrets.token_hex(8),
            kind="deploy",
            name=name,
            request=msgspec.to_builtins(request),
            phase="upload",
            created_s=self._wall(),
        )
        await self._store.operations.put(operation)
        self._spawn(operation)
        # One turn, so that a cancellation finds it begun and not yet to begin.
        await asyncio.sleep(0)
        return operation

    async def newest(self) -> list[Operation]:
        """The last operations as they are now, newest first."""
        stored = await self._store.operations.list()
        return [self._running[one.id][0] if one.id in self._running else one for one in stored]

    async def get(self, id: str) -> Operation:
        """An operation as it is now. Raises Unknown."""
        running = self._running.get(id)
        return running[0] if running else await self._store.operations.get(id)

    async def wait(self, id: str, phase: str, seconds: float) -> Operation:
        """Like `get`, after the phase has changed from `phase`, it has ended, or time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: self._closing or not self._runs(id) or self._phase_of(id) != phase
                )
        return await self.get(id)

    async def cancel(self, id: str) -> Operation:
        """End a running operation, changing nothing.

        One that has ended stays as it is; one that already switches is done in a moment.
        """
        self._ask_to_end(id)
        async with self._changed:
            await self._changed.wait_for(lambda: self._closing or not self._runs(id))
        return await self.get(id)

    def _ask_to_end(self, id: str) -> None:
        is_free = self._runs(id) and self._phase_of(id) != SWITCH
        if is_free and id not in self._cancelled:
            self._cancelled.add(id)
            self._running[id][1].cancel()

    def _runs(self, id: str) -> bool:
        return id in self._running and self._running[id][0].state == "running"

    def _phase_of(self, id: str) -> str:
        return self._running[id][0].phase

    def _plan(self, name: str, request: WireDeploy) -> Plan:
        draft = plan(name, request, self._store.catalog, self._wall(), self._idle_s)
        check_device(draft, {device.kind for device in self._manager.devices()})
        return draft

    def _lock(self, name: str) -> asyncio.Lock:
        return self._names.setdefault(name, asyncio.Lock())

    def _spawn(self, operation: Operation) -> None:
        task = self._tasks.spawn(f"deploy {operation.id}", self._run(operation))
        self._running[operation.id] = (operation, task)

    async def _run(self, operation: Operation) -> None:
        changes: dict[str, Any]
        try:
            # Deploys of one name are done in the order they came, and hold one turn together.
            async with self._lock(operation.name), self._turns:
                changes = {"state": "done", "result": await self._deploy(operation)}
        except ShuttingDown:
            return  # the next server resumes it
        except FnError as error:
            changes = {"state": "failed", "error": document(error, for_admin=True)}
        except asyncio.CancelledError:
            if operation.id not in self._cancelled:
                raise  # the server stops: the next one resumes it
            changes = {"state": "cancelled"}
        except Exception:
            log.exception("a deploy failed", operation=operation.id)
            changes = {"state": "failed", "error": document(FnError("see the server's log"))}
        await self._end(operation.id, changes)

    async def _end(self, id: str, changes: dict[str, Any]) -> None:
        """Keep the end until it is stored: a restart would otherwise do the deploy again, over
        later ones."""
        operation, task = self._running[id]
        ended = replace(operation, ended_s=self._wall(), **changes)
        self._running[id] = (ended, task)
        self._cancelled.discard(id)
        while True:
            try:
                await self._store.operations.update(ended)
                break
            except StoreUnavailable as error:
                log.error("an operation's end is not stored yet", id=id, reason=error.message)
                await self._tell()
                await self._pause(END_RETRY_S)
        del self._running[id]
        await self._tell()

    async def _phase(self, operation: Operation, phase: str) -> None:
        task = self._running[operation.id][1]
        self._running[operation.id] = (replace(operation, phase=phase), task)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _deploy(self, operation: Operation) -> dict[str, Any]:
        request = msgspec.convert(operation.request, WireDeploy)
        # A name that did not exist when the deploy was accepted may exist by now through it.
        draft = self._plan(operation.name, msgspec.structs.replace(request, derived_name=False))
        current = self._store.catalog.find(operation.name)
        if current is not None and settings_equal(current.revision, draft.revision):
            await self._phase(operation, SWITCH)
            return await self._keep(current, draft)
        if current is not None and request.derived_name:
            raise derived_name_taken(operation.name)
        await self._phase(operation, "verify")
        verified = await self._verification.verify(draft, operation.id)
        await self._phase(operation, SWITCH)
        return await self._switch(draft, verified)

    async def _keep(self, current: Deployed, draft: Plan) -> dict[str, Any]:
        """The same bundle and settings: no new revision, but the function's settings may differ."""
        function = replace(draft.function, revision=current.revision.number)
        await self._store.functions.save_function(function)
        self._store.catalog.put_function(function)
        return {
            "revision": current.revision.ref,
            "created": False,
            "profile": profile_json(current.profile),
            "switch": f"the same bundle and settings as {current.revision.ref}",
        }

    async def _switch(self, draft: Plan, verified: Verified) -> dict[str, Any]:
        profile = verified.profile
        function, revision = await self._store.functions.deploy(
            draft.function,
            replace(draft.revision, signature=verified.signature),
            draft.bundle,
            profile,
        )
        self._store.bundles[draft.bundle.digest] = draft.bundle
        self._store.catalog.put(Deployed(function, revision, profile))
        await self._removal.trim(function.name)
        await self.sweep()
        return {
            "revision": revision.ref,
            "created": True,
            "sample": {**verified.sample, "revision": revision.ref} if verified.sample else {},
            "profile": profile_json(profile),
            "batch_max": model_spec(Deployed(function, revision, profile)).batch_max,
            "switch": f"calls of {function.name} go to {revision.ref}, which is cold",
        }

    async def remove(self, name: str) -> None:
        """Remove a function with all its revisions, and cancel its deploys that still run.

        Raises UnknownFunction.
        """
        self._store.catalog.resolve(name)
        for operation, _ in list(self._running.values()):
            if operation.name == name:
                self._ask_to_end(operation.id)
        async with self._lock(name):
            await self._removal.remove(name)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove the files that no revision uses any more and no deploy is about to use."""
        bundles = (operation.request["files"] for operation, _ in self._running.values())
        in_use = {file["sha256"] for files in bundles for file in files}
        await self._removal.sweep(in_use, self._wall())
