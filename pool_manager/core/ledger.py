"""Which replica holds what of every device and memory bank, and what is reserved."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pool_manager.core.state import Device

RESERVE_MIB = 256.0
"""Kept free in every bank: allocators fragment, and the first large batch needs more."""
SHARE_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Need:
    """What a replica of `pool` takes: a device of `kind` ("any" for all), a share of it from above
    0 to 1 (alone on it), MiB of its bank's memory.

    `takes_rest`: the share that the others on a device leave, all of it on an empty one.
    """

    pool: str
    kind: str = "any"
    share: float = 1.0
    memory_mib: float = 0.0
    takes_rest: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """What one replica holds. `device` is "" for a standby, which only takes memory."""

    device: str
    bank: str
    share: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """`device` is kept for a need: until `victims` are gone, no other pool gets it, nor the memory
    they leave. `device` is "" where only the function's `max` was in the way."""

    need: Need
    device: str
    victims: tuple[str, ...]
    since_s: float


class Cordon(NamedTuple):
    """Why a device gets no replica, and whether it is gone, so that its replicas are useless."""

    reason: str
    is_gone: bool


class Fleet(NamedTuple):
    """How many devices of a kind may be used and the memory of the largest, infinite where the
    memory of one is not accounted."""

    devices: int
    largest_mib: float


class Ledger:
    """Charges by replica, from its record until it is STOPPED; reservations and cordons by
    device."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = {device.id: device for device in devices}
        self.reservations: dict[str, Reservation] = {}
        self.cordons: dict[str, Cordon] = {}
        self._charges: dict[str, Charge] = {}
        self._on: dict[str, dict[str, Charge]] = {id: {} for id in self.devices}
        self._in: dict[str, dict[str, Charge]] = {}
        self._used: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        self._reserved: dict[str, dict[str, Reservation]] = {}
        self._empty = dict.fromkeys(self.devices)
        self._fleets: dict[str, Fleet] = {}
        for device in self.devices.values():
            self._sizes[device.bank] = max(device.memory_mib, self._sizes.get(device.bank, 0.0))

    def charge(self, id: str, device: str, share: float, memory_mib: float) -> None:
        """Charge replica `id` on `device`; an earlier charge is replaced."""
        self.release(id)
        known = self.devices.get(device)
        self._put(id, Charge(device, known.bank if known else "", share, memory_mib))

    def charge_bank(self, id: str, bank: str, memory_mib: float) -> None:
        """Charge a replica that takes memory and no device."""
        self.release(id)
        self._put(id, Charge("", bank, 0.0, memory_mib))

    def recharge(self, id: str, memory_mib: float) -> None:
        """Charge a replica the memory that was measured."""
        was = self._charges[id]
        self.release(id)
        self._put(id, Charge(was.device, was.bank, was.share, memory_mib))

    def release(self, id: str) -> None:
        """Remove a replica's charge, if it has one."""
        charge = self._charges.pop(id, None)
        if charge is None:
            return
        others = self._in[charge.bank]
        del others[id]
        # An empty bank is exactly empty, whatever the sums of its past were rounded to.
        self._used[charge.bank] = self._used[charge.bank] - charge.memory_mib if others else 0.0
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

    def reserve(self, reservation: Reservation) -> None:
        """Keep a device for a pool. It must not be reserved."""
        assert reservation.device not in self.reservations
        if reservation.device:
            self.reservations[reservation.device] = reservation
            self._reserved.setdefault(self.devices[reservation.device].bank, {})[
                reservation.device
            ] = reservation

    def unreserve(self, reservation: Reservation) -> None:
        """End a reservation."""
        if reservation.device:
            del self.reservations[reservation.device]
            del self._reserved[self.devices[reservation.device].bank][reservation.device]

    def cordon(self, device: str, cordon: Cordon) -> None:
        """Give the device no replica any more. It must be known and not reserved."""
        assert device not in self.reservations
        self.cordons[device] = cordon
        self._fleets.clear()

    def uncordon(self, device: str) -> None:
        """Allow replicas on the device again, if it was cordoned."""
        self.cordons.pop(device, None)
        self._fleets.clear()

    def charge_of(self, id: str) -> Charge:
        """What a replica holds."""
        return self._charges[id]

    def on(self, device: str) -> list[str]:
        """Replicas on a device."""
        return list(self._on[device])

    def in_bank(self, bank: str) -> list[str]:
        """Replicas that draw on a bank's memory."""
        return list(self._in.get(bank, ()))

    def empty(self) -> list[str]:
        """Devices without a replica, the one free for longest first."""
        return list(self._empty)

    def fleet(self, kind: str) -> Fleet:
        """The devices of a kind that are not cordoned, counted once until that changes."""
        if kind not in self._fleets:
            able = [d for d in self.devices.values() if d.id not in self.cordons]
            sizes = [d.memory_mib for d in able if kind in ("any", d.kind)]
            largest = max(sizes) if sizes and all(sizes) else float("inf")
            self._fleets[kind] = Fleet(len(sizes), largest)
        return self._fleets[kind]

    def cordoned(self, kind: str) -> dict[str, Cordon]:
        """The devices of a kind that may not be used."""
        return {
            device: cordon
            for device, cordon in self.cordons.items()
            if kind in ("any", self.devices[device].kind)
        }

    def fits(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether a replica can be put there now, or once those in `without` are gone."""
        return (
            self.fits_kind(device, need)
            and self.fits_share(device, need, without)
            and self.fits_memory(device, need, without)
        )

    def fits_kind(self, device: str, need: Need) -> bool:
        """Whether a device is of the right kind, not cordoned, and not reserved for another
        pool."""
        if device in self.cordons:
            return False
        reservation = self.reservations.get(device)
        is_open = reservation is None or reservation.need.pool == need.pool
        return is_open and need.kind in ("any", self.devices[device].kind)

    def fits_share(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the device's other replicas leave the share that is needed."""
        left = self.free_share(device, without)
        if need.takes_rest:
            return left > SHARE_SLACK
        return left >= 1.0 or need.share <= left + SHARE_SLACK

    def free_share(self, device: str, without: Collection[str] = ()) -> float:
        """The share of a device that its replicas, but those in `without`, leave."""
        others = [charge.share for id, charge in self._on[device].items() if id not in without]
        return 1.0 - sum(others)

    def fits_memory(self, device: str, need: Need, without: Collection[str] = ()) -> bool:
        """Whether the device's bank has the memory."""
        return need.memory_mib <= self.free_mib(self.devices[device].bank, need.pool, without)

    def free_mib(self, bank: str, pool: str, without: Collection[str] = ()) -> float:
        """Memory that `pool` may take of a bank; infinite where its size is not known (0)."""
        size = self._sizes.get(bank, 0.0)
        if not size:
            return float("inf")
        taken = self._used.get(bank, 0.0) - self._held_mib(bank, without)
        return size - RESERVE_MIB - taken - self._reserved_mib(bank, pool, without)

    def _held_mib(self, bank: str, ids: Collection[str]) -> float:
        charges = [self._charges[id] for id in ids if id in self._charges]
        return sum(charge.memory_mib for charge in charges if charge.bank == bank)

    def _reserved_mib(self, bank: str, pool: str, without: Collection[str]) -> float:
        """Memory reserved for other pools, beyond what their victims still hold."""
        kept = 0.0
        for reservation in self._reserved.get(bank, {}).values():
            if reservation.need.pool != pool:
                staying = [id for id in reservation.victims if id not in without]
                kept += max(0.0, reservation.need.memory_mib - self._held_mib(bank, staying))
        return kept
