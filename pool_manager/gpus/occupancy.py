"""Measurement of replicas' GPU memory, and the proof that it was freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pool_manager.core.events import Greeted, Loaded
from pool_manager.driver import Processes
from pool_manager.gpus import memory
from pool_manager.host import HostOf
from pool_manager.ports import Charges
from registry.errors import DriverError
from registry.model.hosts import LOCAL_HOST, id_on
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.gpus import Reading


def _no_charges(_device: str, _id: str) -> Charges:
    return Charges(0.0, 0, 0.0)


class GpuOccupancy:
    """The GPUs and the processes of each replica, until its release is proved.

    `host_of` returns the host of a replica, with its processes and GPUs; `charges(device, id)`
    returns the ledger's charges. Only replicas on GPUs are covered.
    """

    def __init__(
        self,
        host_of: HostOf,
        charges: Callable[[str, str], Charges] = _no_charges,
    ) -> None:
        self._host_of = host_of
        self._charges = charges
        self._devices: dict[str, tuple[str, ...]] = {}
        self._before_mib: dict[str, dict[str, float]] = {}
        """MiB in use before each replica, by its devices; those that were unknown are missing."""
        self._pids: dict[str, frozenset[int]] = {}
        self._seen: dict[str, dict[str, Reading]] = {}
        """The GPUs of replicas that read them themselves, before the load, by UUID."""

    def covers(self, id: str) -> bool:
        """Whether a replica is on a GPU."""
        return id in self._devices

    def begin(self, id: str, devices: tuple[str, ...]) -> None:
        """Register a replica before its launch on devices, or before it gets its model there. The
        memory that it took as a standby counts as its own."""
        self.adopt(id, devices)
        for device in self._devices.get(id, ()):
            known_mib = self._before_mib.setdefault(id, {})
            used_mib = self._host_of(id).gpus.used_mib(device)
            if used_mib is not None:
                known_mib[device] = min(used_mib, known_mib.get(device, used_mib))

    def adopt(self, id: str, devices: tuple[str, ...]) -> None:
        """Register a replica of an earlier manager on devices."""
        view = self._host_of(id).gpus.view
        on_gpus = tuple(one for one in devices if view(one) is not None)
        if on_gpus:
            self._devices[id] = on_gpus

    def used_mib(self, id: str) -> float | None:
        """Return the MiB in use on a replica's GPUs as last polled, None if that is not known."""
        there = self._devices.get(id, ())
        used = [self._host_of(id).gpus.used_mib(device) for device in there]
        known = [mib for mib in used if mib is not None]
        return sum(known) if known else None

    def why_refused(self, event: Greeted) -> str:
        """Record the GPUs that a replica reads itself, and return why it must not load its model on
        them, "" if it may. Without a reading nothing is known, and it may.

        (1) A GPU of another replica on another device: the engine has given one GPU to both, where
        the ledger charges two. (2) Other GPUs than the ledger charges, where it knows which. (3)
        GPUs without the memory that the ledger expects to be free.
        """
        devices, seen = self._devices.get(event.id, ()), {one.uuid: one for one in event.gpus}
        if seen:  # also before the GPUs of its host are known, of one that is adopted
            self._seen[event.id] = seen
        if not devices or not seen or event.loaded:
            return ""
        return self._clash(event.id) or self._why_not_there(event.id, devices, seen)

    def _clash(self, id: str) -> str:
        """Return rule (1)."""
        devices, seen = set(self._devices[id]), self._seen[id].keys()
        for other, theirs in self._seen.items():
            shared, there = seen & theirs.keys(), set(self._devices.get(other, ()))
            if other != id and shared and there and not devices & there:
                return f"its host gave it {min(shared)}, which the replica {other} has already"
        return ""

    def _why_not_there(self, id: str, devices: Sequence[str], seen: Mapping[str, Reading]) -> str:
        """Return rules (2) and (3). A device whose id is no UUID stands for whichever GPU the
        engine chooses, all of one size (`Device.is_exclusive`)."""
        known = {one.id: one for one in self._host_of(id).gpus.devices() if one.id in devices}
        uuids = {one: one.rpartition("/")[2] for one in devices}
        if not seen.keys() >= set(uuids.values()):
            if any(not one.is_exclusive for one in known.values()):
                there, expected = " and ".join(sorted(seen)), " and ".join(uuids.values())
                return f"its host gave it {there}, expected {expected}"
            uuids = dict(zip(devices, sorted(seen), strict=False))
        for device, uuid in uuids.items():
            size_mib = known[device].memory_mib if device in known else 0.0
            expected_mib = size_mib - self._charges(device, id).others_mib
            if size_mib and (reason := memory.lacks_room(seen[uuid], expected_mib)):
                return reason
        return ""

    async def measure(self, event: Loaded, emit: Callable[[Loaded], None]) -> None:
        """Emit the event with the replica's GPU memory in place of its host memory, which is not
        accounted: the most that it takes of one of its GPUs, as each is charged the same. Where
        that is unknown, the charged memory is used."""
        pids, memory_mib = await self._known_pids(event.id), 0.0
        if not self.covers(event.id):
            return  # it was released or given up meanwhile
        gpus = self._host_of(event.id).gpus
        for device in self._devices[event.id]:
            charges = self._charges(device, event.id)
            before_mib = self._before_mib.get(event.id, {}).get(device)
            taken_mib = await gpus.taken_mib(device, pids, before_mib, is_alone=not charges.others)
            if taken_mib is None and not charges.others:
                taken_mib = self._grown_mib(event)
            memory_mib = max(memory_mib, charges.own_mib if taken_mib is None else taken_mib)
        report = event.report
        if report:
            report = {**report, "memory_mib": memory_mib}
        emit(replace(event, memory_mib=memory_mib, report=report))

    def _grown_mib(self, event: Loaded) -> float | None:
        """Return the MiB that a replica takes of one of its GPUs by its own readings, the most if
        they differ; None without readings. Only for one that is alone there."""
        before = self._seen.get(event.id, {})
        grown = (
            memory.grown_mib(before[one.uuid], one) for one in event.gpus if one.uuid in before
        )
        return max((mib for mib in grown if mib is not None), default=None)

    async def held_mib(self, id: str) -> dict[str, float | None]:
        """Return what the driver reports now of a replica's processes on each of its GPUs, None
        where it does not report them. Empty for a replica that is on none."""
        devices = self._devices.get(id, ())
        pids = await self._known_pids(id) if devices else None
        if pids is None:
            return dict.fromkeys(devices)
        gpus = self._host_of(id).gpus
        return {device: await gpus.held_mib(device, pids) for device in devices}

    async def release(self, id: str) -> None:
        """End a replica; return once each of its GPUs shows that it is gone. Raises DriverError.

        Its processes are listed first: after its end they cannot be distinguished from others, not
        even when the release is retried.
        """
        devices = self._devices.get(id, ())
        pids = await self._known_pids(id) if devices else None
        host = self._host_of(id)
        await host.driver.release(id)
        for device in devices:
            others_mib = partial(self._others_mib, device, id, await self._held_there(device, id))
            await host.gpus.prove_free(device, pids, others_mib)
        self.forget(id)

    def forget(self, id: str) -> None:
        """Drop what is known of a replica that is gone, or was given up with its host."""
        for known in (self._devices, self._before_mib, self._pids, self._seen):
            known.pop(id, None)

    def _others_mib(self, device: str, id: str, held_mib: float) -> float:
        return max(held_mib, self._charges(device, id).others_mib)

    async def _held_there(self, device: str, id: str) -> float:
        """Return what the driver reports of the other replicas on a GPU: a trial there may take far
        more than it is charged. 0 if it does not report them."""
        pids: set[int] = set()
        for other in [one for one, there in self._devices.items() if one != id and device in there]:
            pids |= await self._known_pids(other) or set()
        gpus = self._host_of(id).gpus
        return (await gpus.held_mib(device, frozenset(pids)) or 0.0) if pids else 0.0

    async def _known_pids(self, id: str) -> frozenset[int] | None:
        """Return all pids with which a replica was ever listed; None if it never was."""
        try:
            found = await self._host_of(id).processes.pids(id)
        except DriverError:
            found = None
        if found is not None:
            self._pids[id] = self._pids.get(id, frozenset()) | found
        return self._pids.get(id)


Tenants = Mapping[str, Mapping[str, frozenset[int] | None]]
"""The pids of replicas, as `Processes.pids`, by device and replica id."""


async def tenants_of(
    processes: Processes, running: Iterable[str], records: Mapping[str, ReplicaRecord | None]
) -> Tenants:
    """Return the running replicas on GPUs. Raises DriverError."""
    found: dict[str, dict[str, frozenset[int] | None]] = {}
    for id in running:
        if (record := records.get(id)) is not None and record.device_kind != "cpu":
            pids = await processes.pids(id)
            for device in record.devices:
                found.setdefault(device, {})[id] = pids
    return found


def foreign_memory(
    gpus: Iterable[Reading], tenants: Tenants, host: str = LOCAL_HOST
) -> dict[str, float]:
    """Return the MiB by UUID that others than the tenants have in use on a host's GPUs, which were
    read after those: the memory of one that has ended in between is not in the reading."""
    there = ((gpu, tenants.get(id_on(host, gpu.uuid), {})) for gpu in gpus)
    return {gpu.uuid: memory.foreign_mib(gpu, ours) for gpu, ours in there}
