"""Which device a replica gets, or which replicas make room for it at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from pool_manager.core.ledger import RESERVE_MIB, Ledger, Need


class Candidate(NamedTuple):
    """A replica that may be stopped, and the `cost` of that. Of its pool no more than `spare` may
    be stopped at once."""

    pool: str
    cost: float
    spare: int


class EvictionPlan(NamedTuple):
    """Once the victims are gone, `device` has room; "" where only `max` was in the way."""

    device: str
    victims: tuple[str, ...]


def find_device(need: Need, ledger: Ledger, without: Collection[str] = ()) -> str | None:
    """The best device with room now, None where there is none; `_by_preference` has the cases.

    `without`: standbys that the new replica would be made of; their memory is there for it.
    """
    return next(
        (device for device in _by_preference(need, ledger) if ledger.fits(device, need, without)),
        None,
    )


def _by_preference(need: Need, ledger: Ledger) -> list[str]:
    """Devices that may have room as they are, the best first.

    (1) A trial, which takes the rest of a device: empty ones, then those with the fewest replicas.
    (2) A replica that is alone on its device: empty ones, the one free for longest first.
    (3) A replica that shares: the fullest first, to keep whole devices for those of (2).
    (4) In all cases, where any kind will do: GPUs before CPU slots.
    """
    if need.takes_rest:  # (1)
        empty = ledger.empty()
        shared = sorted(ledger.devices.keys() - set(empty), key=lambda id: (len(ledger.on(id)), id))
        able = [*empty, *shared]
    elif need.share >= 1.0:  # (2)
        able = ledger.empty()
    else:  # (3)
        able = sorted(ledger.devices, key=lambda id: -len(ledger.on(id)))
    if need.kind == "any":  # (4)
        able = sorted(able, key=lambda id: ledger.devices[id].kind == "cpu")
    return able


def plan_eviction(
    need: Need, ledger: Ledger, candidates: Mapping[str, Candidate], without: Collection[str] = ()
) -> EvictionPlan | None:
    """The cheapest set of candidates that makes room, once stopped, on one device; None if there
    is none.

    (1) Each device of the right kind has a floor: the cost of the cheapest candidate in its
        bank, since stopping it may make room on any device of that bank. Devices are tried by
        floor.
    (2) On each, the cheapest candidates are chosen until share and memory fit (`_victims`).
    (3) The search ends where a device's floor is no less than the best set so far.
    """
    best: tuple[float, EvictionPlan] | None = None
    if not candidates:
        return None
    for floor, device in _floors(need, ledger, candidates):  # (1)
        if best is not None and best[0] <= floor:  # (3)
            break
        victims = _victims(device, need, ledger, candidates, without)  # (2)
        if victims is None:
            continue
        total = sum(candidates[id].cost for id in victims)
        if best is None or total < best[0]:
            best = total, EvictionPlan(device, victims)
    return best[1] if best else None


def placement_obstacle(need: Need, ledger: Ledger) -> str:
    """Why there is no device for a need now, and which devices are cordoned, in words."""
    cordoned = ledger.cordoned(need.kind)
    if not cordoned:
        return _obstacle(need, ledger)
    verb = "is" if len(cordoned) == 1 else "are"
    causes = "; ".join(f"{cordon.reason} ({device})" for device, cordon in cordoned.items())
    return f"{_obstacle(need, ledger)}, {len(cordoned)} {verb} cordoned: {causes}"


def is_unplaceable(need: Need, ledger: Ledger) -> bool:
    """Whether no device could hold it even if all were empty, while one is cordoned that might."""
    fleet = ledger.fleet(need.kind)
    is_too_large = need.memory_mib + RESERVE_MIB > fleet.largest_mib
    return bool(ledger.cordoned(need.kind)) and (not fleet.devices or is_too_large)


def _obstacle(need: Need, ledger: Ledger) -> str:
    """(1) No such device; (2) all are too small; (3) all are taken; (4) too little memory free."""
    fleet = ledger.fleet(need.kind)
    if not fleet.devices:  # (1)
        return f"no device of kind {need.kind}"
    if need.memory_mib + RESERVE_MIB > fleet.largest_mib:  # (2)
        return f"needs {need.memory_mib:.0f} MiB, no device has that beside {RESERVE_MIB:.0f} spare"
    able = [id for id in _by_preference(need, ledger) if ledger.fits_kind(id, need)]
    banks = {ledger.devices[id].bank for id in able if ledger.fits_share(id, need)}
    if not banks:  # (3)
        return f"all {fleet.devices} devices are in use"
    free_mib = max(ledger.free_mib(bank, need.pool) for bank in banks)  # (4)
    return f"needs {need.memory_mib:.0f} MiB, {max(0.0, free_mib):.0f} are free"


def _floors(
    need: Need, ledger: Ledger, candidates: Mapping[str, Candidate]
) -> list[tuple[float, str]]:
    """Devices that could be cleared, each with the least that this can cost, cheapest first."""
    floors: dict[str, float] = {}
    for id, candidate in candidates.items():
        bank = ledger.charge_of(id).bank
        floors[bank] = min(candidate.cost, floors.get(bank, candidate.cost))
    return sorted(
        (floors[device.bank], device.id)
        for device in ledger.devices.values()
        if device.bank in floors and ledger.fits_kind(device.id, need)
    )


def _victims(
    device: str,
    need: Need,
    ledger: Ledger,
    candidates: Mapping[str, Candidate],
    without: Collection[str],
) -> tuple[str, ...] | None:
    """The candidates to stop on one device.

    (1) The cheapest first, until share and memory fit.
    (2) Where the pools' `min` leaves too few of those: the largest first.
    (3) The dearest of the chosen stay if the others suffice.
    """
    chosen = _choose(
        device, need, ledger, candidates, without, lambda id: candidates[id].cost
    )  # (1)
    if chosen is None:  # (2)
        sizes = {id: -ledger.charge_of(id).memory_mib for id in candidates}
        chosen = _choose(device, need, ledger, candidates, without, sizes.__getitem__)
    if chosen is None:
        return None
    for id in sorted(chosen, key=lambda one: -candidates[one].cost):  # (3)
        others = [one for one in chosen if one != id]
        if ledger.fits(device, need, (*without, *others)):
            chosen = others
    return tuple(chosen)


def _choose(
    device: str,
    need: Need,
    ledger: Ledger,
    candidates: Mapping[str, Candidate],
    without: Collection[str],
    order: Callable[[str], float],
) -> list[str] | None:
    """Candidates by `order`: of the device until the share fits, then of its bank until the memory
    fits. None if all of them do not suffice."""
    chosen: list[str] = []
    gone: Counter[str] = Counter()
    bank = ledger.devices[device].bank
    for there, fits in (
        (ledger.on(device), ledger.fits_share),
        (ledger.in_bank(bank), ledger.fits_memory),
    ):
        able = [id for id in there if id in candidates and id not in chosen and id not in without]
        for id in sorted(able, key=order):
            if fits(device, need, (*without, *chosen)):
                break
            if gone[candidates[id].pool] < candidates[id].spare:
                gone[candidates[id].pool] += 1
                chosen.append(id)
        if not fits(device, need, (*without, *chosen)):
            return None
    return chosen
