"""Operator actions on functions: deploy, roll back, scale, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import UNSET

from admin.deploy import remeasurement
from admin.deploy.changes import Changes, Removal, changed_settings
from admin.deploy.compiled_models import CompiledModels
from admin.deploy.image_rules import ImageRules
from admin.deploy.images import ImagePins
from admin.deploy.needs import HostNeeds
from admin.deploy.oip import same_version
from admin.deploy.operations import SWITCH, OperationRunner, Phase, Work
from admin.deploy.plan import (
    Plan,
    are_images_given,
    check_code,
    check_device,
    check_host,
    check_trial,
    derived_name_taken,
    plan,
)
from admin.deploy.python import PythonPackages
from admin.deploy.reading import RequestReader
from admin.deploy.revalidation import Revalidation
from admin.deploy.rollout import WARM_S, Rollout, check_compatible
from admin.deploy.servers import deployed_interface, deployed_server, with_wait
from admin.deploy.slots import slot_warnings
from admin.deploy.upstream_keys import UpstreamKeyReader
from admin.deploy.verify import TRIAL_WAIT_S, Verification, Verified
from admin.documents.deploys import OperationResult
from admin.documents.requests import DeployRequest, RollbackRequest
from admin.store import Store
from admin.views import neighbours, shown_profile
from gateway.admission.callers import Caller
from pool_manager.manager import Manager
from pool_manager.mounts import MountRules
from registry.batching import rows_of, summary
from registry.catalog import Deployed
from registry.errors import Conflict, Refused
from registry.media_values import media_values
from registry.model.functions import Function
from registry.model.operations import Operation
from registry.model.profiles import Contention
from registry.model.servers import ServerSettings
from registry.names import check_name
from registry.shares import Shares
from registry.spec import settings_equal
from registry.tasks import Tasks, every

Settled = Callable[[], Awaitable[object]]
CHECKED_MAX: Final = 64
"""Max deploy requests that are read and checked, or wait for it."""
SWEEP_S: Final = 600.0
"""Seconds between two sweeps of files that no deploy has used: also without any deploy they go."""


async def at_once() -> None:
    """Do nothing: `settled` of a server with one gateway process, which applies changes at once."""


class Deploys:
    """Accepts operator actions; slow ones run as operations of its `runner`.

    An operation changes nothing that callers see until its last step. A staged revision is removed
    again if it gets no traffic.
    """

    def __init__(  # noqa: PLR0913 - settings of deploys beside their collaborators
        self,
        store: Store,
        manager: Manager,
        *,
        idle_s: float,
        wall: Callable[[], float],
        rules: ImageRules,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        settled: Settled = at_once,
        prepare: bool = True,
        trial_wait_s: float = TRIAL_WAIT_S,
        mounts: MountRules | None = None,
        models: CompiledModels | None = None,
        packages: PythonPackages | None = None,
    ) -> None:
        """`idle_s` is the idle time of functions that set none. `wall` returns Unix seconds.
        `pause` is awaited between two attempts to store an operation's end. `settled` is awaited
        before an operation is done, until every gateway process has applied its change. With
        `prepare`, trials also prepare the files that later cold starts load. `trial_wait_s` as in
        `Verification`. `mounts` are the folders that servers may mount. `models` are the compiled
        models. `rules` are those of images. `packages` are those of Python functions, None for a
        server without any."""
        models = models or CompiledModels(store.builds, "tensorrt")
        self._store = store
        self._manager = manager
        self._idle_s = idle_s
        self._wall = wall
        self._settled = settled
        self._models = models
        self._tasks = Tasks("deploys")
        self._requests = RequestReader()
        self._checked = Shares("deploy requests are being checked", CHECKED_MAX)
        self._removal = Removal(store, models)
        self._needs = HostNeeds(store, mounts or MountRules(), manager.hosts)
        self.packages = packages
        self.pins = ImagePins(store, manager.images, rules)
        self._verification = Verification(
            store,
            manager,
            prepare=prepare,
            compiler=models.compiler,
            trial_wait_s=trial_wait_s,
            wall=wall,
        )
        self.upstream_keys = UpstreamKeyReader(store)
        self._changes = Changes(store, self.upstream_keys)
        self._rollout = Rollout(store, manager, self._changes, compiled_of=models.of)
        self._revalidation = Revalidation(
            store, manager, self._changes, self._verification, pause, wall=wall
        )
        self.runner = OperationRunner(
            store.operations,
            {"deploy": self._known(self._deploy), "rollback": self._known(self._roll_back)},
            self._undo,
            wall,
            pause,
        )

    async def resume(self) -> None:
        """Resume operations of an earlier server, and remove revisions that nothing will finish."""
        await self.upstream_keys.open()
        running = await self._store.operations.running()
        await self._changes.unstage_abandoned({operation.id for operation in running})
        await self.pins.sweep()
        await self.runner.resume()
        self._revalidation.start()
        if self.packages is not None:
            self.packages.restore_all(lambda one: self._manager.retry(one.revision.key))
        self._removal.settle()
        self._tasks.root("sweep unneeded files", every(SWEEP_S, self._sweep_later))

    async def close(self) -> None:
        """Stop. The next server resumes operations that are running."""
        await self._tasks.close()
        await self._revalidation.close()
        await self.runner.close()
        await self._rollout.close()
        await self.pins.close()
        if self.packages is not None:
            await self.packages.close()
        await self.upstream_keys.close()

    def measure_again(self, deployed: Deployed, *, now: bool) -> None:
        """Have a model measured again; see `Revalidation.measure_again`."""
        self._revalidation.measure_again(deployed, now=now)

    async def start(self, name: str, request: DeployRequest, caller: Caller) -> Operation:
        """Check and accept a deploy.

        Raises Refused, BadRequest, WrongScope, Conflict or QueueFull, changing nothing. A secret or
        a folder that the server needs must be there.
        """
        with self._checked.place(caller.id):
            draft = await self._plan(name, request, caller)
            server = draft.revision.server
            if server is not None and server.image is not None:
                await self.pins.source(server.image, caller.scopes)
            await self._requests.run(caller.id, lambda: self._check_files(draft))
            await self._needs.check(draft.revision)
            return await self.runner.accept("deploy", name, msgspec.to_builtins(request), caller)

    async def roll_back(self, name: str, request: RollbackRequest, caller: Caller) -> Operation:
        """Check and accept a rollback to the named revision, or to the one that had the traffic
        before.

        Raises UnknownFunction, UnknownRevision, Incompatible, QueueFull, Refused if a secret or a
        folder that the revision needs is missing, or Conflict if no revision had the traffic
        before.
        """
        current = self._store.catalog.resolve(check_name(name))
        number = request.to
        if number is None:
            number = await self._store.traffic.previous(name)
        if number is None:
            there = ", ".join(str(one.revision.number) for one in self._revisions(name))
            raise Conflict(
                f"no revision had the traffic of {name} before {current.revision.ref}; name one"
                f" with --to: {there}"
            )
        target = self._store.catalog.resolve(f"{name}@{number}")
        if target.revision == current.revision:
            raise Conflict(f"calls of {name} go to {current.revision.ref} already")
        check_compatible(current.revision, target.revision, request.breaking)
        await self._needs.check(target.revision)
        wanted = {"to": number, "breaking": request.breaking, "now": request.now}
        return await self.runner.accept("rollback", name, wanted, caller)

    async def restore(self, deployed: Deployed, seconds: float) -> bool:
        """Get the image or the packages of a revision again if they are gone; wait up to `seconds`.
        Return whether they were. Raises FnError."""
        if self.packages is not None and await self.packages.restore(deployed, seconds):
            return True
        return await self.pins.restore(deployed, seconds)

    async def rescale(self, name: str, match: str | None, changes: Mapping[str, Any]) -> Function:
        """Change how many replicas a function has; raises what `Changes.rescale` raises."""
        return await self._changes.rescale(check_name(name), match, changes)

    def warnings(self, name: str) -> list[str]:
        """Return what to say after a change of a function; [] also if it was removed meanwhile."""
        catalog, subject = self._store.catalog, self._store.catalog.find(name)
        return slot_warnings(subject, catalog.all(), self._manager.hosts()) if subject else []

    async def add_alias(self, name: str, alias: str) -> tuple[Function, bool]:
        """Give a function's model a further name; raises what `Changes.add_alias` raises, and
        Conflict for the name of a function whose first deploy runs."""
        if any(one.name == alias for one in self.runner.running()):
            text = f"{alias} is the name of a function that is being deployed"
            raise Conflict(text, detail={"function": alias})
        return await self._changes.add_alias(check_name(name), alias)

    async def remove_alias(self, alias: str) -> Function:
        """Take an alias from its function; raises what `Changes.remove_alias` raises."""
        return await self._changes.remove_alias(alias)

    async def remove(self, name: str) -> None:
        """Remove a function with all its revisions, and cancel its running operations.

        Raises UnknownFunction.
        """
        self._store.catalog.resolve(name)
        for operation in self.runner.running():
            if operation.name == name:
                self.runner.request_cancel(operation.id)
        async with self.runner.work_on(name):
            await self._removal.remove(name)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove files that no revision uses and no running deploy is about to use."""
        bundles = (one.request.get("files", ()) for one in self.runner.running())
        in_use = {file["sha256"] for files in bundles for file in files}
        await self._removal.sweep(in_use, self._wall())
        await self.pins.sweep()
        if self.packages is not None:
            await self.packages.sweep(self._wall())
            await self._manager.remove_old_runners()

    def _sweep_later(self) -> None:
        self._tasks.spawn("sweep", self.sweep())

    def _known(self, work: Work) -> Work:
        """Return `work` followed by a wait until every gateway process has applied its change."""

        async def done(operation: Operation, phase: Phase) -> OperationResult:
            result = await work(operation, phase)
            await self._settled()
            return result

        return done

    async def _plan(self, name: str, request: DeployRequest, caller: Caller) -> Plan:
        asked = await self._requests.read(caller.id, name, request)
        draft = plan(name, request, asked, self._store.catalog, self._wall(), self._idle_s)
        hosts = self._manager.hosts()
        check_device(draft, self._manager.devices())
        check_host(draft, hosts)
        check_trial(draft, hosts)
        check_code(draft, hosts, caller.scopes)
        return draft

    def _check_files(self, draft: Plan) -> None:
        self._verification.check_files(draft)
        if self.packages is not None:
            self.packages.check(draft)

    def _revisions(self, name: str) -> tuple[Deployed, ...]:
        return self._store.catalog.revisions(name)

    async def _undo(self, operation: Operation) -> None:
        """Remove what an operation left behind that did not succeed."""
        await self._changes.unstage(operation.id)
        await self.pins.sweep()

    async def _deploy(self, operation: Operation, phase: Phase) -> OperationResult:
        request = msgspec.convert(operation.request, DeployRequest)
        # A name that did not exist at accept time may exist now, created by this very deploy.
        unnamed = msgspec.structs.replace(request, derived_name=False)
        caller = Caller(operation.party, operation.scopes)
        draft = await self._plan(operation.name, unnamed, caller)
        draft = await self._needs.resolved(draft)
        server = draft.revision.server
        if server is not None and server.image is not None:
            result = await self._deployed_image(draft, server, request, operation, phase)
        elif server is not None and server.python is not None:
            result = await self._deployed_python(draft, request, operation, phase)
        else:
            result = await self._deployed(draft, request, operation, phase)
        result.files, result.size = len(request.files), sum(file.size for file in request.files)
        result.warnings = self.warnings(operation.name) or UNSET
        return result

    async def _deployed_image(
        self,
        draft: Plan,
        server: ServerSettings,
        request: DeployRequest,
        operation: Operation,
        phase: Phase,
    ) -> OperationResult:
        try:
            hidden: list[str] = []
            if are_images_given(draft.revision, self._manager.hosts()):
                known = self._store.catalog.find(operation.name) if not request.pull else None
                pinned = await self.pins.given(server, operation, known)
            else:
                async with self.runner.aside(operation.id):
                    pinned = await self.pins.pinned(server, operation, phase, pull=request.pull)
                hidden = await self.pins.hidden(pinned)
            draft = replace(draft, revision=replace(draft.revision, server=pinned))
            result = await self._deployed(draft, request, operation, phase)
            if result.server is not UNSET:
                result.server.hidden = hidden
        finally:
            self.pins.release(operation.id)
        return result

    async def _deployed_python(
        self, draft: Plan, request: DeployRequest, operation: Operation, phase: Phase
    ) -> OperationResult:
        if self.packages is None:
            raise Refused("python: expected a server with a folder for packages, got none")
        try:
            async with self.runner.aside(operation.id):
                draft = await self.packages.prepared(draft, operation, phase)
            return await self._deployed(draft, request, operation, phase)
        finally:
            self.packages.release(operation.id)

    async def _deployed(
        self, draft: Plan, request: DeployRequest, operation: Operation, phase: Phase
    ) -> OperationResult:
        """Try a draft whose needs are there, and move the traffic to it; return the result."""
        current = self._store.catalog.find(operation.name)
        # Read before the trial: the trial may evict the function's idle replica.
        was_awake = self._rollout.is_awake(operation.name)
        if current is not None and not request.traffic:
            return await self._aside(draft, request, operation, phase)
        is_same = current is not None and settings_equal(current.revision, draft.revision)
        if current is not None and is_same and self._verification.has_candidate(current):
            if not request.measure:
                await phase(SWITCH)
                return await self._keep(current, with_wait(draft, current.profile))
            measured = await self._measured(current, request, operation, phase)
            kept = await self._keep(measured, with_wait(draft, measured.profile))
            kept.batching = summary(measured.revision, measured.profile)
            return kept
        if current is not None and request.derived_name and not draft.is_meant:
            raise derived_name_taken(operation.name)
        staged = await self._changes.staged(operation.id, operation.name)
        sample: dict[str, Any] = {}
        made_room = ""
        if staged is None:
            verified = await self._verified(draft, request, operation, phase)
            sample, made_room = verified.sample, verified.made_room
            if current is None:
                return await self._first(with_wait(draft, verified.profile), verified, phase)
            check_compatible(current.revision, verified.revision, request.breaking)
            staged = await self._changes.stage(draft, verified, operation.id)
        function = with_wait(draft, staged.profile).function
        how = await self._rollout.to(staged, phase, function, was_awake=was_awake, now=request.now)
        await self._tidy(operation.name)
        serving = replace(staged, function=function)
        result = self._result(serving, sample, how)
        result.compiled = self._models.summary(serving) or UNSET
        result.made_room = made_room or UNSET
        return result

    async def _verified(
        self, draft: Plan, request: DeployRequest, operation: Operation, phase: Phase
    ) -> Verified:
        """Run the trial that a request asks for; return its result. Raises FnError."""
        return await self._verification.verify(
            draft,
            operation.id,
            operation.party,
            phase,
            measure=request.measure,
            evict=request.evict,
        )

    async def _measured(
        self, current: Deployed, request: DeployRequest, operation: Operation, phase: Phase
    ) -> Deployed:
        """Measure a revision again for a deploy of the same; return it with its new profile."""
        found = current.revision
        old = Plan(current.function, found, self._store.bundles[found.bundle])
        verified = await self._verification.verify(
            old, operation.id, operation.party, phase, measure=True, evict=request.evict
        )
        profile, now_s = verified.profile, self._wall()
        if current.profile is not None:
            # An operator's measurement begins the attempts anew.
            before = replace(
                current.profile, contention=Contention(current.profile.contention.state)
            )
            profile = remeasurement.remeasured(before, profile, now_s)
        await phase(SWITCH)
        await self._changes.keep_profile(found, profile)
        return replace(current, profile=profile)

    async def _aside(
        self, draft: Plan, request: DeployRequest, operation: Operation, phase: Phase
    ) -> OperationResult:
        """Add a revision that plain calls do not go to, unless the newest one of its version is the
        same."""
        name = operation.name
        same = same_version(draft.revision, self._store.catalog)
        if same is not None:
            return _unchanged(same, [])
        verified = await self._verified(draft, request, operation, phase)
        await phase(SWITCH)
        added = await self._changes.add(draft, verified)
        current = f"{name}@{added.function.revision}"
        await self._tidy(name)
        return self._result(added, verified.sample, f"calls of {name} still go to {current}")

    async def _keep(self, current: Deployed, draft: Plan) -> OperationResult:
        """Apply a deploy of the same bundle and revision settings: only other settings change."""
        changed = changed_settings(current.function, draft.function)
        await self._changes.keep(draft, current)
        return _unchanged(replace(current, function=draft.function), changed)

    async def _first(self, draft: Plan, verified: Verified, phase: Phase) -> OperationResult:
        await phase(SWITCH)
        deployed = await self._changes.first(draft, verified)
        await self._tidy(draft.function.name)
        ref = deployed.revision.ref
        how = f"calls of {draft.function.name} go to {ref}, which is cold"
        result = self._result(deployed, verified.sample, how)
        result.compiled = self._models.summary(deployed) or UNSET
        return result

    def _result(self, deployed: Deployed, sample: dict[str, Any], how: str) -> OperationResult:
        revision, profile = deployed.revision, deployed.profile
        return OperationResult(
            revision=revision.ref,
            created=True,
            sample={**sample, "revision": revision.ref} if sample else {},
            profile=shown_profile(profile),
            batch_max=rows_of(revision, profile),
            batching=summary(revision, profile),
            switch=how,
            media=media_values(revision.signature, revision.inputs) or UNSET,
            neighbours=neighbours(deployed, self._manager.devices()) or UNSET,
            server=deployed_server(deployed),
            interface=deployed_interface(revision),
        )

    async def _roll_back(self, operation: Operation, phase: Phase) -> OperationResult:
        request = msgspec.convert(operation.request, RollbackRequest)
        current = self._store.catalog.resolve(operation.name)
        target = self._store.catalog.resolve(f"{operation.name}@{request.to}")
        before, after = current.revision, target.revision
        how = f"calls of {operation.name} go to {after.ref} already"
        # True after a resume (the earlier server died after the switch) and for repeated rollbacks.
        if before != after:
            check_compatible(before, after, request.breaking)
            async with self.runner.aside(operation.id):
                await self.restore(target, WARM_S)
            how = await self._rollout.to(target, phase, now=request.now)
        return OperationResult(revision=after.ref, from_=before.ref, switch=how)

    async def _tidy(self, name: str) -> None:
        await self._removal.trim(name)
        await self.sweep()


def _unchanged(deployed: Deployed, changed: list[str]) -> OperationResult:
    """Return the result of a deploy of the same bundle and settings; `changed`: settings of the
    function that are no part of a revision."""
    ref = deployed.revision.ref
    return OperationResult(
        revision=ref,
        created=False,
        changed=changed,
        profile=shown_profile(deployed.profile),
        switch=f"the same bundle and settings as {ref}",
        server=deployed_server(deployed),
        interface=deployed_interface(deployed.revision),
    )
