"""Which device a replica gets, or who makes room for it at least cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pool_manager.core.policy.ledger import RESERVE_MIB, Ledger, Need


class Clearing(NamedTuple):
    """Once these replicas are gone, the device has room."""

    device: str
    victims: tuple[str, ...]


def find(need: Need, ledger: Ledger) -> str | None:
    """A device with room now; where it may be shared, the fullest that fits.

    Packing keeps whole devices free for those who need one alone.
    """
    if need.share >= 1.0:
        candidates: Iterable[str] = ledger.empty()
    else:
        candidates = sorted(ledger.devices, key=lambda id: -len(ledger.on(id)))
    for device in candidates:
        if _fits(device, need, ledger, ()):
            return device
    return None


def clear(need: Need, ledger: Ledger, costs: Mapping[str, float]) -> Clearing | None:
    """The cheapest set of replicas, of those in `costs`, whose leaving makes room on one device.

    None where even all of them would not do. A set costs at least its cheapest member on the
    device, so devices are tried in that order until none can be cheaper.
    """
    best: tuple[float, Clearing] | None = None
    for floor, device in _candidates(need, ledger, costs):
        if best is not None and best[0] <= floor:
            break
        victims = _victims(device, need, ledger, costs)
        if victims is None:
            continue
        total = sum(costs[id] for id in victims)
        if best is None or total < best[0]:
            best = total, Clearing(device, victims)
    return best[1] if best else None


def why_not(need: Need, ledger: Ledger) -> str:
    """In words, why there is no device for it now."""
    fitting = [d for d in ledger.devices.values() if need.kind in ("any", d.kind)]
    if not fitting:
        return f"no device of kind {need.kind}"
    largest = max(device.memory_mib for device in fitting)
    if all(device.memory_mib for device in fitting) and need.memory_mib + RESERVE_MIB > largest:
        return f"needs {need.memory_mib:.0f} MiB, no device has that beside {RESERVE_MIB:.0f} spare"
    return f"all {len(fitting)} devices are in use"


def _candidates(need: Need, ledger: Ledger, costs: Mapping[str, float]) -> list[tuple[float, str]]:
    """Devices that could be cleared, each with the least that this can cost."""
    floors = dict.fromkeys(ledger.empty(), 0.0)
    for id, cost in costs.items():
        device = ledger.device_of(id)
        if device:
            floors[device] = min(cost, floors.get(device, cost))
        else:
            # Memory that a standby frees may be all that any device of its bank lacks.
            floors.update(dict.fromkeys(ledger.devices, 0.0))
    return sorted((floor, id) for id, floor in floors.items() if ledger.fits_kind(id, need))


def _fits(device: str, need: Need, ledger: Ledger, without: tuple[str, ...]) -> bool:
    return (
        ledger.fits_kind(device, need)
        and ledger.fits_share(device, need, without)
        and ledger.fits_memory(device, need, without)
    )


def _victims(
    device: str, need: Need, ledger: Ledger, costs: Mapping[str, float]
) -> tuple[str, ...] | None:
    """Cheapest first until share and memory fit, then whoever proved superfluous stays."""
    chosen: list[str] = []
    on_device = sorted((id for id in ledger.on(device) if id in costs), key=costs.__getitem__)
    while not ledger.fits_share(device, need, chosen):
        if not on_device:
            return None
        chosen.append(on_device.pop(0))
    in_bank = [id for id in ledger.in_bank_of(device) if id in costs and id not in chosen]
    in_bank.sort(key=costs.__getitem__)
    while not ledger.fits_memory(device, need, chosen):
        if not in_bank:
            return None
        chosen.append(in_bank.pop(0))
    for id in sorted(chosen, key=costs.__getitem__, reverse=True):
        others = tuple(one for one in chosen if one != id)
        if _fits(device, need, ledger, others):
            chosen.remove(id)
    return tuple(chosen)
