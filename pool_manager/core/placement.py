"""Which device a replica gets, or who makes room for it at least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from pool_manager.core.ledger import RESERVE_MIB, Ledger, Need


class Guest(NamedTuple):
    """A replica that may have to go. Of its pool not more than `spare` may go; `cost` is what it
    costs that this one goes."""

    pool: str
    cost: float
    spare: int


class Clearing(NamedTuple):
    """Once these replicas are gone, the device has room."""

    device: str
    victims: tuple[str, ...]


def find(need: Need, ledger: Ledger, without: Collection[str] = ()) -> str | None:
    """A device with room now; where it may be shared, the fullest that fits.

    Packing keeps whole devices free for those who need one alone. Who may use any kind gets a GPU
    before a CPU slot. `without`: replicas whose place the new one takes.
    """
    return next(
        (device for device in _roomy(need, ledger) if ledger.fits(device, need, without)), None
    )


def clear(
    need: Need, ledger: Ledger, guests: Mapping[str, Guest], without: Collection[str] = ()
) -> Clearing | None:
    """The cheapest set of guests whose leaving makes room on one device.

    None where even all of them would not do. A set costs at least the cheapest guest of its bank,
    so devices are tried in that order until none can be cheaper.
    """
    best: tuple[float, Clearing] | None = None
    if not guests:
        return None
    for floor, device in _candidates(need, ledger, guests):
        if best is not None and best[0] <= floor:
            break
        victims = _victims(device, need, ledger, guests, without)
        if victims is None:
            continue
        total = sum(guests[id].cost for id in victims)
        if best is None or total < best[0]:
            best = total, Clearing(device, victims)
    return best[1] if best else None


def why_not(need: Need, ledger: Ledger) -> str:
    """In words, why there is no device for it now, and which may not be used."""
    cordoned = ledger.cordoned(need.kind)
    if not cordoned:
        return _obstacle(need, ledger)
    verb = "is" if len(cordoned) == 1 else "are"
    causes = "; ".join(f"{cordon.reason} ({device})" for device, cordon in cordoned.items())
    return f"{_obstacle(need, ledger)}, {len(cordoned)} {verb} cordoned: {causes}"


def is_hopeless(need: Need, ledger: Ledger) -> bool:
    """Whether no device could hold it, however many left, while one that might is cordoned."""
    fleet = ledger.fleet(need.kind)
    is_too_large = need.memory_mib + RESERVE_MIB > fleet.largest_mib
    return bool(ledger.cordoned(need.kind)) and (not fleet.devices or is_too_large)


def _obstacle(need: Need, ledger: Ledger) -> str:
    fleet = ledger.fleet(need.kind)
    if not fleet.devices:
        return f"no device of kind {need.kind}"
    if need.memory_mib + RESERVE_MIB > fleet.largest_mib:
        return f"needs {need.memory_mib:.0f} MiB, no device has that beside {RESERVE_MIB:.0f} spare"
    able = [id for id in _roomy(need, ledger) if ledger.fits_kind(id, need)]
    banks = {ledger.devices[id].bank for id in able if ledger.fits_share(id, need)}
    if not banks:
        return f"all {fleet.devices} devices are in use"
    free_mib = max(ledger.free_mib(bank, need.pool) for bank in banks)
    return f"needs {need.memory_mib:.0f} MiB, {max(0.0, free_mib):.0f} are free"


def _roomy(need: Need, ledger: Ledger) -> list[str]:
    """Devices that may have room as they are, the best first."""
    if need.takes_rest:
        empty = ledger.empty()
        shared = sorted(ledger.devices.keys() - set(empty), key=lambda id: (len(ledger.on(id)), id))
        able = [*empty, *shared]
    elif need.share >= 1.0:
        able = ledger.empty()
    else:
        able = sorted(ledger.devices, key=lambda id: -len(ledger.on(id)))
    if need.kind != "any":
        return able
    return sorted(able, key=lambda id: ledger.devices[id].kind == "cpu")


def _candidates(need: Need, ledger: Ledger, guests: Mapping[str, Guest]) -> list[tuple[float, str]]:
    """Devices that could be cleared, each with the least that this can cost: memory is lent by
    the bank, so a guest may make room on any device of its bank."""
    floors: dict[str, float] = {}
    for id, guest in guests.items():
        bank = ledger.charged(id).bank
        floors[bank] = min(guest.cost, floors.get(bank, guest.cost))
    return sorted(
        (floors[device.bank], device.id)
        for device in ledger.devices.values()
        if device.bank in floors and ledger.fits_kind(device.id, need)
    )


def _victims(
    device: str,
    need: Need,
    ledger: Ledger,
    guests: Mapping[str, Guest],
    without: Collection[str],
) -> tuple[str, ...] | None:
    """Who has to go, the cheapest first; where the floors of pools leave too few of those, the
    largest first. Whoever proves superfluous stays."""
    chosen = _choose(device, need, ledger, guests, without, lambda id: guests[id].cost)
    if chosen is None:
        sizes = {id: -ledger.charged(id).memory_mib for id in guests}
        chosen = _choose(device, need, ledger, guests, without, sizes.__getitem__)
    if chosen is None:
        return None
    for id in sorted(chosen, key=lambda one: -guests[one].cost):
        others = [one for one in chosen if one != id]
        if ledger.fits(device, need, (*without, *others)):
            chosen = others
    return tuple(chosen)


def _choose(
    device: str,
    need: Need,
    ledger: Ledger,
    guests: Mapping[str, Guest],
    without: Collection[str],
    order: Callable[[str], float],
) -> list[str] | None:
    """As many of a device's guests as it takes until the share fits, then of its bank's until the
    memory does."""
    chosen: list[str] = []
    gone: Counter[str] = Counter()
    bank = ledger.devices[device].bank
    for there, fits in (
        (ledger.on(device), ledger.fits_share),
        (ledger.in_bank(bank), ledger.fits_memory),
    ):
        able = [id for id in there if id in guests and id not in chosen and id not in without]
        for id in sorted(able, key=order):
            if fits(device, need, (*without, *chosen)):
                break
            if gone[guests[id].pool] < guests[id].spare:
                gone[guests[id].pool] += 1
                chosen.append(id)
        if not fits(device, need, (*without, *chosen)):
            return None
    return chosen
