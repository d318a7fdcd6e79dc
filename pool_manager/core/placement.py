"""Which device a replica gets, or whose idle replica makes room for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pool_manager.core.state import Device, Replica


@dataclass(frozen=True, slots=True)
class Place:
    """Start it here."""

    device: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask this idle replica to go first."""

    replica: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no room now, for this reason."""

    reason: str


def place(
    kind: str,
    devices: Iterable[Device],
    taken: frozenset[str],
    idle: Iterable[Replica],
) -> Place | Evict | Wait:
    """A free device of the right kind; else the replica idle for longest goes; else wait.

    `taken` are device ids that hold a replica in any state but STOPPED, or are quarantined; `idle`
    are ready replicas nobody needs. One device holds one replica.
    """
    fitting = [device for device in devices if kind in ("any", device.kind)]
    if not fitting:
        return Wait(f"no device of kind {kind}")
    for device in fitting:
        if device.id not in taken:
            return Place(device.id)
    ids = {device.id for device in fitting}
    victims = [replica for replica in idle if replica.device in ids]
    if not victims:
        return Wait(f"all {len(fitting)} devices are in use")
    return Evict(min(victims, key=lambda replica: (replica.last_used_s, replica.id)).id)
