"""Cordoned devices (lost, or in need of a reset), hosts that drain, and how both are evacuated;
devices that are refused to new replicas."""

from __future__ import annotations

from typing import Final

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command, EndTrial, Note
from pool_manager.core.hosts import HostState
from pool_manager.core.ledger import Need
from pool_manager.core.placement import is_unplaceable, placement_obstacle
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.starts import TEXT_MAX
from pool_manager.core.state import Cordon, Refusal, Replica, State
from pool_manager.core.trial_room import STAGE, is_over

LOST = (HostState.DRAINING, HostState.GONE)
"""States of hosts that may last for hours."""
TRIES_MAX: Final = 8
"""Refusals in a row after which a pool is placed anew at once, if a device is left."""
BACKOFF_MAX_S: Final = 60.0
"""Longest pause of a pool after more of them; the first one is 1 s, each further one twice as
long."""
REFUSED_MAX_S: Final = 300.0
"""Longest refusal of devices after evictions on a host, and longest pause of refused standbys; each
further one in a row is twice as long as the last."""


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
            self._cluster.unreserve_device(device)
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


class Refusals:
    """What follows when the engine of a host has no place for a replica, or takes it back
    (`Lost.refused_s`): a scheduler that other people use, too, may say no, and may stop a replica
    for a more important tenant. Neither says anything of the function: its pool is placed anew at
    once, on another host if one is as good, and what was refused takes no new replica for a while.

    Nothing loops: a pool is placed anew at once TRIES_MAX times in a row, then with a back-off. No
    other class refuses devices or counts evictions.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def apply(self, event: events.Lost, now: float, commands: list[Command]) -> set[str]:
        """Refuse the devices of a replica that was refused or evicted, before it is released;
        return the pools whose placement it may change.

        (1) After an eviction for longer each time that one follows another on the host.
        (2) What is reserved or claimed there, for whichever pool, is placed anew.
        (3) A standby for CPU slots has no device: its pool waits for as long.
        (4) One that has served: its calls are placed anew, whatever was refused before.
        (5) Its pool is placed anew at once, or after a pause if it has been refused too often.
        (6) A trial that has waited for as long as it may ends.
        """
        replica = self._cluster.find(event.id)
        if replica is None or replica.state is State.RELEASING:
            return set()
        touched = set(self._cluster.blocked)
        pool, reason = self._cluster.pools[replica.pool], event.reason[:TEXT_MAX]
        refused_s = min(REFUSED_MAX_S, event.refused_s)
        if event.is_eviction:
            refused_s = self._eviction_s(replica.host, refused_s, now)  # (1)
        for device in replica.devices:
            if device in self._cluster.ledger.devices:
                self._cluster.unreserve_device(device)  # (2)
                self._cluster.ledger.refuse(device, Refusal(reason, now + refused_s))
        what = "was evicted" if event.is_eviction else "was refused its place"
        commands.append(Note(pool.key, f"{replica.id} {what} on {replica.host}: {reason}"))
        if not replica.is_unready:  # (4)
            return touched
        pool.record_refusal(replica.host, reason)
        if replica.role == "standby":  # (3)
            pool.retry_at_s = now + _doubled(refused_s, pool.refusals, REFUSED_MAX_S)
        elif pool.refusals > TRIES_MAX:  # (5)
            pool.retry_at_s = now + _doubled(1.0, pool.refusals - TRIES_MAX, BACKOFF_MAX_S)
        if replica.role == "trial" and is_over(pool, now):  # (6)
            self._end_trial(pool, reason, commands)
        return touched

    def _end_trial(self, pool: Pool, reason: str, commands: list[Command]) -> None:
        text = f"no host had a place for the trial, which was refused {pool.refusals} times"
        commands.append(EndTrial(pool.key, {}, STAGE, f"{text}: {reason}"))
        pool.removed = True

    def _eviction_s(self, host: str, least_s: float, now: float) -> float:
        """Return for how many seconds the devices of an evicted replica are refused, at least
        `least_s`, and count the eviction. Several while those of an earlier one are refused count
        as one, as when a node is emptied; after REFUSED_MAX_S without any, they are counted
        anew."""
        record = self._cluster.hosts[host]
        if now >= record.evicted_until_s:
            is_long_ago = now - record.evicted_until_s >= REFUSED_MAX_S
            record.evictions = 1 if is_long_ago else record.evictions + 1
            record.evicted_until_s = now + _doubled(least_s, record.evictions, REFUSED_MAX_S)
        return max(least_s, record.evicted_until_s - now)

    def expire(self, now: float) -> set[str]:
        """End the refusals whose time is over; return the pools that this may change."""
        if not self._cluster.ledger.end_refusals(now):
            return set()
        return {*self._cluster.blocked, *self._cluster.standby_places}


def _doubled(first_s: float, times: int, most_s: float) -> float:
    """Return seconds that are twice as many each time, at most `most_s`; `times` counts from 1."""
    return min(most_s, first_s * 2.0 ** min(times - 1, 10))


def _can_drain(replica: Replica) -> bool:
    """Whether a replica can be drained. An adopted replica may be serving already, so it is not
    drained until it has connected and reported READY, within the time limits of its states."""
    is_unknown = replica.adopted and replica.role == "serve" and replica.is_coming
    is_here = replica.is_listed or replica.is_resting
    return is_here or (replica.is_coming and not is_unknown)
