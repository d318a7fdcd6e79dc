"""Cordoned devices (lost, or in need of a reset), hosts that drain, and how both are evacuated."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command, EndTrial, Note
from pool_manager.core.hosts import HostState
from pool_manager.core.ledger import Cordon, Need
from pool_manager.core.placement import is_unplaceable, placement_obstacle
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import Replica, State

LOST = (HostState.DRAINING, HostState.GONE)
"""States of hosts that may last for hours."""


class Cordons:
    """Keeps cordoned devices and draining hosts empty: `apply` cordons and uncordons devices,
    `evacuate` stops replicas."""

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle) -> None:
        self._cluster = cluster
        self._replicas = replicas

    def apply(self, event: events.DeviceLost | events.DeviceBack) -> set[str]:
        """Cordon or uncordon a device; return the pools whose placement it may change. Devices that
        no host has are ignored."""
        ledger, device = self._cluster.ledger, event.device
        if device not in ledger.devices:
            return set()
        if isinstance(event, events.DeviceBack):
            ledger.uncordon(device)
        else:
            reservation = ledger.reservations.get(device)
            if reservation is not None:
                self._cluster.unreserve(self._cluster.pools[reservation.need.pool])
            if ledger.claim is not None and device in ledger.claim.devices:
                ledger.claim = None
            # A device that fell off the bus is gone until DeviceBack.
            was_gone = device in ledger.cordons and ledger.cordons[device].is_gone
            ledger.cordon(device, Cordon(event.reason, event.is_gone or was_gone))
        return {self._cluster.standby_key(device), *self._cluster.blocked}

    def evacuate(self, now: float, commands: list[Command], *, is_open: bool) -> set[str]:
        """Release the replicas of devices that are gone and drain those of other cordoned devices
        and of draining hosts; return their pools. Nothing is drained before decisions have begun
        (`is_open`). A replica whose host is unreachable is left until it is found again."""
        touched = set()
        for device, cordon in self._cluster.ledger.cordons.items():
            for replica in self._cluster.on(device):
                is_ending = replica.state is State.RELEASING
                if cordon.is_gone and replica.is_reachable and not is_ending:
                    self._end(replica, f"{device} is gone: {cordon.reason}", now, commands)
                elif is_open and _can_drain(replica):
                    why = f"{device} is cordoned: {cordon.reason}"
                    self._drain(replica, why, now, commands)
                else:
                    continue
                touched.add(replica.pool)
        for host in self._draining() if is_open else ():
            for replica in filter(_can_drain, self._cluster.on_host(host)):
                self._drain(replica, f"{host} is drained", now, commands)
                touched.add(replica.pool)
        return touched

    def _draining(self) -> list[str]:
        hosts = self._cluster.hosts.values()
        return [one.name for one in hosts if one.state is HostState.DRAINING]

    def end_unplaceable(self, keys: set[str], commands: list[Command]) -> None:
        """End every trial whose possible devices are all cordoned, or on hosts that drain or are
        gone, since that may last for hours. The reason names device and host, not the model."""
        ledger, pools = self._cluster.ledger, self._cluster.pools
        trials = (key for key in keys if key in pools and pools[key].spec.role == "trial")
        for key in sorted(trials):
            pool = pools[key]
            if pool.removed or pool.count():
                continue
            need = self._cluster.need(pool)
            if is_unplaceable(need, ledger) or self._has_lost_hosts(need):
                pool.removed = True
                commands.append(EndTrial(key, {}, "place", placement_obstacle(need, ledger)))

    def _has_lost_hosts(self, need: Need) -> bool:
        """Whether no host can take a need, while one that drains or is gone might."""
        ledger = self._cluster.ledger
        if ledger.fleet(need).alike >= need.count:
            return False
        lost = {one.name for one in ledger.hosts.values() if one.state in LOST}
        return any(
            device.host in lost
            and need.kind in ("any", device.kind)
            and ledger.suits(device.host, need)
            for device in ledger.devices.values()
        )

    def _end(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Release a replica without failure or back-off: its pool may start elsewhere at once."""
        commands.append(Note(replica.pool, f"{replica.id} is stopped: {why}"))
        self._replicas.release(replica, why, now, commands)

    def _drain(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Drain a replica. A trial is released and restarted elsewhere instead: neither its
        measurements nor its failures on a cordoned device say anything about the model."""
        if replica.role == "trial":
            self._end(replica, why, now, commands)
        else:
            self._replicas.drain(replica, None, why, now, commands)


def _can_drain(replica: Replica) -> bool:
    """Whether a replica can be drained. An adopted replica may be serving already, so it is not
    drained until it has connected and reported READY, within the time limits of its states."""
    is_unknown = replica.adopted and replica.role == "serve" and replica.is_coming
    is_here = replica.is_listed or replica.is_resting
    return is_here or (replica.is_coming and not is_unknown)
