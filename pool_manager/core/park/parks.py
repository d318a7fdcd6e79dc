"""Parks: a server's engine sleeps in the memory of its host, and wakes instead of starting.

An engine that says that it sleeps, or is awake, proves nothing. Its devices are free once the
manager has read that its processes hold next to nothing there (`ProvePark`), and it is listed again
once it has answered its golden sample (`Verify`). Whatever goes wrong ends the replica: the next
call starts another one.
"""

from __future__ import annotations

from collections.abc import Callable
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
from pool_manager.core.state import UNKNOWN, ParkSpec, Replica, State, Step, state_limit_s

RESIDUE_SHARE: Final = 0.2
"""Part of a device that parked replicas may keep in use: the rest is worth little without it."""
BETTER: Final = 1.25
"""A replica takes the host memory of parked ones that are worth less than it by this factor: of two
that are nearly equal, each would otherwise end the other."""
RETRY_S: Final = 1.0
"""After this time a replica that waits for host memory is tried again."""


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
        replica.why, replica.if_idle, replica.is_asleep = why, True, False
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
        if replica is None or replica.state not in (State.PARKING, State.UNPARKING):
            return
        if self._cluster.pools[replica.pool].park is None:
            replica.is_asleep = True
            why = "it sleeps, and its revision has no park any more"
            self._replicas.drain(replica, None, why, now, commands)
            return
        self.charge_host(replica)
        replica.has_slept = True  # perhaps even one that refuses now: it is not told
        replica.is_asleep = event.life is State.PARKED
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
        if replica.state is not State.PARKING or replica.is_asleep:
            return
        if event.problem:
            self._end(replica, f"its engine does not sleep: {event.problem}", now, commands)
            return
        replica.is_asleep, replica.has_slept, replica.if_idle = True, True, False
        spec = self._cluster.pools[replica.pool].spec
        replica.deadline_s = now + state_limit_s(replica, spec)
        commands += implied(replica, self._profile(replica))

    def _proven(
        self, replica: Replica, event: events.ParkProven, now: float, commands: list[Command]
    ) -> None:
        """Charge a replica its residue; end one that keeps too much, or that was not read on each
        of its devices."""
        is_parked = replica.state is State.PARKED
        if not is_parked and not (replica.state is State.PARKING and replica.is_asleep):
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
        if replica.state is State.PARKED or (replica.state is State.PARKING and replica.is_asleep):
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
        replica.is_asleep = replica.is_kept_wrong = False
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
        """End parked replicas of a pool that will not be woken: parks are off, or another one,
        which was started while their devices were busy, is ready."""
        for replica in list(pool.replicas.values()):
            if not replica.is_parked:
                continue
            successor = self._cluster.find(replica.successor) if replica.successor else None
            why = ""
            if pool.park is None:
                why = f"it is parked no more: {pool.parks.off or 'its revision is not parked'}"
            elif successor is None:
                replica.successor = ""
            elif successor.is_ready:
                why = f"{successor.id} serves in its place"
            if why:
                self._replicas.drain(replica, None, why, now, commands)

    @staticmethod
    def pass_over(pool: Pool, id: str) -> None:
        """The replica `id` was started while the devices of parked ones are busy: they end once it
        is ready."""
        for replica in pool.replicas.values():
            if replica.is_parked:
                replica.successor = id

    def rest(
        self,
        replica: Replica,
        if_idle_s: float,
        why: str,
        now: float,
        commands: list[Command],
        *,
        may_wait: bool,
    ) -> bool:
        """Park an idle replica that would be stopped otherwise; whether it is parked, or waits for
        host memory, for which parked ones of less worth end if it `may_wait`."""
        pool = self._cluster.pools[replica.pool]
        if pool.spec.park is None:
            return False
        obstacle = self.obstacle(replica, pool)
        if not obstacle and (lack := self._lack_mib(replica, pool)) > 0.0:
            if may_wait and self._take_back(replica, pool, lack, now, commands):
                pool.parks.retry_s = now + RETRY_S
                return True
            obstacle = f"{pool.spec.park.host_mib:.0f} MiB of host memory are not free"
        if obstacle:
            commands.append(Note(pool.key, f"{replica.id} is not parked: {obstacle}"))
            return False
        self.park(replica, if_idle_s, why, now, commands)
        return True

    def obstacle(self, replica: Replica, pool: Pool) -> str:
        """Return why a ready replica cannot be parked, whatever host memory is free; "" if it can.

        (1) Parks are off, or it does not work as it should.
        (2) Its wake would take as long as a start.
        (3) With the others that are parked there, it would keep too much of a device.
        (4) The memory of its host is not accounted, so nothing could bound what is parked.
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

    def _lack_mib(self, replica: Replica, pool: Pool) -> float:
        """Return the MiB of host memory that a replica lacks to be parked. One that has slept has
        kept its own."""
        ledger = self._cluster.ledger
        has_mib = ledger.charge_of(replica.id).host_mib
        need_mib = max(0.0, self._profile(replica).host_mib - has_mib)
        return need_mib - ledger.free_mib(ledger.host_bank(replica.host), pool.key)

    def _take_back(
        self, replica: Replica, pool: Pool, lack_mib: float, now: float, commands: list[Command]
    ) -> bool:
        """End the parked replicas of a host that are worth least per MiB, if a ready one, which is
        worth more than each of them by BETTER, can then be parked; whether that memory comes."""
        ledger, bank = self._cluster.ledger, self._cluster.ledger.host_bank(replica.host)
        worth = self.worth(pool, now) / max(1.0, self._profile(replica).host_mib)
        parked: list[tuple[float, Replica]] = []
        for id in ledger.in_bank(bank):
            charge, other = ledger.charge_of(id), self._cluster.find(id)
            if other is None or not charge.is_parked:
                continue
            if other.is_leaving:
                lack_mib -= charge.host_mib
            elif other.is_parked and self._cluster.pools[other.pool].unserved_since_s is None:
                value = self.worth(self._cluster.pools[other.pool], now)
                parked.append((value / max(1.0, charge.host_mib), other))
        chosen = []
        for value, other in sorted(parked, key=lambda one: (one[0], one[1].id)):
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
        is_parking = replica is not None and replica.state is State.PARKING
        return self._profile(replica).residue_mib if replica is not None and is_parking else 0.0


def implied(replica: Replica, park: ParkSpec) -> list[Command]:
    """Return the command that the state of a park implies; the replica ignores it if it has it."""
    match replica.state:
        case State.PARKING if not replica.is_asleep:
            return [Park(replica.id, JUST_USED_S)]
        case State.PARKING | State.PARKED:
            return [ProvePark(replica.id, park.residue_mib)]
        case State.UNPARKING:
            return [Unpark(replica.id)]
        case State.VERIFYING:
            return [Verify(replica.id)]
    return []
