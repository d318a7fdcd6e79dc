"""Parks of a pool as people see them: what sleeps, what it keeps, and why nothing is parked."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pool_manager.core.cluster import Cluster
from pool_manager.core.pool import Pool
from pool_manager.core.state import Replica, State


@dataclass(frozen=True, slots=True)
class ParkedReplica:
    """A replica that sleeps. Times are monotonic seconds."""

    id: str
    """Its id."""
    devices: tuple[str, ...]
    """Ids of its devices."""
    since_s: float
    """When it was proved to sleep."""
    ends_s: float | None
    """When it is stopped, None while its host cannot be reached."""
    residue_mib: float
    """MiB that it keeps of each of its devices."""
    host_mib: float
    """MiB of host memory that are charged to it besides."""
    why: str
    """Why it was parked."""


@dataclass(frozen=True, slots=True)
class PoolParks:
    """The parks of one pool."""

    off: str
    """Why its replicas are not parked any more, "" if they are."""
    wake_s: float
    """Seconds of a wake with its verification, as the trial measured them; 0 if it has none."""
    parked: tuple[ParkedReplica, ...]
    """Its replicas that sleep."""


def parks_of(pool: Pool, cluster: Cluster) -> PoolParks:
    """Return the parks of a pool."""
    wake_s = pool.spec.park.return_s if pool.spec.park is not None else 0.0
    parked = [one for one in pool.replicas.values() if one.state is State.PARKED]
    return PoolParks(pool.parks.off, wake_s, tuple(_parked(one, cluster) for one in parked))


def _parked(replica: Replica, cluster: Cluster) -> ParkedReplica:
    charge = cluster.ledger.charge_of(replica.id)
    return ParkedReplica(
        replica.id,
        replica.devices,
        replica.since_s,
        replica.deadline_s if replica.deadline_s < inf else None,
        charge.memory_mib if charge.is_parked else replica.memory_mib,
        charge.host_mib,
        replica.why,
    )


def wake_s(pool: Pool) -> float:
    """Return the seconds of a wake, as measured, of a pool with a replica that sleeps or wakes; 0
    if there is none, or if another one starts in its place."""
    park, there = pool.spec.park, pool.replicas.values()
    if park is None or any(one.is_unready and one.is_coming for one in there):
        return 0.0
    return park.return_s if any(one.is_parked or one.is_coming for one in there) else 0.0


def wake_text(pool: Pool) -> str:
    """Return what a waking pool does if a parked replica wakes, "" if it does something else."""
    park = pool.spec.park
    is_waking = any(one.is_coming and not one.is_unready for one in pool.replicas.values())
    if park is None or not is_waking:
        return ""
    return f"a parked replica wakes, which takes about {park.return_s:.3g} s"


def park_memory_mib(cluster: Cluster) -> dict[str, float]:
    """Return the MiB of each host's memory that are charged to replicas that sleep, or have slept;
    hosts whose memory is not accounted are left out."""
    ledger = cluster.ledger
    found = {host: 0.0 for host in cluster.hosts if ledger.size_mib(ledger.host_bank(host))}
    for replica in cluster.replicas():
        if host_mib := ledger.charge_of(replica.id).host_mib:
            found[replica.host] = found.get(replica.host, 0.0) + host_mib
    return found
