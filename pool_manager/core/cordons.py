"""Cordoned devices (lost, or in need of a reset) and how their replicas are evacuated."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import Command, EndTrial, Note
from pool_manager.core.host import Host
from pool_manager.core.ledger import Cordon
from pool_manager.core.placement import is_unplaceable, placement_obstacle
from pool_manager.core.replicas import Endings
from pool_manager.core.state import Replica, State


class Cordons:
    """Keeps cordoned devices empty: `apply` takes the news, `clear` has everybody go."""

    def __init__(self, host: Host, endings: Endings) -> None:
        self._host = host
        self._endings = endings

    def apply(self, event: events.DeviceLost | events.DeviceBack) -> set[str]:
        """Cordon a device or give it back; the pools that may look elsewhere, or there again.
        Devices that this host does not have are ignored."""
        ledger, device = self._host.ledger, event.device
        if device not in ledger.devices:
            return set()
        if isinstance(event, events.DeviceBack):
            ledger.uncordon(device)
        else:
            reservation = ledger.reservations.get(device)
            if reservation is not None:
                self._host.unreserve(self._host.pools[reservation.need.pool])
            # What has fallen off the bus once is not there again until somebody says so.
            was_gone = device in ledger.cordons and ledger.cordons[device].is_gone
            ledger.cordon(device, Cordon(event.reason, event.is_gone or was_gone))
        return {self._host.standby_key(device), *self._host.blocked}

    def evacuate(self, now: float, commands: list[Command], *, is_open: bool) -> set[str]:
        """End what is on devices that are gone, have the others finish and go; the pools of them.
        Until the machine is open nobody is asked to go."""
        touched = set()
        for device, cordon in self._host.ledger.cordons.items():
            for replica in self._host.on(device):
                if cordon.is_gone and replica.state is not State.RELEASING:
                    self._end(replica, f"{device} is gone: {cordon.reason}", now, commands)
                elif is_open and _can_drain(replica):
                    why = f"{device} is cordoned: {cordon.reason}"
                    self._drain(replica, why, now, commands)
                else:
                    continue
                touched.add(replica.pool)
        return touched

    def end_unplaceable(self, keys: set[str], commands: list[Command]) -> None:
        """Tell deploys that wait for devices which are all cordoned: that may last for hours, and
        it is not for the model's sake that they end."""
        ledger = self._host.ledger
        for key in sorted(keys & self._host.pools.keys()):
            pool = self._host.pools[key]
            if pool.spec.role != "trial" or pool.removed or pool.count():
                continue
            need = self._host.need(pool)
            if is_unplaceable(need, ledger):
                pool.removed = True
                commands.append(EndTrial(key, {}, "place", placement_obstacle(need, ledger)))

    def _end(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """It is nobody's fault, and its pool may start elsewhere at once."""
        commands.append(Note(replica.pool, f"{replica.id} is ended: {why}"))
        self._endings.release(replica, why, now, commands)

    def _drain(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Have it finish what it has. A trial is begun anew: what is measured there says nothing,
        and if it fails there, that is not the model's fault."""
        if replica.role == "trial":
            self._end(replica, why, now, commands)
        else:
            self._endings.drain(replica, None, why, now, commands)


def _can_drain(replica: Replica) -> bool:
    """One found after a restart may be serving: it can finish only when it has greeted and said
    that it is ready, for which it has its usual time."""
    is_unknown = replica.adopted and replica.role == "serve" and replica.is_coming
    return replica.can_serve or (replica.is_coming and not is_unknown)
