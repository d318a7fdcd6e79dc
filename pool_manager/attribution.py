"""Attribution of the time and the energy of devices to their holders. No I/O.

Every second of a device, and every joule that its counter shows, goes to exactly one owner or is
split among several: the seconds of all owners of a device add up to the time that passed, their
joules to what was counted. `None` is the owner of time without a holder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

MINUTE_S: Final = 60
POWER_MAX_W: Final = 5000.0
"""Max power of a GPU. It bounds the energy added by a counter that was reset, or that a host's
agent made up."""
OWNERS_MAX: Final = 1000
"""Max owners of one device between two samples of its energy; the time of further ones has no
owner."""

K = TypeVar("K")


class EnergyCounter:
    """Turns samples of an energy counter into differences, which are never negative.

    The counter begins again at 0 when the driver is loaded: NVML's
    nvmlDeviceGetTotalEnergyConsumption counts "since the driver was last reloaded". As with
    counters of Prometheus, a lower value is what was counted since then.
    """

    def __init__(self) -> None:
        self._last_mj: int | None = None
        self._at_s = 0.0

    def joules(self, millijoules: int, now: float) -> float | None:
        """Return the joules since the last sample, None for the first one and for an unchanged one.

        A counter that was silent counts for the whole time, at most at POWER_MAX_W.
        """
        last_mj, passed_s = self._last_mj, now - self._at_s
        if millijoules == last_mj:
            return None
        self._last_mj, self._at_s = millijoules, now
        if last_mj is None:
            return None
        more_mj = millijoules - last_mj if millijoules > last_mj else millijoules
        return min(more_mj / 1e3, POWER_MAX_W * max(0.0, passed_s))


class Holder(NamedTuple, Generic[K]):
    """Owner of a replica on a device, and the share of the device that the replica holds. A standby
    has no owner and no share."""

    owner: K | None
    share: float


@dataclass(slots=True)
class _Held(Generic[K]):
    """Holders of one device by replica. Its time until `settled_s` was attributed. `claims` are
    seconds by owner since the last sample of its energy."""

    settled_s: float
    holders: dict[str, Holder[K]] = field(default_factory=dict)
    counter: EnergyCounter | None = None
    claims: dict[K | None, float] = field(default_factory=dict)


class Attributed(NamedTuple, Generic[K]):
    """Seconds and joules of a device that are an owner's, in the minute from `minute_s` (Unix
    seconds)."""

    owner: K | None
    device: str
    minute_s: int
    held_s: float
    joules: float


class Attribution(Generic[K]):
    """Attributes the time and the energy of devices. `now` is in monotonic seconds; time that goes
    back counts as none."""

    def __init__(self, offset_s: float) -> None:
        """`offset_s` is the Unix time at monotonic 0; the owner may correct it later."""
        self.offset_s = offset_s
        self._devices: dict[str, _Held[K]] = {}
        self._devices_of: dict[str, tuple[str, ...]] = {}
        """The attributed devices of each replica that holds any."""
        self._sums: dict[tuple[K | None, str, int], list[float]] = {}

    def set_devices(self, devices: Collection[str], now: float) -> None:
        """Attribute the time of exactly these devices from `now` on."""
        for device in [one for one in self._devices if one not in devices]:
            self._settle(device, self._devices[device], now)
            for id in self._devices.pop(device).holders:
                self._devices_of[id] = tuple(one for one in self._devices_of[id] if one != device)
        for device in devices:
            if device not in self._devices:
                self._devices[device] = _Held(now)

    def hold(self, id: str, devices: Collection[str], holder: Holder[K], now: float) -> None:
        """Set what a replica holds of each of its devices from `now` on, in place of what it held
        before. A device that is not attributed is ignored."""
        there = tuple(one for one in devices if one in self._devices)
        is_known = there == self._devices_of.get(id)
        if is_known and all(self._devices[one].holders[id] == holder for one in there):
            return
        self.release(id, now)
        for device in there:
            held = self._devices[device]
            self._settle(device, held, now)
            held.holders[id] = holder
        if there:
            self._devices_of[id] = there

    def release(self, id: str, now: float) -> None:
        """End what a replica holds."""
        for device in self._devices_of.pop(id, ()):
            held = self._devices[device]
            self._settle(device, held, now)
            del held.holders[id]

    def sample(self, device: str, millijoules: int, part: float, now: float) -> None:
        """Attribute the energy since the last sample of a device's counter to those who held it
        since then, in proportion to their seconds.

        `part` is the device's part of what is counted, less than 1 for a slice of a GPU.
        """
        held = self._devices.get(device)
        if held is None:
            return
        self._settle(device, held, now)
        if held.counter is None:
            held.counter = EnergyCounter()
        joules = held.counter.joules(millijoules, now)
        if joules is None:
            return
        claims, held.claims = held.claims, {}
        minute = self._minute(now)
        for owner, amount in split(joules * part, claims).items():
            self._sum(owner, device, minute)[1] += amount

    def take(self, now: float) -> list[Attributed[K]]:
        """Return and reset the sums until `now`. Several of the same minute add up."""
        for device, held in self._devices.items():
            self._settle(device, held, now)
        sums, self._sums = self._sums, {}
        return [Attributed(*key, *numbers) for key, numbers in sums.items()]

    def _minute(self, now: float) -> int:
        return int((now + self.offset_s) // MINUTE_S) * MINUTE_S

    def _settle(self, device: str, held: _Held[K], now: float) -> None:
        from_s, held.settled_s = held.settled_s, max(held.settled_s, now)
        passed_s = held.settled_s - from_s
        if not passed_s:
            return
        parts = weights(held.holders.values())
        if held.counter is not None:
            _claim(held.claims, split(passed_s, parts))
        for minute, seconds in by_minute(from_s + self.offset_s, held.settled_s + self.offset_s):
            for owner, amount in split(seconds, parts).items():
                self._sum(owner, device, minute)[0] += amount

    def _sum(self, owner: K | None, device: str, minute: int) -> list[float]:
        return self._sums.setdefault((owner, device, minute), [0.0, 0.0])


def by_minute(start_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Yield the minutes (Unix seconds) that a span touches, with its seconds in each."""
    minute = int(start_s // MINUTE_S) * MINUTE_S
    while minute < end_s:
        seconds = min(end_s, minute + MINUTE_S) - max(start_s, minute)
        if seconds > 0:
            yield minute, seconds
        minute += MINUTE_S


def weights(holders: Collection[Holder[K]]) -> dict[K | None, float]:
    """Return the parts of a device by owner, which add up to 1.

    The only holder of a device has all of it, whatever its share: no other function uses the rest
    at that moment. Holders without a share are standbys, and count only alone.
    """
    shares: dict[K | None, float] = {}
    for holder in holders:
        shares[holder.owner] = shares.get(holder.owner, 0.0) + holder.share
    total = sum(shares.values())
    if total <= 0:
        return dict.fromkeys(shares, 1 / len(shares)) if shares else {None: 1.0}
    return {owner: share / total for owner, share in shares.items() if share > 0}


def split(amount: float, claims: Mapping[K | None, float]) -> dict[K | None, float]:
    """Return the parts of an amount in proportion to the claims, which are 0 or more; all without
    an owner if there are none. The parts add up to the amount."""
    total = sum(claims.values())
    if total <= 0:
        return {None: amount}
    return {owner: amount * claim / total for owner, claim in claims.items()}


def _claim(claims: dict[K | None, float], parts: Mapping[K | None, float]) -> None:
    for owner, seconds in parts.items():
        known = owner if owner in claims or len(claims) < OWNERS_MAX else None
        claims[known] = claims.get(known, 0.0) + seconds
