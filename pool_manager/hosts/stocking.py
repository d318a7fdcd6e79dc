"""Keeps model files on other hosts ahead of need, and their caches within their limits.

Which files a host should have is decided by `core.stocking`. One host gets one file set at a time,
so that the start of a replica there finds the connection at most half used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from pool_manager.core import events
from pool_manager.core.machine import Machine
from pool_manager.core.stocking import FileSet, HostSpace, stock_targets
from pool_manager.hosts.transfers import MIB
from pool_manager.ports import Binding
from registry.errors import DriverError, HostDown
from registry.model.bundles import BundleFile
from registry.tasks import Tasks

if TYPE_CHECKING:
    from pool_manager.fleet import Fleet
    from pool_manager.host import HostCache, ReplicaHost

log = structlog.get_logger()

PLAN_S: Final = 5.0
"""Shortest time between two plans."""
AGAIN_S: Final = 60.0
"""Pause after a failed transfer to a host."""
Stock = Mapping[str, int]
"""The bytes of the files of a cache by sha256."""


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A file set that replicas need, and its files. `optional` are groups of files that replicas
    are given, too, by the host that each is for, "" for all."""

    files: FileSet
    members: tuple[BundleFile, ...]
    optional: tuple[tuple[str, tuple[BundleFile, ...]], ...] = ()

    def groups(self, host: str) -> list[tuple[BundleFile, ...]]:
        """Return the files that a host should have, those that a start needs first."""
        return [self.members, *(group for name, group in self.optional if name in ("", host))]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """For one host: the file sets that it has, the groups of files that are to be sent, and the
    sha256 of all files that it should keep."""

    complete: frozenset[str]
    missing: tuple[tuple[BundleFile, ...], ...]
    kept: frozenset[str]


def plan(
    wanted: Sequence[CachedSet], rooms: Sequence[HostSpace], stocks: Mapping[str, Stock]
) -> dict[str, HostPlan]:
    """Return the plan of each host that is up; `stocks` are theirs by name, `rooms` are all hosts
    with a cache, also those that are away."""
    sets = {one.files.files: one for one in wanted}
    targets: dict[str, list[str]] = {}
    for host, files in stock_targets([one.files for one in wanted], rooms):
        targets.setdefault(host, []).append(files)
    plans = {}
    for name, stock in stocks.items():
        complete = frozenset(files for files, one in sets.items() if _has(stock, one.members))
        own = [group for files in targets.get(name, ()) for group in sets[files].groups(name)]
        kept = frozenset(file.sha256 for group in own for file in group)
        missing = tuple(group for group in own if not _has(stock, group))
        plans[name] = HostPlan(complete, missing, kept)
    return plans


def _has(stock: Stock, files: Collection[BundleFile]) -> bool:
    return all(one.sha256 in stock for one in files)


class Stocking:
    """Sends files to the hosts of `fleet` that have a cache, by plan."""

    def __init__(
        self,
        fleet: Fleet,
        emit: Callable[[events.Event], None],
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._emit = emit
        self._tasks = tasks
        self._clock = clock
        self._is_due = True
        self._next_s = 0.0
        self._busy: set[str] = set()
        self._paused_s: dict[str, float] = {}
        self._said: dict[str, events.HostStocked] = {}

    def touch(self) -> None:
        """Plan again soon: hosts, pools or caches have changed."""
        self._is_due = True

    def tick(self, machine: Machine, bindings: Mapping[str, Binding]) -> None:
        """Plan if something has changed. The plan is made in a thread: it compares the files of all
        pools with those of all hosts. `bindings` are those of pools by key."""
        now = self._clock()
        for name in [name for name, end_s in self._paused_s.items() if now >= end_s]:
            del self._paused_s[name]
            self._is_due = True
        if not self._is_due or now < self._next_s:
            return
        hosts = {one.name: one for one in self._fleet if one.files.cache_mib}
        if not hosts:
            return
        self._is_due, self._next_s = False, now + PLAN_S
        for name in self._said.keys() - hosts.keys():
            del self._said[name]
        wanted = list(_wanted(machine, bindings))
        kinds: dict[str, set[str]] = {}
        for device in machine.devices.values():
            kinds.setdefault(device.host, set()).add(device.kind)
        rooms, stocks = [], {}
        for name, host in hosts.items():
            record = machine.cluster.hosts.get(name)
            if record is None:
                continue
            limit_bytes = host.files.cache_mib * MIB
            rooms.append(HostSpace(replace(record), limit_bytes, kinds.get(name, ())))
            if (cache := host.files.cache) is not None:
                stocks[name] = dict(cache.stock)
        self._tasks.spawn("stocking", self._carry_out(wanted, rooms, stocks))

    async def _carry_out(
        self, wanted: list[CachedSet], rooms: list[HostSpace], stocks: Mapping[str, Stock]
    ) -> None:
        plans = await asyncio.to_thread(plan, wanted, rooms, stocks)
        for name, one in plans.items():
            host = self._fleet.find(name)
            cache = host.files.cache if host is not None else None
            if host is None or cache is None:
                continue
            images, speed = host.files.images, cache.bytes_per_s
            self._report(events.HostStocked(name, one.complete, images, speed))
            if name not in self._busy and name not in self._paused_s:
                self._busy.add(name)
                work = self._stock(host, cache, one.missing, one.kept)
                self._tasks.spawn(f"files of {name}", work)

    def _report(self, event: events.HostStocked) -> None:
        if self._said.get(event.host) != event:
            self._said[event.host] = event
            self._emit(event)

    async def _stock(
        self,
        host: ReplicaHost,
        cache: HostCache,
        groups: Sequence[Sequence[BundleFile]],
        kept: Collection[str],
    ) -> None:
        """Trim the cache, which makes room, then send files. A group that cannot be sent does not
        keep the others back."""
        failure: DriverError | None = None
        try:
            await cache.trim(host.files.cache_mib, kept)
            for files in groups:
                try:
                    await cache.send(files)
                except HostDown:
                    raise
                except DriverError as error:
                    failure = failure or error
            await cache.trim(host.files.cache_mib, kept)
        except DriverError as error:
            failure = failure or error
        finally:
            self._busy.discard(host.name)
            if groups:
                self.touch()
        if failure is not None:
            log.warning("files are not sent ahead", host=host.name, reason=failure.message)
            self._paused_s[host.name] = self._clock() + AGAIN_S


def _wanted(machine: Machine, bindings: Mapping[str, Binding]) -> Iterable[CachedSet]:
    """Yield the files of all pools that serve."""
    for key, pool in machine.pools.items():
        spec, binding = pool.spec, bindings.get(key)
        if binding is None or not spec.files or spec.role != "serve":
            continue
        required, prepared = binding.required, binding.prepared
        compiled = ((type.host, one.files) for type, one in binding.variants.items())
        files = FileSet(
            spec.files,
            required.size + sum(one.size for one in prepared),
            spec.file_hosts,
            spec.labels,
            spec.ability,
            spec.device_kind,
        )
        yield CachedSet(files, required.files, (("", prepared), *compiled))
