"""Independent model of the hosts: placements and measurements, kept without the machine's own
records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pool_manager.core.ledger import RESERVE_MIB, Ledger
from pool_manager.core.state import Device, PoolSpec
from registry.model.hosts import LOCAL_HOST

STANDBY_MIB, GPU_STANDBY_MIB = 80.0, 600.0


@dataclass
class Entry:
    """One replica from launch to release. A standby has no pool; it has devices only if they are
    GPUs."""

    pool: str
    devices: tuple[str, ...]
    share: float
    memory_mib: float
    is_standby: bool = False
    is_told: bool = True
    ready_s: float = float("inf")
    host: str = LOCAL_HOST
    is_kept: bool = False
    """Whether it is ready on a CPU, without a slot."""


@dataclass
class Book:
    """All replicas by id, and the measured memory of pools."""

    devices: dict[str, Device]
    entries: dict[str, Entry] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    measured: dict[str, float] = field(default_factory=dict)

    def place(self, id: str, spec: PoolSpec, devices: tuple[str, ...]) -> None:
        """Record a replica of a pool on devices; it may have been a standby."""
        told = id not in self.entries
        share = 1.0 if spec.count > 1 else spec.share
        if spec.role == "trial":
            share = max(0.0, 1.0 - max(sum(self.shares(device)) for device in devices))
        entry = Entry(spec.key, devices, share, self.memory_mib(spec), is_told=told)
        entry.host = host_of(devices[0])
        self.entries[id] = entry
        self.ever.add(id)

    def stand_by(self, id: str, devices: tuple[str, ...] = (), host: str = LOCAL_HOST) -> None:
        """Record a standby."""
        memory_mib = GPU_STANDBY_MIB if devices else STANDBY_MIB
        self.entries[id] = Entry("", devices, 0.0, memory_mib, is_standby=True, host=host)
        self.ever.add(id)

    def on_host(self, host: str) -> set[str]:
        """Return the ids of all replicas of a host."""
        return {id for id, entry in self.entries.items() if entry.host == host}

    def measure(self, id: str, spec: PoolSpec, memory_mib: float, now: float) -> None:
        """Record that a replica of a pool is ready and uses `memory_mib`."""
        self.measured[spec.key] = max(self.measured.get(spec.key, 0.0), memory_mib)
        self.entries[id].memory_mib = self.memory_mib(spec)
        self.entries[id].ready_s = now

    def memory_mib(self, spec: PoolSpec) -> float:
        """Return the memory expected for one more replica of the pool."""
        return max(spec.memory_mib, self.measured.get(spec.key, 0.0))

    def where(self) -> dict[str, tuple[str, ...]]:
        """Return the devices of each replica; none of CPU standbys."""
        return {id: entry.devices for id, entry in self.entries.items()}

    def standbys(self, devices: tuple[str, ...] | None = None, host: str = LOCAL_HOST) -> list[str]:
        """Return the ids of unassigned standbys: all, or those on `devices` (none = CPU) of a
        host."""
        return [
            id
            for id, entry in self.entries.items()
            if entry.is_standby
            and (devices is None or (devices, host) == (entry.devices, entry.host))
        ]

    def banks_of(self, entry: Entry) -> list[str]:
        """Return the memory banks charged for a replica. A standby without a device uses the
        CPU's."""
        if not entry.devices:
            there = [d for d in self.devices.values() if d.host == entry.host]
            return [next((d.bank for d in there if d.kind == "cpu"), "")]
        known = map(self.devices.get, entry.devices)
        return ["" if device is None else device.bank for device in known]

    def shares(self, device: str, without: frozenset[str] = frozenset()) -> list[float]:
        """Return the device shares of the replicas on a device."""
        return [
            e.share
            for id, e in self.entries.items()
            if device in e.devices and id not in without and not e.is_kept
        ]

    def used_mib(self, bank: str, without: frozenset[str] = frozenset()) -> float:
        """Return the memory charged to a bank."""
        return sum(
            entry.memory_mib * self.banks_of(entry).count(bank)
            for id, entry in self.entries.items()
            if id not in without
        )

    def has_room(self, device: Device, spec: PoolSpec, without: frozenset[str]) -> bool:
        """Return whether a device has room for one more replica once the replicas `without` are
        gone."""
        is_gang = spec.count > 1
        if spec.device_kind not in ("any", device.kind) or (is_gang and device.kind != "cuda"):
            return False
        left = 1.0 - sum(self.shares(device.id, without))
        if device.is_exclusive and self.shares(device.id, without):
            return False
        takes_rest = spec.role == "trial" and not is_gang
        if left < 1.0 and (left <= 1e-9 if takes_rest else spec.share > left + 1e-9):
            return False
        used = self.used_mib(device.bank, without) + self.memory_mib(spec) + RESERVE_MIB
        return not device.memory_mib or used <= device.memory_mib

    def is_overcommitted(self, device: Device) -> bool:
        """Return whether a device's shares or its bank's memory are exceeded."""
        shares = self.shares(device.id)
        if len(shares) > 1 and (device.is_exclusive or sum(shares) > 1.0 + 1e-9):
            return True
        over = self.used_mib(device.bank) + RESERVE_MIB > device.memory_mib + 1e-9
        return bool(device.memory_mib) and over


def charged(ledger: Ledger, devices: Iterable[Device]) -> set[str]:
    """Return the replicas that a ledger charges to any bank of these devices or to none."""
    banks = {"", *(device.bank for device in devices)}
    return {id for bank in banks for id in ledger.in_bank(bank)}


def host_of(device: str) -> str:
    """Return the host of a device by its id."""
    return device.partition("/")[0] if "/" in device else LOCAL_HOST
