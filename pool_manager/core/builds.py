"""Builds: replicas that compile a model, on devices that nobody needs. The lowest in the ledger."""

from __future__ import annotations

from collections.abc import Callable

from pool_manager.core.cluster import Cluster, StandbyPlace
from pool_manager.core.commands import Command, Launch, Note
from pool_manager.core.eviction import GIVEN_UP, Evictor
from pool_manager.core.ledger import Need
from pool_manager.core.placement import devices_by_preference, placement_obstacle
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import Replica


class Builds:
    """Starts builds, and ends them for standbys; other pools end them by eviction. `new_id` returns
    ids that no replica has.

    A build waits for a spare device (`_find`). It evicts nothing, uses no standby, counts for
    no `max`, and has one replica at most: however that ends, the build is over.
    """

    def __init__(
        self,
        cluster: Cluster,
        replicas: ReplicaLifecycle,
        evictor: Evictor,
        new_id: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._evictor = evictor
        self._new_id = new_id

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """Start the replica of a build if a device is spare, else wait."""
        if pool.replicas:
            return
        pool.wanted, pool.wanted_reason = 1, "its model is compiled"
        if closure := self._cluster.closure():
            self._evictor.block(pool, f"nothing can be started: {closure}", commands)
            return
        need = self._cluster.need(pool)
        device, reason = self._find(need)
        if not device:
            self._evictor.block(pool, f"it takes only what nobody needs: {reason}", commands)
            return
        self._evictor.unblock(pool)
        host = self._cluster.ledger.devices[device].host
        replica = Replica(self._new_id(), pool.key, device, "build", now, host=host)
        self._replicas.add(replica, now)
        commands.append(Launch(replica.id, pool.key, device, "build", {}, host))
        commands.append(Note(pool.key, f"starts {replica.id} on {device}: {pool.wanted_reason}"))

    def _find(self, need: Need) -> tuple[str, str]:
        """Return the best spare device, or "" and why there is none: no replica is on it, its bank
        has room (`Ledger.fits`), and nothing else is to have it (`_claim`)."""
        ledger, claim = self._cluster.ledger, ""
        for device in devices_by_preference(need, ledger):
            if ledger.fits(device, need):
                this_claim = self._claim(device, need)
                if not this_claim:
                    return device, ""
                claim = claim or this_claim
        return "", claim or placement_obstacle(need, ledger)

    def _claim(self, device: str, need: Need) -> str:
        """Return what else is to have a device that has room, "" if nothing.

        (1) The memory is for standbys that are yet to be started.
        (2) A pool waits that could be placed there. It would end the build as soon as it may start,
            for instance after a back-off.
        """
        ledger, blocked = self._cluster.ledger, self._cluster.blocked
        bank = ledger.devices[device].bank
        if need.memory_mib > ledger.free_mib(bank, need.pool) - self._missing_mib(bank):  # (1)
            return "the memory is for standbys that are yet to be started"
        for key in sorted(blocked - self._cluster.build_pools.keys()):  # (2)
            other = self._cluster.need(self._cluster.pools[key])
            if ledger.fits_kind(device, other) and ledger.can_hold(device, other):
                return f"{key} waits for a device"
        return ""

    def _missing_mib(self, bank: str) -> float:
        """Return the MiB of a bank for standbys that are yet to be started."""
        missing_mib = 0.0
        for key, place in self._cluster.standby_places.items():
            pool = self._cluster.pools[key]
            there, each_mib = self._cluster.standby_charge(place.device, place.host)
            if there == bank:
                missing_mib += each_mib * max(0, pool.spec.max - pool.count())
        return missing_mib

    def end_for_standby(
        self, pool: Pool, place: StandbyPlace, now: float, commands: list[Command]
    ) -> None:
        """End builds whose memory keeps a standby from being started, the newest first; none if
        that would not make room, or if others are ending already that make it."""
        ledger = self._cluster.ledger
        bank, need_mib = self._cluster.standby_charge(place.device, place.host)
        gone = [one.id for one in self._cluster.builds() if one.is_leaving]
        victims: list[Replica] = []
        running = [one for one in self._cluster.builds() if one.is_coming]
        running.sort(key=lambda one: one.since_s)
        while ledger.free_mib(bank, pool.key, gone) < need_mib:
            if not running:
                return
            victims.append(running.pop())
            gone.append(victims[-1].id)
        for one in victims:
            self._replicas.drain(one, None, f"{GIVEN_UP} for a standby", now, commands)
