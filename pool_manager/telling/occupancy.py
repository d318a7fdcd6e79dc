"""What is on each device, for the ledger's neighbours and for whoever looks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from pool_manager.core.ledger import Ledger
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, Replica, State
from pool_manager.ports import Account, Gpus, GpuView

DeviceState = Literal["free", "taken", "quarantined", "cordoned"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A device, its replicas' ids and what they are charged there, MiB.

    `quarantined`: one of them is gone as far as anybody can tell, but the device does not show it;
    `cordoned`: nothing is put on it, because of an error. `gpu` is None for CPU slots.
    `leaked_mib` is what the quarantined ones have not given back, as far as can be seen.
    """

    device: Device
    state: DeviceState
    reason: str
    replicas: tuple[str, ...]
    charged_mib: float
    gpu: GpuView | None
    leaked_mib: float = 0.0


def account(ledger: Ledger, device: str, id: str) -> Account:
    """What replica `id` is charged on a device, and the others there; standbys count, too."""
    bank = ledger.devices[device].bank
    charges = {one: ledger.charged(one).memory_mib for one in ledger.in_bank(bank)}
    own_mib = charges.pop(id, 0.0)
    return Account(own_mib, len(charges), sum(charges.values()))


def occupancies(machine: Machine, gpus: Gpus) -> list[Occupancy]:
    """Every device in its order."""
    there: dict[str, list[Replica]] = {}
    for replica in machine.replicas():
        there.setdefault(replica.device, []).append(replica)
    cordons = machine.cordons()
    return [
        _occupancy(
            device,
            there.get(device.id, []),
            cordons.get(device.id, ""),
            machine.host.ledger,
            gpus,
        )
        for device in machine.devices.values()
    ]


def _occupancy(
    device: Device, replicas: list[Replica], cordon: str, ledger: Ledger, gpus: Gpus
) -> Occupancy:
    state, reason = _state(replicas, cordon)
    charged_mib = sum(ledger.charged(replica.id).memory_mib for replica in replicas)
    ids = tuple(replica.id for replica in replicas)
    view = gpus.view(device.id)
    stuck_mib = sum(ledger.charged(one.id).memory_mib for one in replicas if _is_stuck(one))
    leaked_mib = _leaked_mib(stuck_mib, charged_mib, view)
    return Occupancy(device, state, reason, ids, charged_mib, view, leaked_mib)


def _leaked_mib(stuck_mib: float, charged_mib: float, gpu: GpuView | None) -> float:
    """A GPU shows what is really left of what was charged; it may be more, or nothing."""
    if not stuck_mib or gpu is None or gpu.used_mib is None:
        return stuck_mib
    return max(0.0, gpu.used_mib - gpu.foreign_mib - (charged_mib - stuck_mib))


def _is_stuck(replica: Replica) -> bool:
    """Whether its release has been tried, and nothing shows that it is gone."""
    return replica.state is State.RELEASING and replica.kill_at_s < inf


def _state(replicas: list[Replica], cordon: str) -> tuple[DeviceState, str]:
    """A cordon says more than a quarantine, and that more than what is there anyway."""
    if cordon:
        return "cordoned", cordon
    for replica in replicas:
        if _is_stuck(replica):
            return "quarantined", f"{replica.id}: {replica.why}"
    return ("taken", "") if replicas else ("free", "")
