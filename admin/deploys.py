"""Deploys as operations: verified in a throw-away replica, then switched, all or nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from admin.deploy_plan import (
    Plan,
    WireDeploy,
    plan,
    profile_from_report,
    signature_from_report,
)
from admin.store import Store
from admin.views import profile_json
from gateway.problems import document
from pool_manager.core.state import PoolSpec
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from registry.bundles import onnx_external
from registry.catalog import Deployed
from registry.errors import BadBundle, FnError, ModelRefused, ShuttingDown
from registry.model import Operation, Profile
from registry.spec import settings_equal
from registry.tasks import Tasks

log = structlog.get_logger()

AT_ONCE = 4


class Deploys:
    """Runs deploys in the background. `wall` gives Unix seconds.

    An operation that was running when the server died is run again from its beginning: until its
    last step, one transaction, it changes nothing.
    """

    def __init__(
        self, store: Store, manager: Manager, *, idle_s: float, wall: Callable[[], float]
    ) -> None:
        """`idle_s` is for functions that do not name theirs."""
        self._store = store
        self._manager = manager
        self._idle_s = idle_s
        self._wall = wall
        self._tasks = Tasks("deploys")
        self._running: dict[str, tuple[Operation, asyncio.Task[Any]]] = {}
        self._changed = asyncio.Condition()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._names: dict[str, asyncio.Lock] = {}

    async def resume(self) -> None:
        """Take up what an earlier server did not finish."""
        for operation in await self._store.operations.running():
            self._spawn(operation)

    async def close(self) -> None:
        """Stop; what is running will be resumed by the next server."""
        await self._tasks.close()

    async def start(self, name: str, request: WireDeploy) -> Operation:
        """Check and accept a deploy. Raises Refused, BadRequest or Conflict, changing nothing."""
        draft = self._plan(name, request)
        missing = self._store.blobs.missing(draft.bundle)
        if missing:
            raise BadBundle(f"{len(missing)} files were not uploaded, first {missing[0]}")
        await asyncio.to_thread(self._check_external, draft)
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
        return operation

    async def get(self, id: str) -> Operation:
        """An operation as it is now. Raises Unknown."""
        running = self._running.get(id)
        return running[0] if running else await self._store.operations.get(id)

    async def wait(self, id: str, phase: str, seconds: float) -> Operation:
        """Like `get`, after the phase has changed from `phase`, it has ended, or time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: id not in self._running or self._running[id][0].phase != phase
                )
        return await self.get(id)

    async def cancel(self, id: str) -> Operation:
        """End a running operation, changing nothing; one that has ended stays as it is."""
        running = self._running.get(id)
        if running is not None:
            running[1].cancel("cancelled by its client")
            await asyncio.wait([running[1]])
        return await self.get(id)

    def _plan(self, name: str, request: WireDeploy) -> Plan:
        return plan(name, request, self._store.catalog, self._wall(), self._idle_s)

    def _check_external(self, draft: Plan) -> None:
        """Refuse what is no ONNX file or keeps data outside its bundle, before any replica."""
        model = draft.revision.model
        if not model.endswith(".onnx"):
            return
        sha256 = next(file.sha256 for file in draft.bundle.files if file.path == model)
        try:
            locations = onnx_external.external_locations(self._store.blobs.path(sha256))
        except ValueError as error:
            raise ModelRefused(f"{model} is not an ONNX model: {error}") from error
        onnx_external.check_external(model, locations, {f.path for f in draft.bundle.files})

    def _spawn(self, operation: Operation) -> None:
        task = self._tasks.spawn(f"deploy {operation.id}", self._run(operation))
        self._running[operation.id] = (operation, task)

    async def _run(self, operation: Operation) -> None:
        try:
            lock = self._names.setdefault(operation.name, asyncio.Lock())
            async with self._turns, lock:
                result = await self._deploy(operation)
            ended = replace(await self.get(operation.id), state="done", result=result)
        except FnError as error:
            if isinstance(error, ShuttingDown):
                return
            problem = document(error, for_admin=True)
            ended = replace(await self.get(operation.id), state="failed", error=problem)
        except asyncio.CancelledError as error:
            if not error.args:
                raise  # the server stops: the next one resumes it
            ended = replace(await self.get(operation.id), state="cancelled")
        except Exception:
            log.exception("a deploy failed", operation=operation.id)
            problem = document(FnError("see the server's log"))
            ended = replace(await self.get(operation.id), state="failed", error=problem)
        await self._end(replace(ended, ended_s=self._wall()))

    async def _end(self, operation: Operation) -> None:
        try:
            await self._store.operations.update(operation)
        except FnError as error:
            log.error("an operation's end was not stored", id=operation.id, reason=str(error))
        del self._running[operation.id]
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
        draft = self._plan(operation.name, replace_derived(request))
        current = self._store.catalog.find(operation.name)
        if current is not None and settings_equal(current.revision, draft.revision):
            return await self._keep(current, draft)
        await self._phase(operation, "verify")
        report, profile = await self._verify(operation, draft)
        await self._phase(operation, "switch")
        revision = replace(draft.revision, signature=signature_from_report(report))
        return await self._switch(replace(draft, revision=revision), profile, report)

    async def _verify(self, operation: Operation, draft: Plan) -> tuple[dict[str, Any], Profile]:
        """Load, try, prove and measure in a throw-away replica."""
        namespace = draft.function.namespace
        key = f"{namespace}/{operation.name}@trial-{operation.id}"
        kind = draft.revision.device.kind
        spec = PoolSpec(key, device_kind=kind, bundle_bytes=draft.bundle.size, trial=True)
        bound = Binding(
            draft.trial_spec(),
            draft.bundle,
            namespace,
            operation.name,
            0,
            draft.revision.device.memory_mib,
        )
        report = await self._manager.trial(spec, bound)
        return report, profile_from_report(report, draft, "cpu" if kind == "any" else kind)

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

    async def _switch(
        self, draft: Plan, profile: Profile, report: dict[str, Any]
    ) -> dict[str, Any]:
        function, revision = await self._store.functions.deploy(
            draft.function, draft.revision, draft.bundle, profile
        )
        self._store.bundles[draft.bundle.digest] = draft.bundle
        self._store.catalog.put(Deployed(function, revision, profile))
        await self._trim(function.name)
        return {
            "revision": revision.ref,
            "created": True,
            "sample": report.get("sample_outputs", {}),
            "profile": profile_json(profile),
            "switch": f"calls of {function.name} go to {revision.ref}, which is cold",
        }

    async def _trim(self, name: str) -> None:
        gone = await self._store.functions.trim_revisions(name, self._store.settings.revisions_keep)
        if gone:
            self._store.catalog.remove_revisions(name, gone)
        await self.sweep()

    async def remove(self, name: str) -> None:
        """Remove a function with all its revisions. Raises UnknownFunction."""
        self._store.catalog.resolve(name)
        await self._store.functions.remove_function(name)
        self._store.catalog.remove(name)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove blobs that no bundle uses any more and no deploy is about to use."""
        await self._store.functions.remove_orphans()
        keep = await self._store.functions.referenced_blobs()
        for operation, _ in self._running.values():
            keep |= {file["sha256"] for file in operation.request["files"]}
        await asyncio.to_thread(
            self._store.blobs.sweep, keep, self._store.settings.blob_keep_s, self._wall()
        )


def replace_derived(request: WireDeploy) -> WireDeploy:
    """The request with its name taken as meant: that was checked when it was accepted."""
    return msgspec.structs.replace(request, derived_name=False)
