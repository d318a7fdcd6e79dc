"""Ledger of devices and memory banks: charges of replicas, reservations, cordons, refusals."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from pool_manager.core.gpus.topology import Topology
from pool_manager.core.hosts import DeviceGroup, Fleet, HostParts, HostRecord, HostWish
from pool_manager.core.state import Cordon, Device, Refusal
from registry.builds import DeviceType
from registry.model.hosts import Ability

RESERVE_MIB = 256.0
"""Memory kept free in every bank: allocators fragment, and the first large batch needs more."""
SHARE_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Need:
    """Resources that one replica of `pool` needs: a device of `kind` ("any" for all kinds), a share
    of it (above 0, at most 1 = the whole device), and MiB of its memory bank.

    `takes_rest`: take the share that other replicas leave, the whole device if it is empty.
    `labels` are those that its host must have, `ability` is what it must be able to run, None for
    models. `files` (of `bundle_bytes`) and `image` must be on the host before it starts,
    "" for none. `spread_from` has the hosts of the function's replicas, once per replica; it is
    empty unless they prefer different hosts. `device_type` is that of the device, None for any.
    """

    pool: str
    kind: str = "any"
    share: float = 1.0
    memory_mib: float = 0.0
    takes_rest: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    ability: Ability | None = None
    files: str = ""
    bundle_bytes: int = 0
    image: str = ""
    spread_from: tuple[str, ...] = ()
    device_type: DeviceType | None = None
    host: str = ""
    """The only host whose devices will do, "" for any."""
    count: int = 1
    """Number of devices, all of one host and model; `share` and `memory_mib` are those of each.
    Several are whole GPUs, never MIG slices."""
    unserved_since_s: float = inf
    """Since when calls of the pool wait and no replica can serve them; infinite if none wait."""
    has_memory: bool = False
    """Whether its memory is charged already: that of a kept replica, which only needs a slot."""
    only: tuple[str, ...] = ()
    """The only devices that will do: those of a parked replica; () for any."""

    @property
    def is_started(self) -> bool:
        """Whether its replica runs already, so that the engine of its host has placed it: it was
        kept without a CPU slot, or is parked."""
        return self.has_memory or bool(self.only)

    def takes(self, device: Device) -> bool:
        """Whether a device is of the kind and type, on the host."""
        if self.only and device.id not in self.only:
            return False
        is_there = self.host in ("", device.host)
        is_kind = self.kind in ("any", device.kind)
        if self.count > 1 and (device.kind != "cuda" or device.is_slice):
            return False
        # The type of a device is made anew each time: it is asked for only where it matters.
        is_type = self.device_type is None or self.device_type == device.type
        return is_there and is_kind and is_type


@dataclass(frozen=True, slots=True)
class Charge:
    """Resources that one replica holds."""

    devices: tuple[str, ...]
    """Ids of its devices; none for a standby, for a replica that is kept without a CPU slot and for
    one that is parked, which take only memory."""
    banks: tuple[str, ...]
    """The memory bank of each device, in their order, "" of one that is not known; without devices,
    the banks that it takes memory of."""
    share: float
    """Share of each device."""
    memory_mib: float
    """MiB for each of the banks."""
    host_bank: str = ""
    """The bank of its host's memory from which a server that sleeps, or has slept, takes memory
    besides; "" for none."""
    host_mib: float = 0.0
    """MiB for that bank."""

    @property
    def all_banks(self) -> tuple[str, ...]:
        """Every bank that it takes memory of."""
        return (*self.banks, self.host_bank) if self.host_bank else self.banks

    @property
    def is_parked(self) -> bool:
        """Whether it is that of a server that sleeps."""
        return bool(self.host_bank) and not self.devices

    def mib_in(self, bank: str) -> float:
        """Return the MiB that it takes of a bank."""
        mib = self.memory_mib * self.banks.count(bank)
        return mib + self.host_mib if bank == self.host_bank else mib


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices kept for a need while `victims` leave: no other pool gets one of them, or the memory
    that they free."""

    need: Need
    devices: tuple[str, ...]
    """Ids of the devices; none if only the function's `max` was in the way."""
    victims: tuple[str, ...]
    """Ids of the replicas that leave."""
    since_s: float
    """When the devices were reserved."""


