"""Compiles models in the background, one at a time, and publishes the results to the pools.

`admin.deploy.due_builds` decides. A build begins when a device is free, and the pool manager ends
it as soon as a function waits for the device. Its state is stored before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from admin.deploy import due_builds
from admin.deploy.compiled_models import CompiledModels
from admin.deploy.due_builds import WantedBuild
from admin.pool_sync import PoolSync, binding, pool_spec
from admin.store import Store
from pool_manager.builds import PARITY, Built
from pool_manager.core.state import PoolSpec
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.subscribers import Subscribers
from registry.builds import Build, BuildEnd, DeviceType, Target, digest_of, group_of
from registry.catalog import Deployed
from registry.compilation import Compiled, TargetState, estimate_s, order_of
from registry.errors import (
    BuildFailed,
    FnError,
    Refused,
    ShuttingDown,
    StoreUnavailable,
)
from registry.tasks import Tasks
from runtime_image.contract.compiled import OTHER_KEY
from runtime_image.contract.model import ModelSpec

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""Seconds between two looks at free devices, and at a running build."""
STORE_S: Final = 30.0
"""Seconds without a build after its state could not be stored: it would be repeated for nothing."""
PATIENCE_S: Final = 30.0
"""Seconds that a build waits for a device that was free, before another one is tried."""
GIVEN_UP: Final = "its build was given up"
BUILD_MIB: Final = 1024.0
BUILD_SESSIONS: Final = 2
"""Memory of a build: `BUILD_MIB` for the compiler, and this many times what a replica takes, for
the ordinary and the compiled session."""


