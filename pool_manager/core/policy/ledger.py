"""What every device and every memory bank has promised to whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pool_manager.core.state import Device

RESERVE_MIB = 256.0
"""Kept free in every bank: allocators fragment, and the first large batch needs more."""
SHARE_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Need:
    """What a replica of `pool` takes: a device of `kind` ("any" for all), a share of it from above
    0 to 1 (alone on it), MiB of its bank's memory."""

    pool: str
    kind: str = "any"
    share: float = 1.0
    memory_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Charge:
    """What one replica holds. `device` is "" for a standby, which only takes memory."""

    device: str
    bank: str
    share: float
    memory_mib: float


class Ledger:
    """Charges by replica, from its record until it is STOPPED; claims by device.

    A claim keeps a device for one pool, for which it is being cleared.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = {device.id: device for device in devices}
        self.claims: dict[str, str] = {}
        self._charges: dict[str, Charge] = {}
        self._on: dict[str, dict[str, Charge]] = {id: {} for id in self.devices}
        self._in: dict[str, dict[str, Charge]] = {}
        self._used: dict[str, float] = {}
        self._empty = dict.fromkeys(self.devices)

    def charge(self, id: str, device: str, share: float, memory_mib: float) -> None:
        """Record what replica `id` takes on `device`; anew, if it was charged before."""
        self.release(id)
        known = self.devices.get(device)
        self._put(id, Charge(device, known.bank if known else "", share, memory_mib))

    def charge_bank(self, id: str, bank: str, memory_mib: float) -> None:
        """Record a replica that takes memory and no device."""
        self.release(id)
        self._put(id, Charge("", bank, 0.0, memory_mib))

    def remember(self, id: str, memory_mib: float) -> None:
        """A replica was measured: charge it what it really takes."""
        was = self._charges[id]
        self.release(id)
        self._put(id, Charge(was.device, was.bank, was.share, memory_mib))

    def release(self, id: str) -> None:
        """A replica is gone; harmless when it was not charged."""
        charge = self._charges.pop(id, None)
        if charge is None:
            return
        self._used[charge.bank] -= charge.memory_mib
        del self._in[charge.bank][id]
        if charge.device in self._on:
            del self._on[charge.device][id]
            if not self._on[charge.device]:
                self._empty[charge.device] = None

    def _put(self, id: str, charge: Charge) -> None:
        self._charges[id] = charge
        self._in.setdefault(charge.bank, {})[id] = charge
        self._used[charge.bank] = self._used.get(charge.bank, 0.0) + charge.memory_mib
        # An adopted replica may be on a device that this host no longer has.
        if charge.device in self._on:
            self._on[charge.device][id] = charge
            self._empty.pop(charge.device, None)

    def device_of(self, id: str) -> str:
        """Where a replica is, "" for a standby."""
        return self._charges[id].device

    def on(self, device: str) -> list[str]:
        """Replicas on a device."""
        return list(self._on[device])

    def in_bank_of(self, device: str) -> list[str]:
        """Replicas that draw on the memory of a device."""
        return list(self._in.get(self.devices[device].bank, ()))

    def empty(self) -> list[str]:
        """Devices without a replica, the one free for longest first."""
        return list(self._empty)

    def fits_kind(self, device: str, need: Need) -> bool:
        """Whether a device is of the right kind and not claimed by another pool."""
        claimed = self.claims.get(device, need.pool)
        return claimed == need.pool and need.kind in ("any", self.devices[device].kind)

    def fits_share(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the device's other replicas leave the share that is needed."""
        others = [charge.share for id, charge in self._on[device].items() if id not in without]
        return not others or sum(others) + need.share <= 1.0 + SHARE_SLACK

    def fits_memory(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the bank has the memory; one of unknown size (0) always has."""
        known = self.devices[device]
        if not known.memory_mib:
            return True
        freed = sum(
            charge.memory_mib for id in without if (charge := self._charges[id]).bank == known.bank
        )
        used = self._used.get(known.bank, 0.0) - freed
        return used + need.memory_mib + RESERVE_MIB <= known.memory_mib

    def fits_bank(self, bank: str, memory_mib: float) -> bool:
        """Whether a bank has room for a standby."""
        sizes = [device.memory_mib for device in self.devices.values() if device.bank == bank]
        limit = max(sizes, default=0.0)
        return not limit or self._used.get(bank, 0.0) + memory_mib + RESERVE_MIB <= limit