@dataclass(frozen=True, slots=True)
class StandingClaim:
    """Devices on which pools whose calls began to wait later get nothing new, until the pool that
    claims them has several devices at once."""

    pool: str
    devices: tuple[str, ...]
    """Ids of the devices, all of one host."""
    since_s: float
    """Since when its calls wait."""

    def bars(self, device: str, need: Need) -> bool:
        """Whether a need may not have a device because of the claim."""
        if device not in self.devices or need.pool == self.pool:
            return False
        return (need.unserved_since_s, need.pool) > (self.since_s, self.pool)


class Ledger:
    """Charges by replica, from its record until STOPPED; reservations, cordons and refusals by
    device.

    `hosts` has the records of hosts: labels, abilities, link, files. A host without a record has no
    labels and is as near as the local one. `closed` has the hosts where nothing may be placed, with
    reasons. `has_one_host`: all devices are on the same host. `claim` is the standing claim of one
    pool, `gangs` has the pools whose replicas take several devices.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices: dict[str, Device] = {}
        self.reservations: dict[str, Reservation] = {}
        self.cordons: dict[str, Cordon] = {}
        self.refusals: dict[str, Refusal] = {}
        self.hosts: dict[str, HostRecord] = {}
        self.closed: dict[str, str] = {}
        self.claim: StandingClaim | None = None
        self.gangs: set[str] = set()
        self._charges: dict[str, Charge] = {}
        self._on: dict[str, dict[str, Charge]] = {}
        self._in: dict[str, dict[str, Charge]] = {}
        self._used: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        self._reserved: dict[str, dict[str, Reservation]] = {}
        self._given_up: set[str] = set()
        self._claimed: set[str] = set()
        self._empty: dict[str, int] = {}
        self._free: dict[str, float] = {}
        self._groups: dict[tuple[str, str], DeviceGroup] = {}
        self._with_empty: dict[tuple[str, str], DeviceGroup] = {}
        self._banks: dict[str, list[str]] = {}
        self._parts: dict[str, HostParts] = {}
        self._numbers = itertools.count()
        self.has_one_host = True
        self._fleets: dict[HostWish, Fleet] = {}
        self._refusing: dict[HostWish, list[str]] = {}
        self._topologies: dict[str, Topology] = {}
        self._host_mib: dict[str, float] = {}
        self.add_devices(devices)

    def add_devices(self, devices: Iterable[Device]) -> None:
        """Add devices, or replace their settings. Replicas that are charged to a device before it
        is known, because they were adopted, are charged to its bank from now on."""
        added = {device.id: device for device in devices}
        for device in added.values():
            self.devices[device.id] = device
            parts = self._parts.setdefault(device.host, HostParts())
            parts.devices.setdefault(device.id, next(self._numbers))
            self._on.setdefault(device.id, {})
            self._recount_share(device.id)
        self._recount(dict.fromkeys(device.host for device in added.values()))
        charges = list(self._charges.items())
        for id, charge in (one for one in charges if not added.keys().isdisjoint(one[1].devices)):
            # A standby has a bank without a device.
            for held, bank in zip(charge.devices, charge.banks, strict=False):
                known = self.devices.get(held)
                if known and (id not in self._on[held] or bank != known.bank):
                    self.charge(id, charge.devices, charge.share, charge.memory_mib)
                    break

    def remove_devices(self, ids: Iterable[str]) -> None:
        """Remove devices, their cordons and their refusals. They must not be reserved. Charges of
        replicas that are left there stay until they are released."""
        hosts: dict[str, None] = {}
        for id in ids:
            assert id not in self.reservations
            host = self.devices[id].host
            hosts[host] = None
            del self._parts[host].devices[id]
            del self.devices[id], self._on[id], self._free[id]
            self._empty.pop(id, None)
            self.cordons.pop(id, None)
            self.refusals.pop(id, None)
        self._recount(hosts)

    def _recount(self, hosts: Iterable[str]) -> None:
        """Build the indexes of these hosts anew. A host has its own devices and banks, so that
        those of a thousand others stay as they are."""
        self.forget_fleets()
        for host in hosts:
            self._topologies.pop(host, None)
            parts = self._parts.setdefault(host, HostParts())
            for bank in parts.banks:
                self._sizes.pop(bank, None)
                self._banks.pop(bank, None)
            parts.banks.clear()
            for kind in ("cpu", "cuda"):
                if group := self._groups.get((host, kind)):
                    group.devices.clear()
                    group.empty.clear()
                    group.fullest = None
            self._index(host, parts)
            if not parts.devices and not parts.banks:
                del self._parts[host]
        self.has_one_host = len({host for host, _ in self._groups}) <= 1

    def _index(self, host: str, parts: HostParts) -> None:
        """Add the devices of a host to its indexes, which are empty."""
        for id, number in parts.devices.items():
            device = self.devices[id]
            parts.banks.add(device.bank)
            self._sizes[device.bank] = max(device.memory_mib, self._sizes.get(device.bank, 0.0))
            self._banks.setdefault(device.bank, []).append(id)
            key = host, device.kind
            self._groups.setdefault(key, DeviceGroup(*key)).devices[id] = number
        for bank in parts.banks:
            self._banks[bank].sort()
        empty = (id for id in parts.devices if id in self._empty)
        for id in sorted(empty, key=self._empty.__getitem__):
            self._groups[host, self.devices[id].kind].empty[id] = self._empty[id]
        for key in ((host, "cpu"), (host, "cuda")):
            group = self._groups.get(key)
            if group is not None and not group.devices:
                del self._groups[key]
            if group is not None and group.empty:
                self._with_empty[key] = group
            else:
                self._with_empty.pop(key, None)
        if memory_mib := self._host_mib.get(host):
            bank = self.host_bank(host)
            self._sizes.setdefault(bank, memory_mib)
            parts.banks.add(bank)

    def _recount_share(self, device: str) -> None:
        """Update what depends on the shares of a device's replicas."""
        there, known = self._on[device], self.devices[device]
        is_taken = known.is_exclusive and there
        self._free[device] = 0.0 if is_taken else 1.0 - sum([one.share for one in there.values()])
        key = known.host, known.kind
        group = self._groups.get(key)
        if group is not None:
            group.fullest = None
        if not there and device not in self._empty:
            self._empty[device] = next(self._numbers)
            if group is not None and device in group.devices:
                group.empty[device] = self._empty[device]
                self._with_empty[key] = group
        elif there and device in self._empty:
            del self._empty[device]
            if group is not None and group.empty.pop(device, None) is not None and not group.empty:
                del self._with_empty[key]

    def set_host_memory(self, host: str, memory_mib: float) -> None:
        """Set the memory of a host that replicas may take, 0 if it is not accounted; that of a host
        with CPU slots is the size of their bank."""
        self._host_mib.pop(host, None)
        if memory_mib:
            self._host_mib[host] = memory_mib
        self._recount([host])

    def host_bank(self, host: str) -> str:
        """Return the bank of a host's memory: that of its CPU slots, else one of its own."""
        slots = self._groups.get((host, "cpu"))
        if slots is None:
            return f"{host}/memory"
        return self.devices[next(iter(slots.devices))].bank

    def reserved_on(self, host: str) -> list[Reservation]:
        """Return the reservations of the devices of a host, each once."""
        there = {
            one.need.pool: one
            for id, one in self.reservations.items()
            if self.devices[id].host == host
        }
        return list(there.values())

    def close_host(self, host: str, reason: str) -> None:
        """Place nothing on a host until `open_host`. None of its devices may be reserved."""
        assert not self.reserved_on(host)
        self.closed[host] = reason
        self.forget_fleets()

    def open_host(self, host: str) -> None:
        """Allow replicas on a host again, if it was closed."""
        self.closed.pop(host, None)
        self.forget_fleets()

    def charge(self, id: str, devices: tuple[str, ...], share: float, memory_mib: float) -> None:
        """Charge replica `id` with a share and MiB of each of its devices; replaces an earlier
        charge."""
        was = self._charges.get(id)
        host = ("", 0.0) if was is None else (was.host_bank, was.host_mib)
        self.release(id)
        self._put(id, Charge(devices, self._banks_of(devices), share, memory_mib, *host))

    def charge_bank(self, id: str, bank: str, memory_mib: float) -> None:
        """Charge a replica that takes memory and no device."""
        self.release(id)
        self._put(id, Charge((), (bank,), 0.0, memory_mib))

    def recharge(self, id: str, memory_mib: float) -> None:
        """Replace the memory of a replica's charge by the measured value."""
        self._recharge(id, replace(self._charges[id], memory_mib=memory_mib))

    def take_host_memory(self, id: str, bank: str, memory_mib: float) -> None:
        """Charge a replica memory of its host besides."""
        self._recharge(id, replace(self._charges[id], host_bank=bank, host_mib=memory_mib))

    def leave_host_memory(self, id: str) -> None:
        """Charge a replica no memory of its host besides."""
        self._recharge(id, replace(self._charges[id], host_bank="", host_mib=0.0))

    def leave_devices(self, id: str, residue_mib: float) -> None:
        """Charge a replica no share of its devices any more, and this memory on each: it is
        parked."""
        was = self._charges[id]
        self._recharge(id, replace(was, devices=(), share=0.0, memory_mib=residue_mib))

    def _recharge(self, id: str, charge: Charge) -> None:
        self.release(id)
        self._put(id, charge)

    def take_slot(self, id: str, device: str, share: float) -> None:
        """Charge a kept replica a share of a CPU slot of its bank, beside its memory."""
        self._put_on(id, (device,), share)

    def leave_slot(self, id: str) -> None:
        """Charge a replica only its memory: it is kept."""
        self._put_on(id, (), 0.0)

    def has_slot(self, id: str) -> bool:
        """Whether a replica is charged a device, and not only memory."""
        return bool(self._charges[id].devices)

    def _put_on(self, id: str, devices: tuple[str, ...], share: float) -> None:
        """Replace the devices of a replica's charge; its memory stays."""
        was = self._charges[id]
        self._leave_devices(id, was)
        charge = replace(was, devices=devices, share=share)
        self._charges[id] = charge
        for bank in charge.all_banks:
            self._in[bank][id] = charge
        self._enter_devices(id, charge)

    def release(self, id: str) -> None:
        """Remove a replica's charge, if it has one."""
        charge = self._charges.pop(id, None)
        if charge is None:
            return
        for bank in charge.banks:
            self._take_out(id, bank, charge.memory_mib)
        if charge.host_bank:
            self._take_out(id, charge.host_bank, charge.host_mib)
        self._leave_devices(id, charge)

    def _take_out(self, id: str, bank: str, memory_mib: float) -> None:
        others = self._in[bank]
        others.pop(id, None)
        # An empty bank must be exactly 0, without rounding errors of earlier sums.
        self._used[bank] = self._used[bank] - memory_mib if others else 0.0

    def _leave_devices(self, id: str, charge: Charge) -> None:
        for device in charge.devices:
            if device in self._on:
                self._on[device].pop(id, None)
                self._recount_share(device)

    def _put(self, id: str, charge: Charge) -> None:
        self._charges[id] = charge
        for bank in charge.banks:
            self._in.setdefault(bank, {})[id] = charge
            self._used[bank] = self._used.get(bank, 0.0) + charge.memory_mib
        if charge.host_bank:
            self._in.setdefault(charge.host_bank, {})[id] = charge
            there = self._used.get(charge.host_bank, 0.0)
            self._used[charge.host_bank] = there + charge.host_mib
        self._enter_devices(id, charge)

    def _enter_devices(self, id: str, charge: Charge) -> None:
        for device in charge.devices:
            # An adopted replica may be on a device that this host no longer has.
            if device in self._on:
                self._on[device][id] = charge
                self._recount_share(device)

    def _banks_of(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        known = map(self.devices.get, devices)
        return tuple([one.bank if one is not None else "" for one in known])

    def reserve(self, reservation: Reservation) -> None:
        """Keep devices for a pool. None of them may be reserved yet."""
        for device in reservation.devices:
            assert device not in self.reservations
            if device in self._given_up:
                self._given_up.remove(device)
            else:
                self._claimed.add(device)
            self.reservations[device] = reservation
            self._reserved.setdefault(self.devices[device].bank, {})[device] = reservation

    def unreserve(self, reservation: Reservation) -> None:
        """End a reservation."""
        for device in reservation.devices:
            if device in self._claimed:
                self._claimed.remove(device)
            else:
                self._given_up.add(device)
            del self.reservations[device]
            del self._reserved[self.devices[device].bank][device]

    def take_given_up(self) -> bool:
        """Whether a device that was reserved at the last call of this method is not reserved any
        more."""
        is_given_up = bool(self._given_up)
        self._given_up.clear()
        self._claimed.clear()
        return is_given_up

    def cordon(self, device: str, cordon: Cordon) -> None:
        """Place no more replicas on a device. The device must be known and not reserved."""
        assert device not in self.reservations
        self.cordons[device] = cordon
        self.forget_fleets()

    def uncordon(self, device: str) -> None:
        """Allow replicas on the device again, if it was cordoned."""
        self.cordons.pop(device, None)
        self.forget_fleets()

    def refuse(self, device: str, refusal: Refusal) -> None:
        """Place no new replicas on a device until the refusal ends. The device must be known and
        not reserved. Of two refusals, the one that ends later holds."""
        assert device not in self.reservations
        known = self.refusals.get(device)
        if known is None or known.until_s < refusal.until_s:
            self.refusals[device] = refusal

    def end_refusals(self, now: float) -> bool:
        """Forget the refusals that have ended at `now`; return whether there were any."""
        ended = [device for device, one in self.refusals.items() if one.until_s <= now]
        for device in ended:
            del self.refusals[device]
        return bool(ended)

    def charge_of(self, id: str) -> Charge:
        """Return the charge of a replica."""
        return self._charges[id]

    def on(self, device: str) -> list[str]:
        """Return the ids of the replicas on a device."""
        return list(self._on[device])

    def in_bank(self, bank: str) -> list[str]:
        """Return the ids of the replicas that are charged to a memory bank."""
        return list(self._in.get(bank, ()))

    def empty(self) -> list[str]:
        """Return the devices without a replica; the one that has been free for longest is first."""
        return list(self._empty)

    def has_empty(self, host: str, kind: str) -> bool:
        """Whether a host has a device of a kind without a replica."""
        return (host, kind) in self._with_empty

    def groups(self, need: Need) -> Iterator[DeviceGroup]:
        """Yield the groups of devices that a need may have, as far as kind and host decide; for a
        whole device, only those with an empty one."""
        needs_whole_device = need.share >= 1.0 and not need.takes_rest
        for group in (self._with_empty if needs_whole_device else self._groups).values():
            is_right = need.kind in ("any", group.kind) and need.host in ("", group.host)
            if is_right and self.admits(group.host, need):
                yield group

    def fullest(self, group: DeviceGroup) -> list[str]:
        """Return the devices of a group, those with the most replicas first; sets `free_share`, the
        largest free share of a device there."""
        if group.fullest is None:
            group.fullest = sorted(group.devices, key=lambda id: -len(self._on[id]))
            group.free_share = max(self._free[id] for id in group.devices)
        return group.fullest

    def admits(self, host: str, need: Need) -> bool:
        """Whether replicas of a need may be placed on a host: it is not closed, and it has the
        labels and the ability."""
        return host not in self.closed and self.suits(host, need)

    def suits(self, host: str, need: Need) -> bool:
        """Whether a host has the labels and the ability of a need."""
        if not (need.labels or need.ability):
            return True
        record = self.hosts.get(host)
        if record is None:
            return not need.labels
        is_able = need.ability is None or need.ability in record.abilities
        return is_able and all(record.labels.get(key) == value for key, value in need.labels)

    def refusing(self, need: Need) -> list[str]:
        """Return the hosts that do not admit the need although they have devices of the kind, or
        may have some, as their devices are not known yet; cached as `fleet` is."""
        is_one = need.count == 1
        place = need.host, need.only, need.kind, need.device_type
        key = (*place, is_one, need.labels, need.ability, False)
        if key not in self._refusing:
            there = [host for host, kind in self._groups if need.kind in ("any", kind)]
            known = {host for host, _ in self._groups}
            untold = (host for host in self.closed if host not in known)
            hosts = dict.fromkeys(host for host in there if not self.admits(host, need))
            self._refusing[key] = list(hosts | dict.fromkeys(untold))
        return self._refusing[key]

    def topology(self, host: str) -> Topology:
        """Return the GPUs of a host, slices left out."""
        if host not in self._topologies:
            there = self._groups.get((host, "cuda"), DeviceGroup(host, "cuda")).devices
            whole = [one for id in there if not (one := self.devices[id]).is_slice]
            self._topologies[host] = Topology(whole)
        return self._topologies[host]

    def devices_of(self, bank: str) -> list[str]:
        """Return the devices of a memory bank by id."""
        return self._banks.get(bank, [])

    def size_mib(self, bank: str) -> float:
        """Return the size of a bank, 0 if it is not accounted."""
        return self._sizes.get(bank, 0.0)

    def fleet(self, need: Need, *, is_closed_counted: bool = False) -> Fleet:
        """Return the devices that a need might have if all were empty: of its kind, not cordoned,
        on a host that admits it; with `is_closed_counted`, also on closed hosts that suit it.
        Cached until devices, cordons or hosts change."""
        key = (
            *(need.host, need.only, need.kind, need.device_type, need.count == 1),
            *(need.labels, need.ability, is_closed_counted),
        )
        if key not in self._fleets:
            there = [
                device
                for device in self.devices.values()
                if self.counts(device.id, need, is_closed_counted=is_closed_counted)
            ]
            sizes = [device.memory_mib for device in there]
            largest = max(sizes) if sizes and all(sizes) else inf
            by_type = Counter(device.type for device in there)
            self._fleets[key] = Fleet(len(sizes), largest, max(by_type.values(), default=0))
        return self._fleets[key]

    def counts(self, device: str, need: Need, *, is_closed_counted: bool = False) -> bool:
        """Whether a need might have a known device if that were empty; as of `fleet`."""
        known = self.devices.get(device)
        if known is None or device in self.cordons or not need.takes(known):
            return False
        is_able = self.suits if is_closed_counted else self.admits
        return is_able(known.host, need)

    def forget_fleets(self) -> None:
        """Drop what is cached about all hosts: labels or the abilities of one have changed."""
        self._fleets.clear()
        self._refusing.clear()

    def cordoned(self, need: Need) -> dict[str, Cordon]:
        """Return the cordoned devices that a need might have otherwise."""
        return {
            device: cordon
            for device, cordon in self.cordons.items()
            if need.takes(self.devices[device]) and self.suits(self.devices[device].host, need)
        }

    def refused(self, need: Need) -> dict[str, Refusal]:
        """Return the refusals of the devices that a need might have otherwise."""
        return {id: one for id, one in self.refusals.items() if self.counts(id, need)}

    def fits(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether a device has room for a need, assuming that the replicas in `without` are
        gone."""
        return (
            self.fits_kind(device, need)
            and self.fits_share(device, need, without)
            and self.fits_memory(device, need, without)
        )

    def fits_kind(self, device: str, need: Need) -> bool:
        """Whether a device is of the right kind, not cordoned, not refused to new replicas, not
        reserved for another pool, not claimed by one that has waited longer, and on a host that
        admits the need."""
        if device in self.cordons or (device in self.refusals and not need.is_started):
            return False
        reservation = self.reservations.get(device)
        if reservation is None:
            if self.claim is not None and self.claim.bars(device, need):
                return False
        elif reservation.need.pool != need.pool:
            return False
        known = self.devices[device]
        return need.takes(known) and self.admits(known.host, need)

    def fits_share(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the other replicas of a device leave the share that is needed."""
        left = self.free_share(device, without)
        if need.takes_rest:
            return left > SHARE_SLACK
        return left >= 1.0 or need.share <= left + SHARE_SLACK

    def free_share(self, device: str, without: Collection[str] = ()) -> float:
        """Return the free share of a device, assuming that the replicas in `without` are gone. An
        exclusive one has none left beside a replica."""
        if not without:
            return self._free[device]
        others = [charge.share for id, charge in self._on[device].items() if id not in without]
        return 0.0 if others and self.devices[device].is_exclusive else 1.0 - sum(others)

    def can_hold(self, device: str, need: Need) -> bool:
        """Whether the memory bank of a device would have enough memory if it were empty."""
        size_mib = self.size_mib(self.devices[device].bank)
        return not size_mib or need.memory_mib <= size_mib - RESERVE_MIB

    def fits_memory(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the memory bank of a device has enough free memory."""
        if need.has_memory:
            return True
        return need.memory_mib <= self.free_mib(self.devices[device].bank, need.pool, without)

    def free_mib(self, bank: str, pool: str, without: Collection[str] = ()) -> float:
        """Return the MiB of a bank that `pool` may take; infinite if its size is unknown (0)."""
        size = self._sizes.get(bank, 0.0)
        if not size:
            return float("inf")
        taken = self._used.get(bank, 0.0) - self._held_mib(bank, without)
        return size - RESERVE_MIB - taken - self._reserved_mib(bank, pool, without)

    def _held_mib(self, bank: str, ids: Collection[str]) -> float:
        # Each plan of an eviction asks this often: `Charge.mib_in`, without the call.
        held = 0.0
        for charge in [self._charges[id] for id in ids if id in self._charges]:
            held += charge.memory_mib * charge.banks.count(bank)
            if charge.host_bank == bank:
                held += charge.host_mib
        return held

    def _reserved_mib(self, bank: str, pool: str, without: Collection[str]) -> float:
        """Return the MiB reserved for other pools, beyond the memory that their victims still
        hold."""
        kept = 0.0
        for reservation in self._reserved.get(bank, {}).values():
            if reservation.need.pool != pool:
                staying = [id for id in reservation.victims if id not in without]
                kept += max(0.0, reservation.need.memory_mib - self._held_mib(bank, staying))
        return kept