class Builds:
    """Background builds of one server. `wall` returns Unix seconds; `delay_s` is added to each
    build, for tests."""

    def __init__(  # noqa: PLR0913 - a period for tests beside the collaborators
        self,
        store: Store,
        manager: Manager,
        pools: PoolSync,
        models: CompiledModels,
        wall: Callable[[], float],
        *,
        delay_s: float = 0.0,
        look_s: float = LOOK_S,
    ) -> None:
        self._store = store
        self._manager = manager
        self._pools = pools
        self._models = models
        self._wall = wall
        self._delay_s = delay_s
        self._look_s = look_s
        self._tasks = Tasks("builds")
        self._news = asyncio.Event()
        self._changed = Subscribers[[str]]()
        self._running = self._waits_for = ""
        self._compiling: dict[str, list[tuple[Deployed, Target]]] = {}
        self._catalog_version = -1
        self._not_before_s = 0.0
        self._unsubscribe: Callable[[], None] = lambda: None
        self.outcomes: Counter[BuildEnd] = Counter()

    @property
    def tasks(self) -> Tasks:
        """The owner of the background tasks."""
        return self._tasks

    async def start(self) -> None:
        """Count the builds that an earlier server did not end, and begin to build."""
        builds, now_s = self._store.builds, self._wall()
        for target, build in list(builds.all_builds().items()):
            if build.state == "building":
                await builds.change(target, partial(due_builds.resumed, now_s=now_s))
        self._unsubscribe = self._manager.subscribe_not_compiled(self._on_not_compiled)
        self._tasks.root("build models", self._build_for_ever())

    async def close(self) -> None:
        """Stop. The next server begins a running build again."""
        self._unsubscribe()
        await self._tasks.close()
        if self.is_running:
            with contextlib.suppress(StoreUnavailable):
                await self._store.builds.change(self._running, due_builds.interrupted)

    def subscribe(self, receiver: Callable[[str], None]) -> Callable[[], None]:
        """Call `receiver` with the name of each function whose build changed; returns a function
        that unsubscribes."""
        return self._changed.subscribe(receiver)

    @property
    def is_running(self) -> bool:
        """Whether a replica compiles a model."""
        build = self._store.builds.build(self._running)
        return build is not None and build.state == "building"

    def waiting(self) -> int:
        """Return the number of functions whose model waits to be compiled for a type of device."""
        states = ((one, self._state(one.digest).state) for one in self._pending())
        return len({one.deployed.revision.key for one, state in states if state == "waiting"})

    async def prepare(self, name: str, *, now: bool) -> None:
        """Ask for the compiled models of a function, also after builds that failed or were given
        up. With `now` they are the next ones, and wait for a device.

        Raises UnknownFunction, or Refused if the function is not compiled.
        """
        deployed = self._store.catalog.resolve(name)
        target = self._models.target(deployed)
        if isinstance(target, str):
            why = target or 'its function.toml has no engine = "auto" or "tensorrt" in [runtime]'
            raise Refused(f"{deployed.revision.ref} is not compiled: {why}")
        for one in self._targets(deployed, target):
            if self._store.builds.compiled(one.digest) is None:
                await self._change(one.digest, partial(self._requested, one.digest, now))
        self._news.set()

    def _requested(self, digest: str, now: bool, build: Build) -> Build:
        """Return the state of a build after a request, which its end may have preceded."""
        if self._store.builds.compiled(digest) is not None:
            return build
        return due_builds.requested(build, is_urgent=now)

    def states(self, deployed: Deployed) -> list[TargetState] | str:
        """Return the state of a revision for each type of device that may run it, or why it is not
        compiled."""
        target = self._models.target(deployed)
        if isinstance(target, str):
            return target
        found = [self._state_of(one) for one in self._targets(deployed, target)]
        return found or [TargetState(target, Build(reason=due_builds.NO_TYPE))]

    def _state_of(self, target: Target) -> TargetState:
        digest = target.digest
        build = self._state(digest)
        if digest == self._running and build.state == "waiting" and self._waits_for:
            build = replace(build, reason=self._waits_for)
        return TargetState(target, build, self._store.builds.compiled(digest))

    def estimate_s(self, target: Target) -> float | None:
        """Return how long the build of a target will probably take, None if unknown."""
        bundles = self._store.bundles
        bundle = bundles.get(target.bundle)
        sizes = [
            (one, bundles[one.target.bundle].size)
            for one in self._store.builds.all_compiled()
            if one.target.bundle in bundles
        ]
        return estimate_s(target, bundle, sizes) if bundle else None

    def _state(self, digest: str) -> Build:
        return self._store.builds.build(digest) or Build()

    def _groups(self) -> dict[str, list[tuple[Deployed, Target]]]:
        """Return all revisions with the traffic that are compiled, by the group of their target."""
        catalog = self._store.catalog
        if self._catalog_version != catalog.version:
            self._catalog_version = catalog.version
            self._compiling = {}
            for one in catalog.all():
                if isinstance(target := self._models.target(one), Target):
                    self._compiling.setdefault(target.group, []).append((one, target))
        return self._compiling

    def _wanted(self, group: str) -> list[WantedBuild]:
        """Return the targets of a group that the traffic uses, on all types of device."""
        return [
            WantedBuild(deployed, one, digest_of(group, one.device))
            for deployed, target in self._groups().get(group, ())
            for one in self._targets(deployed, target)
        ]

    def _pending(self) -> list[WantedBuild]:
        """Return the targets without a compiled model, on all types of device.

        Asked for every second: where all types of device there are have one, the devices of each
        function are not looked at.
        """
        builds, types = self._store.builds, defaultdict[str, set[DeviceType]](set)
        for occupancy in self._manager.occupancies():
            types[occupancy.device.kind].add(occupancy.device.type)
        found: list[WantedBuild] = []
        for group, [(_, target), *_] in self._groups().items():
            there = {one.target.device for one in builds.compiled_in(group)}
            if not types[target.device_kind] <= there:
                found += [one for one in self._wanted(group) if one.target.device not in there]
        return found

    def _is_wanted(self, digest: str) -> bool:
        return any(one.digest == digest for one in self._wanted(group_of(digest)))

    def _targets(self, deployed: Deployed, target: Target) -> list[Target]:
        """Return a revision's target on each type of device that may run it."""
        devices = self._manager.suitable(deployed.revision.key)
        types = due_builds.device_types(devices, target.device_kind)
        return [replace(target, device=one) for one in types]

    def _next(self) -> WantedBuild | None:
        wanted = self._pending()
        if not wanted or self._wall() < self._not_before_s:
            return None
        there_are = (one.device for one in self._manager.occupancies() if one.state == "free")
        free = {(one.kind, one.type) for one in there_are}
        builds = self._store.builds.all_builds()
        return due_builds.next_build(wanted, builds, free, self._wall())

    async def _build_for_ever(self) -> None:
        while True:
            self._news.clear()
            found = None
            try:
                await self._share()
                found = self._next()
                if found is not None:
                    await self._build(found)
            except StoreUnavailable as error:
                log.error("the state of a build cannot be stored", reason=error.message)
                self._not_before_s = self._wall() + STORE_S
            finally:
                # Kept if the server closes, which stores the end of the running build.
                if not self._is_cancelled():
                    self._running = ""
            if found is None or not self._news.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        await self._news.wait()

    async def _share(self) -> None:
        """Use the result of a build on another host with the same model of device."""
        builds = self._store.builds
        wanted = self._pending() if self._wall() >= self._not_before_s else []
        for one in wanted:
            build = self._state(one.digest)
            found = due_builds.shared(one.target, build, builds.compiled_in(one.target.group))
            if found is not None:
                await self._publish(one, found)

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _build(self, wanted: WantedBuild) -> None:
        """Run one build to its end, and store the outcome."""
        self._running = wanted.digest
        outcome = await self._outcome(wanted)
        if outcome is None:
            return
        now_s = self._wall()
        if isinstance(outcome, Built):
            why = due_builds.refusal(wanted.target, outcome, self._state(wanted.digest))
            if not why:
                self.outcomes["done"] += 1
                await self._publish(wanted, due_builds.result(wanted.target, outcome, now_s))
                return
            outcome = BuildFailed(why, detail={PARITY: outcome.described.get("parity", [])})
        if isinstance(outcome, ShuttingDown):
            await self._change(wanted.digest, due_builds.interrupted)
            return
        failed = isinstance(outcome, BuildFailed)
        self.outcomes["failed" if failed else "given_up"] += 1
        ended = partial(due_builds.ended, error=outcome, now_s=now_s)
        await self._change(wanted.digest, ended)
        self._note(wanted.digest, f"{'not compiled' if failed else GIVEN_UP}: {outcome.message}")

    async def _outcome(self, wanted: WantedBuild) -> Built | FnError | None:
        """Follow a build in the pool manager; None if it was withdrawn, or found no device."""
        spec, bound = self._order(wanted)
        work: asyncio.Task[Built | FnError] = self._tasks.spawn(
            f"build {spec.key}", self._in_manager(spec, bound)
        )
        waited_s = 0.0
        try:
            while not (await asyncio.wait({work}, timeout=self._look_s))[0]:
                waited_s += self._look_s
                build = self._state(wanted.digest)
                if not self._is_wanted(wanted.digest):
                    await self._change(wanted.digest, due_builds.interrupted)
                    return None
                if build.state == "building":
                    continue
                there = (one for one in self._manager.builds() if one.key == spec.key)
                running = next(there, None)
                self._waits_for = running.waits_for if running else ""
                if running is not None and running.device:
                    begun = partial(due_builds.begun, now_s=self._wall())
                    await self._change(wanted.digest, begun)
                    self._note(wanted.digest, f"its build with {wanted.target.compiler} began")
                elif not build.is_urgent and (waited_s > PATIENCE_S or self._is_asked_for()):
                    postponed = partial(due_builds.postponed, now_s=self._wall())
                    await self._change(wanted.digest, postponed)
                    return None
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    def _is_asked_for(self) -> bool:
        """Return whether an operator waits for a build."""
        urgent = [
            digest for digest, one in self._store.builds.all_builds().items() if one.is_urgent
        ]
        return any(map(self._is_wanted, urgent))

    async def _in_manager(self, spec: PoolSpec, bound: Binding) -> Built | FnError:
        try:
            return await self._manager.build(spec, bound)
        except FnError as error:
            return error

    def _order(self, wanted: WantedBuild) -> tuple[PoolSpec, Binding]:
        """Return pool and binding of a build. It gets the compiler's measurements of the newest
        build with the same compiler on the same model of device."""
        deployed, target = wanted.deployed, wanted.target
        bundle = self._store.bundles[deployed.revision.bundle]
        like = (
            one
            for one in reversed(self._store.builds.all_compiled())
            if one.target.compiler == target.compiler
            and one.target.device.model == target.device.model
            and one.timing_cache
        )
        earlier = next(like, None)
        timing = earlier.timing_cache if earlier else None
        order = order_of(target, earlier, self._delay_s)
        spec = pool_spec(deployed, bundle)
        bound = binding(deployed, bundle)
        assert isinstance(bound.spec, ModelSpec)
        need_mib = BUILD_MIB + BUILD_SESSIONS * spec.memory_mib
        placed = replace(
            spec,
            min=0,
            max=1,
            device_kind=target.device_kind,
            memory_mib=need_mib,
            device_type=target.device,
        )
        return placed, replace(
            bound,
            spec=replace(bound.spec, build=order, optimise=deployed.revision.optimise),
            memory_mib=max(bound.memory_mib, round(need_mib)) if bound.memory_mib else 0,
            compiled=(timing,) if timing else (),
        )

    async def _publish(self, wanted: WantedBuild, compiled: Compiled) -> None:
        """Store a compiled model, and have all replicas of its revisions use it."""
        done = partial(due_builds.done, now_s=self._wall())
        await self._store.builds.put(compiled, done)
        self._changed_for(wanted.digest)
        for key in self._redefine(wanted.digest):
            self._tasks.spawn(f"upgrade {key}", self._upgrade(key, compiled))

    async def _upgrade(self, key: str, compiled: Compiled) -> None:
        """Have the ready replicas of a pool use a compiled model."""
        try:
            results = await self._manager.upgrade(key, compiled)
        except FnError as error:
            self._manager.note(key, f"compiled, but running replicas go on as they are: {error}")
            return
        took = f"{compiled.build_s:.0f} s on {compiled.device}"
        self._manager.note(key, f"compiled with {compiled.target.compiler} in {took}")
        for id, one in results.items():
            if one["reason"]:
                text = f"{id} does not use the compiled model: {one['reason']}"
                self._manager.note(key, text[: due_builds.REASON_MAX])

    def _on_not_compiled(self, key: str, type: DeviceType, reason: str) -> None:
        namespace, _, ref = key.partition("/")
        deployed = self._store.catalog.find(ref, namespace)
        there = self._models.of(deployed) if deployed else []
        compiled = next((one for one in there if one.target.device == type), None)
        if compiled is None:
            return
        digest = compiled.target.digest
        if not reason.startswith(OTHER_KEY) and self._state(digest).reason == reason:
            return
        self._tasks.spawn(f"refused {key}", self._refused(digest, compiled, reason))

    async def _refused(self, digest: str, compiled: Compiled, reason: str) -> None:
        """Handle a compiled model that a replica does not use: it is built again if its key does
        not fit, or if a file of it was damaged or is gone."""
        is_stale = reason.startswith(OTHER_KEY)
        lost: set[str] = set()
        try:
            if not is_stale:
                lost = await asyncio.to_thread(self._lost, compiled)
            if self._store.builds.compiled(digest) is not compiled:
                return
            if is_stale:
                stale = partial(due_builds.stale, key=compiled.model.key, reason=reason)
                await self._store.builds.drop(digest, stale)
            elif lost:
                await self._drop_lost(compiled, lost, reason)
            else:
                await self._store.builds.change(digest, partial(replace, reason=reason))
        except StoreUnavailable as error:
            log.error("the end of a compiled model cannot be stored", reason=error.message)
            return
        self._redefine(digest)
        self._note(digest, f"a replica does not use the compiled model: {reason}")
        self._news.set()

    def _lost(self, compiled: Compiled) -> set[str]:
        """Remove the damaged files of a compiled model; return the sha256 of all that are not
        there. Blocking."""
        blobs = self._store.blobs
        blobs.remove_damaged(compiled.files)
        return {file.sha256 for file in compiled.files if not blobs.is_stored(file)}

    async def _drop_lost(self, compiled: Compiled, lost: set[str], reason: str) -> None:
        """Have a compiled model built again whose files with these sha256 are lost, and with it
        those of other types of device that share a file."""
        builds = self._store.builds
        for one in builds.compiled_in(compiled.target.group):
            if not lost.isdisjoint(file.sha256 for file in one.files):
                lose = partial(due_builds.lost, reason=reason)
                await builds.drop(one.target.digest, lose)

    async def _change(self, digest: str, decide: Callable[[Build], Build]) -> None:
        await self._store.builds.change(digest, decide)
        self._changed_for(digest)

    def _redefine(self, digest: str) -> list[str]:
        """Have the pools of all revisions with this target defined anew; return their keys."""
        found = self._revisions(digest)
        for name, namespace in {(one.function.name, one.function.namespace) for one in found}:
            self._pools.define(namespace, name)
        return [one.revision.key for one in found]

    def _revisions(self, digest: str) -> list[Deployed]:
        group = group_of(digest)
        return [
            one
            for one in self._store.catalog.every()
            if isinstance(target := self._models.target(one), Target) and target.group == group
        ]

    def _note(self, digest: str, text: str) -> None:
        for one in self._revisions(digest):
            self._manager.note(one.revision.key, text)
        self._changed_for(digest)

    def _changed_for(self, digest: str) -> None:
        for one in self._wanted(group_of(digest)):
            if one.digest == digest:
                self._changed.notify(one.deployed.function.name)
