"""Placement: which device a replica gets, or which replicas to stop for it at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from pool_manager.core.ledger import RESERVE_MIB, Ledger, Need


class Candidate(NamedTuple):
    """A replica that may be stopped, at this `cost`. At most `spare` replicas of its pool may be
    stopped at once."""

    pool: str
    cost: float
    spare: int


class EvictionPlan(NamedTuple):
    """The replicas to stop, and the device that then has room; "" if only `max` was in the way."""

    device: str
    victims: tuple[str, ...]


def find_device(need: Need, ledger: Ledger, without: Collection[str] = ()) -> str | None:
    """Return the best device with room now, None if there is none; the order is that of
    `_by_preference`.

    `without`: standbys that may become the new replica; their memory is available to it.
    """
    return next(
        (device for device in _by_preference(need, ledger) if ledger.fits(device, need, without)),
        None,
    )


def _by_preference(need: Need, ledger: Ledger) -> list[str]:
    """Return the devices that may have room without an eviction, the best first.

    (1) A trial, which takes the rest of a device: empty devices, then those with the fewest
        replicas.
    (2) A replica that needs a whole device: empty devices, the one free for longest first.
    (3) A replica that shares a device: the fullest first, to keep whole devices for (2).
    (4) In all cases, if any kind is allowed: GPUs before CPU slots.
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
    """Return the cheapest set of candidates whose end makes room on one device; None if there is
    none.

    (1) Each device of the right kind has a lower bound: the cost of the cheapest candidate in its
        bank, since stopping that one may make room on any device of the bank. Devices are tried
        in the order of this bound.
    (2) On each device, the cheapest candidates are chosen until share and memory fit (`_victims`).
    (3) The search ends at a device whose bound is no less than the cost of the best set so far.
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
    """Return why no device has room for a need now, and which devices are cordoned (user-facing
    text)."""
    cordoned = ledger.cordoned(need.kind)
    if not cordoned:
        return _obstacle(need, ledger)
    verb = "is" if len(cordoned) == 1 else "are"
    causes = "; ".join(f"{cordon.reason} ({device})" for device, cordon in cordoned.items())
    return f"{_obstacle(need, ledger)}, {len(cordoned)} {verb} cordoned: {causes}"


def is_unplaceable(need: Need, ledger: Ledger) -> bool:
    """Whether no usable device could hold the need even if all were empty, while a cordoned device
    might."""
    fleet = ledger.fleet(need.kind)
    is_too_large = need.memory_mib + RESERVE_MIB > fleet.largest_mib
    return bool(ledger.cordoned(need.kind)) and (not fleet.devices or is_too_large)


def _obstacle(need: Need, ledger: Ledger) -> str:
    """Return the obstacle: (1) no device of the kind; (2) every device is too small; (3) every
    device is in use; (4) too little free memory."""
    fleet = ledger.fleet(need.kind)
    if not fleet.devices:  # (1)
        return f"no device of kind {need.kind}"
    if need.memory_mib + RESERVE_MIB > fleet.largest_mib:  # (2)
        return f"needs {need.memory_mib:.0f} MiB + {RESERVE_MIB:.0f} spare, no device has that"
    able = [id for id in _by_preference(need, ledger) if ledger.fits_kind(id, need)]
    banks = {ledger.devices[id].bank for id in able if ledger.fits_share(id, need)}
    if not banks:  # (3)
        return f"no free device ({fleet.devices} in use)"
    free_mib = max(ledger.free_mib(bank, need.pool) for bank in banks)  # (4)
    return f"needs {need.memory_mib:.0f} MiB, {max(0.0, free_mib):.0f} are free"


def _floors(
    need: Need, ledger: Ledger, candidates: Mapping[str, Candidate]
) -> list[tuple[float, str]]:
    """Return the devices that could be cleared with the lower bounds of their costs, cheapest
    first."""
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
    """Return the candidates to stop on one device; None if they cannot make room.

    (1) The cheapest first, until share and memory fit.
    (2) If that fails because of the pools' `min`: the largest first.
    (3) The most expensive ones are kept if the others suffice.
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
    """Return candidates in `order`: those on the device until the share fits, then those in its
    bank until the memory fits. None if all of them do not suffice."""
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
