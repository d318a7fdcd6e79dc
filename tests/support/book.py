"""A second book of a host: what a machine was told and commanded, kept without its own records."""

from __future__ import annotations

from dataclasses import dataclass, field

from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.state import Device, PoolSpec

STANDBY_MIB, GPU_STANDBY_MIB = 80.0, 600.0


@dataclass
class Entry:
    """A replica from its launch to its release. A standby has no pool, and a device only if that
    is a GPU."""

    pool: str
    device: str
    share: float
    memory_mib: float
    is_standby: bool = False
    is_told: bool = True
    ready_s: float = float("inf")


@dataclass
class Book:
    """Replicas by id, and what was measured of pools."""

    devices: dict[str, Device]
    entries: dict[str, Entry] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    measured: dict[str, float] = field(default_factory=dict)

    def place(self, id: str, spec: PoolSpec, device: str) -> None:
        """A replica of a pool is on a device; it may have been a standby."""
        told = id not in self.entries
        share = spec.share
        if spec.role == "trial":
            share = max(0.0, 1.0 - sum(self.shares(device)))
        self.entries[id] = Entry(spec.key, device, share, self.memory_mib(spec), is_told=told)
        self.ever.add(id)

    def stand_by(self, id: str, device: str = "") -> None:
        """A replica without a model is there."""
        memory_mib = GPU_STANDBY_MIB if device else STANDBY_MIB
        self.entries[id] = Entry("", device, 0.0, memory_mib, is_standby=True)
        self.ever.add(id)

    def measure(self, id: str, spec: PoolSpec, memory_mib: float, now: float) -> None:
        """A replica of a pool is ready and takes so much."""
        self.measured[spec.key] = max(self.measured.get(spec.key, 0.0), memory_mib)
        self.entries[id].memory_mib = self.memory_mib(spec)
        self.entries[id].ready_s = now

    def memory_mib(self, spec: PoolSpec) -> float:
        """What one more replica is expected to take."""
        return max(spec.memory_mib, self.measured.get(spec.key, 0.0))

    def where(self) -> dict[str, str]:
        """Device by replica, "" for standbys of the CPU."""
        return {id: entry.device for id, entry in self.entries.items()}

    def standbys(self, device: str | None = None) -> list[str]:
        """Replicas that no pool has got: all, or those on a device ("" for the CPU)."""
        return [
            id
            for id, entry in self.entries.items()
            if entry.is_standby and device in (None, entry.device)
        ]

    def bank_of(self, entry: Entry) -> str:
        """The memory it takes from: standbys without a device from that of the CPU."""
        if not entry.device:
            return next((d.bank for d in self.devices.values() if d.kind == "cpu"), "")
        return self.devices[entry.device].bank if entry.device in self.devices else ""

    def shares(self, device: str, without: frozenset[str] = frozenset()) -> list[float]:
        """What the replicas on a device take of it."""
        return [
            e.share for id, e in self.entries.items() if e.device == device and id not in without
        ]

    def used_mib(self, bank: str, without: frozenset[str] = frozenset()) -> float:
        """What is charged to a bank."""
        return sum(
            entry.memory_mib
            for id, entry in self.entries.items()
            if id not in without and self.bank_of(entry) == bank
        )

    def has_room(self, device: Device, spec: PoolSpec, without: frozenset[str]) -> bool:
        """Whether one more replica fits there once some are gone."""
        if spec.device_kind not in ("any", device.kind):
            return False
        left = 1.0 - sum(self.shares(device.id, without))
        if left < 1.0 and (left <= 1e-9 if spec.role == "trial" else spec.share > left + 1e-9):
            return False
        used = self.used_mib(device.bank, without) + self.memory_mib(spec) + RESERVE_MIB
        return not device.memory_mib or used <= device.memory_mib

    def is_overcommitted(self, device: Device) -> bool:
        """Whether more is promised than there is."""
        shares = self.shares(device.id)
        if len(shares) > 1 and sum(shares) > 1.0 + 1e-9:
            return True
        over = self.used_mib(device.bank) + RESERVE_MIB > device.memory_mib + 1e-9
        return bool(device.memory_mib) and over
