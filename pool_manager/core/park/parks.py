"""Parks: a server's engine sleeps in the memory of its host, and wakes instead of starting.

An engine that says that it sleeps, or is awake, proves nothing. Its devices are free once the
manager has read that its processes hold next to nothing there (`ProvePark`), and it is listed again
once it has answered its golden sample (`Verify`). Whatever goes wrong ends the replica: the next
call starts another one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import (
    Command,
    Note,
    Park,
    ProvePark,
    RecordWake,
    Unpark,
    Verify,
)
from pool_manager.core.ledger import Need
from pool_manager.core.placement import EvictionPlan
from pool_manager.core.pool import JUST_USED_S, Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import FALLING_ASLEEP, UNKNOWN, ParkSpec, Replica, State, Step
from registry.exchange import place_of

RESIDUE_SHARE: Final = 0.2
"""Part of a device that parked replicas may keep in use: the rest is worth little without it."""
BETTER: Final = 1.25
"""A replica takes the host memory of parked ones that are worth less than it by this factor: of two
that are nearly equal, each would otherwise end the other."""
RETRY_S: Final = 1.0
"""After this time a replica that waits for host memory is tried again."""


class _May(Enum):
    """Whether a replica may be parked."""

    NOW = "now"
    LATER = "once host memory is free"
    NOT = "not"


class Parks:
    """Parks and wakes replicas; decides what is parked instead of being stopped."""

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._receivers: dict[type, Callable[[Replica, Any, float, list[Command]], None]] = {
            events.ParkAnswered: self._answered,
            events.ParkProven: self._proven,
            events.ParkRefuted: self._refuted,
            events.UnparkAnswered: self._awake,
            events.Verified: self._verified,
        }

    # Steps

    def apply(self, event: events.Event, now: float, commands: list[Command]) -> set[str]:
        """Apply an event about the park of one replica; return the pools it touches. Events that
        crossed a change of its state are ignored."""
        replica = self._cluster.find(getattr(event, "id", ""))
        if replica is None:
            return set()
        self._receivers[type(event)](replica, event, now, commands)
        if replica.state is State.PARKED:
            return {replica.pool, *self._cluster.blocked}
        return {replica.pool}

    def park(
        self, replica: Replica, if_idle_s: float, why: str, now: float, commands: list[Command]
    ) -> None:
        """Ask a ready replica to sleep; it refuses if it was used within `if_idle_s` seconds. The
        memory of its host is charged before the command."""
        self.charge_host(replica)
        replica.why, replica.if_idle = why, True
        self._replicas.advance(replica, Step.PARK, now)
        commands.append(Note(replica.pool, f"{replica.id} is asked to sleep: {why}"))
        commands.append(Park(replica.id, if_idle_s))

    def wake(
        self, replica: Replica, phases: dict[str, float], now: float, commands: list[Command]
    ) -> None:
        """Wake a parked replica, whose devices have room: they are charged in full from now on."""
        pool = self._cluster.pools[replica.pool]
        need = self._cluster.wake_need(pool, replica)
        self._cluster.ledger.charge(replica.id, replica.devices, need.share, need.memory_mib)
        del self._cluster.parked[replica.id]
        before = replica.phases
        replica.phases = phases | {one: before[one] for one in ("first_run",) if one in before}
        replica.waiting_since_s, replica.successor = pool.waiting_since_s, ""
        replica.woken_s = replica.last_used_s = now
        self._replicas.advance(replica, Step.UNPARK, now)
        commands.append(Note(replica.pool, f"wakes {replica.id}: {pool.wanted_reason}"))
        commands.append(Unpark(replica.id))

    def take_over(self, event: events.Loaded, now: float, commands: list[Command]) -> None:
        """Go on with a server of an earlier manager that sleeps or wakes. It is charged in full
        until it is proved to sleep again, and serves nobody until it is verified again."""
        replica = self._cluster.find(event.id)
        found = (State.PARKING, State.PROVING, State.UNPARKING)
        if replica is None or replica.state not in found:
            return
        if self._cluster.pools[replica.pool].park is None:
            why = "it sleeps, and its revision has no park any more"
            self._replicas.drain(replica, None, why, now, commands)
            return
        self.charge_host(replica)
        replica.has_slept = True  # perhaps even one that refuses now: it is not told
        replica.if_idle = event.life is State.PARKING
        replica.woken_s = now
        if event.life is State.VERIFYING:
            self._replicas.advance(replica, Step.AWAKE, now)
        commands += implied(replica, self._profile(replica))

    def _answered(
        self, replica: Replica, event: events.ParkAnswered, now: float, commands: list[Command]
    ) -> None:
        if replica.state is State.READY:
            # It was taken for one that refuses, and serves nobody from now on.
            self._end(replica, "it sleeps although it was not asked to", now, commands)
        if replica.state is not State.PARKING and not replica.sleeps_after:
            return
        # A Resume that crossed the answer, of a soft drain, is not answered any more.
        replica.resumes, replica.claimant = 0, ""
        replica.if_idle = replica.is_revoked = replica.sleeps_after = False
        self._replicas.advance(replica, Step.ASLEEP, now)
        if event.problem:
            self._end(replica, f"its engine does not sleep: {event.problem}", now, commands)
            return
        replica.has_slept = True
        commands += implied(replica, self._profile(replica))

    def _proven(
        self, replica: Replica, event: events.ParkProven, now: float, commands: list[Command]
    ) -> None:
        """Charge a replica its residue; end one that keeps too much, or that was not read on each
        of its devices."""
        is_parked = replica.state is State.PARKED
        if not is_parked and replica.state is not State.PROVING:
            return
        missing = [one for one in replica.devices if one not in event.residue_mib]
        if missing:
            reason = f"nothing is known of what it keeps on {' and '.join(missing)}"
            self._end(replica, reason, now, commands)
            return
        residue_mib = max(event.residue_mib[one] for one in replica.devices)
        if over := self._residue_obstacle(replica, residue_mib):
            self._end(replica, over, now, commands)
            return
        self._cluster.ledger.leave_devices(replica.id, residue_mib)
        if not is_parked:
            self._cluster.parked[replica.id] = None
            self._replicas.advance(replica, Step.PROVED, now)
            text = f"{replica.id} is parked: {residue_mib:.0f} MiB stay in use on each device"
            commands.append(Note(replica.pool, text))

    def _refuted(
        self, replica: Replica, event: events.ParkRefuted, now: float, commands: list[Command]
    ) -> None:
        if replica.state in (State.PROVING, State.PARKED):
            self._end(replica, f"its park is not proved: {event.reason}", now, commands)

    def _awake(
        self, replica: Replica, event: events.UnparkAnswered, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.UNPARKING:
            return
        if event.problem:
            self._end(replica, f"it does not wake: {event.problem}", now, commands)
            return
        replica.phases["wake"] = event.took_s * 1e3
        self._replicas.advance(replica, Step.AWAKE, now)
        commands += implied(replica, self._profile(replica))

    def _verified(
        self, replica: Replica, event: events.Verified, now: float, commands: list[Command]
    ) -> None:
        if replica.state is not State.VERIFYING:
            return
        if event.problem:
            self._end(replica, f"it woke wrong: {event.problem}", now, commands)
            return
        replica.phases["verify"] = (now - replica.since_s) * 1e3
        replica.ready_s = replica.last_used_s = now
        replica.is_kept_wrong = False
        # What was measured before the sleep says nothing about the engine that woke.
        replica.watch, replica.trouble, replica.reported = None, "", None
        self._replicas.advance(replica, Step.VERIFIED, now)
        took_s = now - replica.woken_s
        commands.append(Note(replica.pool, f"{replica.id} is awake and verified"))
        commands.append(RecordWake(replica.pool, replica.id, "right", took_s))

    def _end(self, replica: Replica, reason: str, now: float, commands: list[Command]) -> None:
        self._replicas.end(replica, events.Lost(replica.id, reason), now, commands)

    def _profile(self, replica: Replica) -> ParkSpec:
        return self._cluster.pools[replica.pool].spec.park or UNKNOWN

    def charge_host(self, replica: Replica) -> None:
        """Charge a replica the memory of its host that its engine takes when it sleeps."""
        ledger = self._cluster.ledger
        charged = max(self._profile(replica).host_mib, ledger.charge_of(replica.id).host_mib)
        ledger.take_host_memory(replica.id, ledger.host_bank(replica.host), charged)

    # Decisions

    def settle(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """End parked replicas of a pool that will not be woken: parks are off, another one, which
        was started while their devices were busy, is ready, or the pool has as many as it may."""
        parked = [one for one in pool.replicas.values() if one.is_parked]
        over = pool.count() + len(parked) - pool.spec.max if parked else 0
        for replica in parked:
            successor = self._cluster.find(replica.successor) if replica.successor else None
            why = ""
            if pool.park is None:
                why = f"it is parked no more: {pool.parks.off or 'its revision is not parked'}"
            elif successor is not None:
                why = f"{successor.id} serves in its place" if successor.is_ready else ""
            else:
                replica.successor = ""
                why = f"max is {pool.spec.max}, and others are there" if over > 0 else ""
            if why:
                over -= 1
                self._replicas.drain(replica, None, why, now, commands)

    @staticmethod
    def pass_over(pool: Pool, id: str) -> None:
        """The replica `id` was started while the devices of parked ones are busy: they end once it
        is ready."""
        for replica in pool.replicas.values():
            if replica.is_parked:
                replica.successor = id

    def rest(
        self, replica: Replica, if_idle_s: float, why: str, now: float, commands: list[Command]
    ) -> bool:
        """Park an idle replica that would be stopped otherwise; whether it is asked to sleep, or
        waits for host memory, for which parked ones of less worth end."""
        may = self._may_park(replica, now, commands)
        if may is _May.NOW:
            self.park(replica, if_idle_s, why, now, commands)
        return may is not _May.NOT

    def rest_softly(
        self, replica: Replica, claimant: str, why: str, now: float, commands: list[Command]
    ) -> bool:
        """`rest` of a busy server that makes room for the pool `claimant`: it sleeps once its
        open exchanges have ended."""
        may = self._may_park(replica, now, commands)
        if may is _May.NOW:
            self.charge_host(replica)
            self._replicas.quiesce(replica, claimant, why, now, commands, sleeps=True)
        return may is not _May.NOT

    def ask(self, replica: Replica, why: str, now: float, commands: list[Command]) -> None:
        """Park an idle replica if it can be at once; nothing ends for it."""
        if self._may_park(replica, now, commands, may_wait=False) is _May.NOW:
            self.park(replica, JUST_USED_S, why, now, commands)

    def _may_park(
        self, replica: Replica, now: float, commands: list[Command], *, may_wait: bool = True
    ) -> _May:
        pool = self._cluster.pools[replica.pool]
        if pool.spec.park is None:
            return _May.NOT
        obstacle = self.obstacle(replica, pool)
        if not obstacle and (lack := self._lack_mib(replica, pool)) > 0.0:
            if may_wait and self._take_back(replica, pool, lack, now, commands):
                pool.parks.retry_s = now + RETRY_S
                return _May.LATER
            obstacle = f"{pool.spec.park.host_mib:.0f} MiB of host memory are not free"
        if obstacle:
            commands.append(Note(pool.key, f"{replica.id} is not parked: {obstacle}"))
        return _May.NOT if obstacle else _May.NOW

    def obstacle(self, replica: Replica, pool: Pool) -> str:
        """Return why a ready replica cannot be parked, whatever host memory is free; "" if it can.

        (1) Parks are off, or it does not work as it should.
        (2) Its wake would take as long as a start.
        (3) With the others that are parked there, it would keep too much of a device.
        (4) The memory of its host is not accounted, so nothing could bound what is parked.
        (5) Its sidecar would not: it may be on another kind of GPU than the golden sample is for,
            or older than the trial that has parked its revision.
        (6) Its device takes one replica at a time, also beside one that sleeps.
        """
        park, ledger = pool.park, self._cluster.ledger
        if park is None:  # (1)
            return pool.parks.off
        if replica.condemned is not None or replica.trouble or replica.is_kept_wrong:
            return "it does not answer as it should"
        if replica.resumes:
            # Its answer would be taken for a refusal of the park.
            return "it was told to take calls a moment ago"
        if pool.start_s <= park.return_s:  # (2)
            return "a wake takes as long as a start"
        if over := self._residue_obstacle(replica, park.residue_mib):  # (3)
            return over
        if not ledger.size_mib(ledger.host_bank(replica.host)):  # (4)
            return f"the memory of {replica.host} is not accounted"
        if replica.is_unparkable:  # (5)
            return "it was started without what a park needs"
        known = map(ledger.devices.get, replica.devices)
        if any(one is not None and one.is_exclusive for one in known):  # (6)
            return f"{place_of(replica.devices)} takes one replica at a time"
        return ""

    def may_rest(self, need: Need, plan: EvictionPlan, without: tuple[str, ...]) -> set[str]:
        """Return the victims of a plan that may be parked instead of stopped: a need fits on its
        devices beside what they keep there. `without` as of `plan_eviction`."""
        ledger, chosen = self._cluster.ledger, set[str]()
        gone = (*without, *plan.victims)
        banks = {ledger.devices[device].bank for device in plan.devices}
        left = {bank: ledger.free_mib(bank, need.pool, gone) - need.memory_mib for bank in banks}
        for id in plan.victims:
            victim = self._cluster.find(id)
            if victim is None or not victim.is_ready:
                continue
            park = self._cluster.pools[victim.pool].park
            if park is None:
                continue
            there = [bank for bank in ledger.charge_of(id).banks if bank in left]
            if all(left[bank] >= park.residue_mib for bank in there):
                chosen.add(id)
                for bank in there:
                    left[bank] -= park.residue_mib
        return chosen

    def worth(self, pool: Pool, now: float) -> float:
        """Return the expected seconds of start per second that a parked replica of a pool saves."""
        return max(0.0, pool.start_s - pool.return_s) * pool.call_rate.per_second(now)

    def has_room(self, pool: Pool) -> bool:
        """Whether a ready replica of a pool could be parked now, as far as host memory goes."""
        ledger = self._cluster.ledger
        return pool.park is not None and any(
            ledger.size_mib(ledger.host_bank(one.host)) and self._lack_mib(one, pool) <= 0.0
            for one in pool.replicas.values()
            if one.is_ready
        )

    def _lack_mib(self, replica: Replica, pool: Pool) -> float:
        """Return the MiB of host memory that a replica lacks to be parked. One that has slept has
        kept its own.

        (1) The bank, from which it is charged.
        (2) What is available by the last reading of the host, if there is one. It does not show yet
            what those take that are about to sleep.
        """
        ledger = self._cluster.ledger
        has_mib = ledger.charge_of(replica.id).host_mib
        need_mib = max(0.0, self._profile(replica).host_mib - has_mib)
        lack_mib = need_mib - ledger.free_mib(ledger.host_bank(replica.host), pool.key)  # (1)
        memory = self._cluster.hosts[replica.host].memory
        if memory is None:
            return lack_mib
        coming = [one for one in self._cluster.on_host(replica.host) if is_falling_asleep(one)]
        taken_mib = sum(ledger.charge_of(one.id).host_mib for one in coming if not one.has_slept)
        return max(lack_mib, need_mib + taken_mib - memory.spare_mib)  # (2)

    def fit(self, now: float, commands: list[Command]) -> None:
        """End parked replicas of the hosts whose bank they do not fit in any more, those of least
        worth per MiB first: it may be smaller than under an earlier manager. It is not known what
        replicas take that have not greeted yet."""
        ledger = self._cluster.ledger
        for host in {one.host for one in map(self._cluster.find, self._cluster.parked) if one}:
            over_mib = -ledger.free_mib(ledger.host_bank(host), "")
            there = self._cluster.on_host(host)
            if over_mib <= 0.0 or any(one.adopted and one.is_unready for one in there):
                continue
            over_mib -= sum(ledger.charge_of(one.id).host_mib for one in there if one.is_leaving)
            for _, one in self._least_worth(host, now):
                if over_mib > 0.0:
                    over_mib -= ledger.charge_of(one.id).host_mib
                    why = "the memory of its host is too small for all that is parked"
                    self._replicas.drain(one, None, why, now, commands)

    def _least_worth(self, host: str, now: float) -> list[tuple[float, Replica]]:
        """Return the parked replicas of a host that no calls wait for, each with its worth per MiB
        of host memory, the least first."""
        found = []
        for one in self._cluster.on_host(host):
            pool = self._cluster.pools[one.pool]
            if one.is_parked and pool.unserved_since_s is None:
                host_mib = self._cluster.ledger.charge_of(one.id).host_mib
                found.append((self.worth(pool, now) / max(1.0, host_mib), one))
        return sorted(found, key=lambda one: (one[0], one[1].id))

    def _take_back(
        self, replica: Replica, pool: Pool, lack_mib: float, now: float, commands: list[Command]
    ) -> bool:
        """End the parked replicas of a host that are worth least per MiB, if a ready one, which is
        worth more than each of them by BETTER, can then be parked; whether that memory comes."""
        ledger = self._cluster.ledger
        worth = self.worth(pool, now) / max(1.0, self._profile(replica).host_mib)
        for other in self._cluster.on_host(replica.host):
            charge = ledger.charge_of(other.id)
            if charge.is_parked and other.is_leaving:
                lack_mib -= charge.host_mib
        chosen = []
        for value, other in self._least_worth(replica.host, now):
            if lack_mib <= 0.0 or value * BETTER >= worth:
                break
            chosen.append(other)
            lack_mib -= ledger.charge_of(other.id).host_mib
        if lack_mib > 0.0:
            return False
        for other in chosen:
            self._replicas.drain(other, None, f"{pool.key} is parked instead", now, commands)
        return True

    def _residue_obstacle(self, replica: Replica, residue_mib: float) -> str:
        """Return which device a replica that keeps this much may not be parked on, "" if it may:
        all that are parked there, or about to be, keep RESIDUE_SHARE of it at most."""
        ledger = self._cluster.ledger
        for device in replica.devices:
            known = ledger.devices.get(device)
            if known is None or not known.memory_mib:
                continue
            kept_mib = residue_mib + sum(
                self._kept_mib(id) for id in ledger.in_bank(known.bank) if id != replica.id
            )
            if kept_mib > RESIDUE_SHARE * known.memory_mib:
                most = RESIDUE_SHARE * known.memory_mib
                return f"{kept_mib:.0f} MiB would stay in use on {device}, {most:.0f} may"
        return ""

    def _kept_mib(self, id: str) -> float:
        """Return what a replica keeps, or is about to keep, of each of its devices in a park."""
        charge, replica = self._cluster.ledger.charge_of(id), self._cluster.find(id)
        if charge.is_parked:
            return charge.memory_mib
        if replica is None or not is_falling_asleep(replica):
            return 0.0
        return self._profile(replica).residue_mib


def is_falling_asleep(replica: Replica) -> bool:
    """Whether a replica is on its way to PARKED, unless it refuses."""
    return replica.sleeps_after or replica.state in FALLING_ASLEEP


def implied(replica: Replica, park: ParkSpec) -> list[Command]:
    """Return the command that the state of a park implies; the replica ignores it if it has it."""
    match replica.state:
        case State.PARKING:
            return [Park(replica.id, JUST_USED_S)]
        case State.PROVING | State.PARKED:
            return [ProvePark(replica.id, park.residue_mib)]
        case State.UNPARKING:
            return [Unpark(replica.id)]
        case State.VERIFYING:
            return [Verify(replica.id)]
    return []
